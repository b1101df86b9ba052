"""How long Hypothesis looks for a sequence of calls that breaks a frontier."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

settings.register_profile(
    "contract",
    max_examples=250,
    stateful_step_count=50,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
settings.register_profile("contract-on-disk", settings.get_profile("contract"), max_examples=35)
