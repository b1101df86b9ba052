"""Delays: within their bounds whatever the numbers, spread as jitter should, the same for a seed."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scrapy_ha.retry.backoff import BACKOFFS, JITTERS, after, decorrelated, draw, grown, interval

seconds = st.floats(0, 1e12)
attempts = st.one_of(st.integers(-5, 100), st.just(10**6), st.just(10**30))


@given(
    st.sampled_from(BACKOFFS), attempts, seconds, st.floats(1, 1e9), st.lists(seconds, min_size=1, max_size=5)
)
def test_growth_is_never_negative_and_never_an_error(
    kind: str, n: int, base: float, factor: float, steps: list[float]
) -> None:
    """Also where it is beyond what a float holds; and it never shrinks, but for steps."""
    one, other = grown(kind, n, base, factor, steps), grown(kind, n + 1, base, factor, steps)
    assert one >= 0
    assert kind == "steps" or one <= other


@given(st.sampled_from(JITTERS), seconds | st.just(float("inf")), seconds, seconds, st.integers())
def test_a_delay_is_within_its_bounds(jitter: str, delay: float, cap: float, floor: float, seed: int) -> None:
    """Never negative, never above the cap, never below the floor (unless that is above the cap)."""
    low, high = interval(jitter, delay, cap, floor)
    assert min(floor, cap) <= low <= draw((low, high), Random(seed)) <= high <= cap
    assert high <= max(delay, floor)


@given(seconds, seconds, st.floats(1, 1e9), seconds, seconds, st.integers())
def test_decorrelated_is_within_its_bounds(
    previous: float, base: float, factor: float, cap: float, floor: float, seed: int
) -> None:
    """The same, whatever the last wait was."""
    low, high = decorrelated(previous, base, factor, cap, floor)
    assert min(floor, cap) <= low <= draw((low, high), Random(seed)) <= high <= cap


@given(st.floats(0, 1e300), seconds, seconds, seconds, st.integers())
def test_never_before_the_server_asked(
    asked: float, base: float, cap: float, floor: float, seed: int
) -> None:
    """Jitter only upwards; within [0, cap]."""
    delay = after(asked, base, cap, floor, Random(seed))
    assert min(asked, cap) <= delay <= cap


@pytest.mark.parametrize(
    ("kind", "delays"),
    [
        ("fixed", [2, 2, 2, 2]),
        ("linear", [2, 4, 6, 8]),
        ("exponential", [2, 6, 18, 54]),
        ("steps", [1, 5, 5, 5]),
    ],
)
def test_growth(kind: str, delays: list[float]) -> None:
    """Base 2, factor 3."""
    assert [grown(kind, n, 2, 3, (1, 5)) for n in (1, 2, 3, 4)] == delays


@pytest.mark.parametrize(("jitter", "between"), [("none", (8, 8)), ("equal", (4, 8)), ("full", (0.1, 8))])
def test_jitter(jitter: str, between: tuple[float, float]) -> None:
    """Of a delay of 8 s; and after the cap: what is above it spreads as well."""
    assert interval(jitter, 8, 60, 0.1) == between
    assert interval(jitter, 1e9, 8, 0.1) == between


def test_what_failed_together_does_not_come_back_together() -> None:
    """200 requests, base 10 s, full jitter: over 8 s at least, at most a tenth in any 200 ms."""
    for seed in range(20):
        random = Random(seed)
        delays = sorted(draw(interval("full", 10, 60, 0.1), random) for _ in range(200))
        assert delays[-1] - delays[0] >= 8
        assert max(sum(one <= other < one + 0.2 for other in delays) for one in delays) <= 20
        assert abs(sum(delays) / 200 - 5) < 1


def test_retries_after_the_same_retry_after_spread_too() -> None:
    """All were told the same second; they come over the base that follows it."""
    random = Random(1)
    delays = sorted(after(7, 10, 3600, 0.1, random) for _ in range(200))
    assert delays[0] >= 7
    assert delays[-1] - delays[0] >= 8


def test_a_long_retry_after_is_not_made_much_longer() -> None:
    """By 30 s at most."""
    random = Random(1)
    delays = [after(3000, 1, 3600, 0.1, random) for _ in range(200)]
    assert 3025 < max(delays) <= 3030


def test_a_seed_gives_the_same_plan() -> None:
    """Nothing else is random."""
    one, other = Random(7), Random(7)
    assert [draw((0, 9), one) for _ in range(9)] == [draw((0, 9), other) for _ in range(9)]
