"""Delays: exponential, full jitter after the cap, a floor, never earlier than the server asked."""

from __future__ import annotations

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from scrapy_ha.retry.backoff import after, full_jitter

seconds = st.floats(0, 1e12)
attempts = st.one_of(st.integers(-5, 100), st.just(10**6), st.just(10**30))


@given(attempts, seconds, seconds, seconds, st.integers())
def test_backoff_is_within_its_bounds(attempt: int, base: float, cap: float, floor: float, seed: int) -> None:
    """Never negative, never above the cap, never below the floor (unless that is above the cap)."""
    delay = full_jitter(attempt, base, cap, floor, Random(seed))
    assert min(floor, cap) <= delay <= cap
    if attempt <= 100:
        assert delay <= max(floor, base * 2.0 ** max(attempt - 1, 0))


@given(st.floats(0, 1e300), seconds, seconds, seconds, st.integers())
def test_never_before_the_server_asked(
    asked: float, base: float, cap: float, floor: float, seed: int
) -> None:
    """Jitter only upwards; within [0, cap]."""
    delay = after(asked, base, cap, floor, Random(seed))
    assert min(asked, cap) <= delay <= cap


def test_upper_end_doubles_up_to_the_cap() -> None:
    """With base 1 and cap 10: below 1, 2, 4, 8, 10, 10 seconds, and each is nearly reached."""
    random = Random(1)
    for attempt, end in enumerate([1, 2, 4, 8, 10, 10], start=1):
        delays = [full_jitter(attempt, 1, 10, 0, random) for _ in range(2000)]
        assert 0.98 * end < max(delays) <= end
        assert min(delays) < 0.02 * end
        assert abs(sum(delays) / len(delays) - end / 2) < 0.05 * end


def test_what_failed_together_does_not_come_back_together() -> None:
    """200 requests, base 10 s: spread over 8 s at least, at most a tenth in any 200 ms."""
    for seed in range(20):
        random = Random(seed)
        delays = sorted(full_jitter(1, 10, 60, 0.1, random) for _ in range(200))
        assert delays[-1] - delays[0] >= 8
        assert max(sum(one <= other < one + 0.2 for other in delays) for one in delays) <= 20


def test_retries_after_the_same_retry_after_spread_too() -> None:
    """All were told the same second; they come over the base that follows it."""
    random = Random(1)
    delays = sorted(after(7, 10, 3600, 0.1, random) for _ in range(200))
    assert delays[0] >= 7
    assert delays[-1] - delays[0] >= 8


def test_a_seed_gives_the_same_plan() -> None:
    """Nothing else is random."""
    one, other = Random(7), Random(7)
    for attempt in range(1, 9):
        assert full_jitter(attempt, 1, 60, 0.1, one) == full_jitter(attempt, 1, 60, 0.1, other)
