"""Which policy decides: defaults, what is laid over them, and what is refused."""

from __future__ import annotations

import math
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scrapy_ha.errors import SettingError
from scrapy_ha.retry import policies as module
from scrapy_ha.retry.policies import BUILT_IN, HOPELESS, Numbers, Policies, register
from scrapy_ha.retry.policy import Backoff, Failed, GiveUp, Never, Retry


class Patient:
    """A policy of the user's."""

    def decide(self, failed: Failed, random: Random) -> Retry | GiveUp:
        return Retry(3600)


def seconds(failed: Failed, random: Random) -> float | None:
    """So is a plain function."""
    return 5 if failed.attempt < 3 else None


def policies(*layers: dict[str, Any], own_classes: bool = False, **numbers: Any) -> Policies:
    named = [("HA_RETRY_POLICIES", specs) for specs in layers]
    return Policies(Numbers(**numbers), named, own_classes)


FAILED = Failed("server", 1, 1, 2, 0, 0)


def test_defaults() -> None:
    """Every class has a rule; hopeless ones are never retried; all but throttled count by RETRY_TIMES."""
    ours = policies()
    assert ours.classes() == BUILT_IN
    for cls in BUILT_IN:
        policy = ours.of(cls).policy
        assert isinstance(policy, Never if cls in HOPELESS else Backoff)
        if isinstance(policy, Backoff) and cls not in {"throttled", "callback"}:
            assert policy.retries is None
            assert policy.deadline is None
    dns = ours.of("dns").policy
    assert isinstance(dns, Backoff)
    assert dns.between(1) == (0.05, 0.05)
    assert dns.between(2, is_last=True) == (15, 30)


def test_throttled_has_a_deadline_unless_the_project_counts() -> None:
    """RETRY_TIMES of the project's own goes before the default; Retry-After has room in the deadline."""
    throttled = policies(retry_after_cap=7200.0).of("throttled").policy
    assert isinstance(throttled, Backoff)
    assert (throttled.retries, throttled.deadline) == (math.inf, 7200)
    throttled = policies(own_times=True).of("throttled").policy
    assert isinstance(throttled, Backoff)
    assert (throttled.retries, throttled.deadline) == (None, None)


def test_later_layers_are_laid_over_earlier_ones() -> None:
    """Number by number; a name replaces all."""
    ours = policies({"server": {"base": 5, "retries": "7"}}, {"server": {"cap": 9}, "dns": "never"})
    assert ours.of("server").policy == Backoff(base=5, cap=9, retries=7)
    assert ours.of("dns").policy == Never()
    assert ours.of("timeout").policy == Backoff()


@pytest.mark.parametrize(
    ("spec", "policy"),
    [
        ("never", Never()),
        ("fixed", Backoff("fixed")),
        ({"policy": "linear", "retries": 3}, Backoff("linear", retries=3)),
        ({"backoff": "steps", "steps": [1, 5.5]}, Backoff("steps", steps=(1, 5.5), retries=2)),
        ({"steps": [1], "retries": None}, Backoff("steps", steps=(1,))),
        ({"jitter": "decorrelated"}, Backoff(factor=3, jitter="decorrelated")),
        ({"retries": "unlimited", "deadline": 60}, Backoff(retries=math.inf, deadline=60)),
        (Never(), Never()),
    ],
)
def test_specs(spec: Any, policy: Any) -> None:
    """Names, numbers and objects."""
    assert policies({"server": spec}).of("server").policy == policy


def test_numbers_for_a_hopeless_class_have_it_retried() -> None:
    """They are laid over the standard policy."""
    assert policies({"tls": {"retries": 1}}).of("tls").policy == Backoff(retries=1)


def test_a_shape_takes_the_place_of_the_default_one() -> None:
    """Nothing of the old one is left: neither the long last wait, nor the steps."""
    assert policies({"dns": {"backoff": "fixed", "jitter": "none", "base": 1}}).of("dns").policy == Backoff(
        "fixed", base=1, jitter="none", floor=0.05
    )
    assert policies({"server": {"steps": [9]}}, {"server": {"base": 2, "retries": 1}}).of(
        "server"
    ).policy == Backoff(base=2, retries=1)


def test_policies_of_the_users_own() -> None:
    """By path of a class or of a function, or as they are."""
    ours = policies({"server": Patient, "dns": seconds, "timeout": Patient()})
    assert ours.of("server").policy.decide(FAILED, Random()) == Retry(3600)
    assert ours.of("dns").policy.decide(FAILED, Random()) == Retry(5)
    gave_up = ours.of("dns").policy.decide(Failed("dns", 3, 3, 2, 0, 0), Random())
    assert gave_up == GiveUp("seconds said so")
    assert ours.of("timeout").policy.decide(FAILED, Random()) == Retry(3600)
    by_path = policies({"server": "scrapy_ha.retry.policy.Never"}).of("server")
    assert by_path.policy == Never()


