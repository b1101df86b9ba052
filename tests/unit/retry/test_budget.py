"""A token bucket that says when instead of no."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scrapy_ha.retry.budget import HORIZON, Bucket, BudgetRules


def test_an_empty_bucket_says_when() -> None:
    """Reservations beyond what it holds are spread by its rate, each at a time of its own."""
    bucket = Bucket(2, 0.5, 100)
    assert [bucket.reserve(100) for _ in range(5)] == [100, 100, 102, 104, 106]
    assert bucket.reserve(110) == 110


def test_deposits_are_capped() -> None:
    """What does not fit is lost: a long healthy crawl saves up no storm."""
    bucket = Bucket(10, 1, 0)
    for _ in range(1000):
        bucket.deposit(0.2)
    assert bucket.level(0) == 10
    for _ in range(10):
        bucket.reserve(0)
    for _ in range(5):
        bucket.deposit(0.2)
    assert bucket.level(0) == pytest.approx(1)


def test_nothing_is_farther_off_than_the_horizon() -> None:
    """Debt beyond an hour is forgiven."""
    bucket = Bucket(1, 1, 0)
    assert max(bucket.reserve(0) for _ in range(5000)) == HORIZON
    assert bucket.reserve(HORIZON / 2, cost=1e300) == HORIZON * 1.5


def test_retries_that_take_long_are_spread() -> None:
    """With 8 connections for retries of 180 s each, eight go in three minutes after those of a minute."""
    bucket = BudgetRules(connections=8).of_connections(0)
    times = [bucket.reserve(0, 180) for _ in range(40)]
    for start in range(0, 600, 60):
        assert sum(start + 60 <= at < start + 240 for at in times) <= 8
    quick = BudgetRules(connections=8).of_connections(0)
    assert [quick.reserve(0, 0.001) for _ in range(1000)] == [0] * 1000


@given(
    st.lists(
        st.tuples(st.sampled_from(["reserve", "deposit"]), st.floats(0, 100), st.floats(0, 50)), max_size=60
    )
)
def test_never_more_than_was_earned(steps: list[tuple[str, float, float]]) -> None:
    """In any stretch: what is due by its end is no more than capacity, deposits and time have given."""
    bucket, now, earned, due = Bucket(10, 2, 0), 0.0, 10.0, []
    for kind, wait, cost in steps:
        now += wait
        earned += 2 * wait
        if kind == "deposit":
            bucket.deposit(cost)
            earned += cost
        else:
            at = bucket.reserve(now, cost)
            assert now <= at <= now + HORIZON
            due.append((at, cost))
        assert bucket.level(now) <= 10
        assert sum(cost for at, cost in due if at <= now) <= earned + 1e-6