def test_registered_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests may say them, too; a name is taken once."""
    monkeypatch.setattr(module, "_registry", {})
    register("patient", Patient)
    register("patient", Patient)
    ours = policies()
    rule = ours.for_request(ours.of("dns"), "patient", "dns")
    assert isinstance(rule.policy, Patient)
    for name in ("patient", "never", "a.b", ""):
        with pytest.raises(SettingError, match="choose a free name"):
            register(name, Never)


@pytest.mark.parametrize(
    ("specs", "message"),
    [
        ({"servr": "never"}, """no failure class 'servr'. Did you mean "server"?"""),
        ({"xyzzy": "never"}, "The classes are: dns, refused"),
        ({5: "never"}, "no failure class 5"),
        ({"dns": "nevr"}, """['dns']: there is no policy 'nevr'. Did you mean "never"?"""),
        ({"dns": "no.such.Thing"}, "no.such.Thing cannot be loaded"),
        ({"dns": "scrapy_ha.retry.backoff.JITTERS"}, "is no policy"),
        ({"dns": 5}, "5 is no policy"),
        ({"dns": None}, "None is no policy"),
        ({"dns": {"bas": 5}}, """there is no key 'bas'. Did you mean "base"?"""),
        (
            {"dns": {"base": -1}},
            "['dns']: base = -1 is not allowed: it must be a number of seconds, at least 0",
        ),
        ({"dns": {"cap": "nan"}}, "cap = 'nan' is not allowed"),
        ({"dns": {"factor": 0.5}}, "at least 1"),
        ({"dns": {"deadline": True}}, "deadline = True"),
        ({"dns": {"jitter": "ful"}}, 'Did you mean "full"?'),
        ({"dns": {"backoff": "linear", "jitter": "decorrelated"}}, "goes with"),
        ({"dns": {"backoff": "steps"}}, "needs steps"),
        ({"dns": {"steps": []}}, "steps = []"),
        ({"dns": {"steps": [1, "x"]}}, "each of steps = 'x'"),
        ({"dns": {"retries": -1}}, '"unlimited"'),
        ({"dns": {"retries": 1.5}}, "retries = 1.5"),
        ({"dns": {"idempotent": 1}}, "idempotent = 1"),
        ({"dns": {"policy": "never", "base": 5}}, "cannot be laid over"),
    ],
)
def test_bad_specs_are_refused_in_one_line(specs: dict[Any, Any], message: str) -> None:
    """It names where, what, and the nearest right one."""
    with pytest.raises(SettingError) as refused:
        policies(specs)
    assert message in str(refused.value)
    assert str(refused.value).startswith("HA_RETRY_POLICIES")
    assert "\n" not in str(refused.value)


def test_own_classes() -> None:
    """Only with a function that gives them; a misspelt built-in one is no own class."""
    ours = policies({"ban": {"retries": 3}}, own_classes=True)
    assert "ban" in ours
    assert "captcha" not in ours
    with pytest.raises(SettingError, match="server"):
        policies({"servers": "never"}, own_classes=True)


def test_change_while_the_crawl_runs() -> None:
    """It holds from then on; what is refused changes nothing; it can be taken back."""
    ours = policies({"server": {"base": 5}}, own_classes=True)
    ours.set("server", {"cap": 7})
    assert ours.of("server").policy == Backoff(base=5, cap=7)
    with pytest.raises(SettingError, match=r"set\['server'\]: base"):
        ours.set("server", {"base": "x"})
    assert ours.of("server").policy == Backoff(base=5, cap=7)
    ours.set("server", None)
    assert ours.of("server").policy == Backoff(base=5)
    ours.set("ban", "never")
    assert "ban" in ours
    ours.set("ban", None)
    assert "ban" not in ours


def test_a_request_cannot_have_anything_imported() -> None:
    """A stored request is anybody's: a path must stand in the settings, too."""
    path = "scrapy_ha.retry.policy.Never"
    ours = policies()
    for spec in (path, {"policy": path}, "os:getcwd"):
        with pytest.raises(SettingError, match="no policy"):
            ours.for_request(ours.of("dns"), spec, "dns")
    ours = policies({"server": path})
    assert ours.for_request(ours.of("dns"), path, "dns").policy == Never()


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary() | st.just(10**400),
    lambda inner: (
        st.lists(inner)
        | st.dictionaries(
            st.text() | st.sampled_from(["base", "retries", "steps", "policy", "jitter"]), inner
        )
    ),
    max_leaves=6,
)


@given(ANYTHING, st.sampled_from(BUILT_IN))
def test_any_spec_is_taken_or_refused(spec: Any, cls: str) -> None:
    """With no other error, and what is taken decides."""
    ours = policies()
    try:
        rule = ours.for_request(ours.of(cls), spec, cls)
    except SettingError as refused:
        assert "ha_retry" in str(refused)
    else:
        answer = rule.policy.decide(FAILED, Random(1))
        assert isinstance(answer, GiveUp) or answer.delay >= 0
