"""Closed, open, half-open, dead; what was sent before the last change says nothing."""

from __future__ import annotations

from random import Random

import pytest

from scrapy_ha.retry.breaker import JITTER, Breaker, BreakerRules

RULES = BreakerRules()
RANDOM = Random(1)


def fail(breaker: Breaker, now: float, sent_at: float | None = None, connect: bool = False) -> bool:
    return breaker.failed(RULES, now if sent_at is None else sent_at, now, connect, RANDOM)


def opened(now: float = 0.0) -> Breaker:
    breaker = Breaker()
    for _ in range(5):
        fail(breaker, now, connect=True)
    assert breaker.is_open(now)
    return breaker


def test_not_below_the_minimum() -> None:
    """Three early failures write nobody off (R7): F F F S, then mixed."""
    breaker = Breaker()
    for outcome in "FFFSFSFSFFSSFFSFSFF":
        if outcome == "F":
            fail(breaker, 1)
        else:
            breaker.succeeded(RULES, 1, 1)
        assert breaker.is_closed
    fail(breaker, 1)
    assert breaker.is_open(1)


def test_all_of_twenty_fail() -> None:
    """19 do not open it, 20 do."""
    breaker = Breaker()
    for _ in range(19):
        fail(breaker, 1)
        assert breaker.limit(1) is None
    fail(breaker, 1)
    assert breaker.limit(1) == 0


def test_below_the_rate_it_stays_closed() -> None:
    """Nine of twenty, for ever; ten are enough."""
    breaker = Breaker()
    for number in range(1000):
        if number % 20 < 9:
            fail(breaker, number)
        else:
            breaker.succeeded(RULES, number, number)
        assert breaker.is_closed
    fail(breaker, 1000)
    assert breaker.is_closed, "nine of the last twenty are failures still"


def test_consecutive_failures_to_connect() -> None:
    """Five in a row; anything else between them starts the count anew."""
    breaker = Breaker()
    for _ in range(4):
        fail(breaker, 1, connect=True)
    fail(breaker, 1)
    for _ in range(4):
        fail(breaker, 1, connect=True)
    assert breaker.is_closed
    fail(breaker, 1, connect=True)
    assert breaker.is_open(1)


def test_cooldown_doubles_to_its_cap_with_jitter_upwards() -> None:
    """30, 60, 120, … 900, 900 seconds, each up to a fifth longer."""
    breaker, rules = opened(), BreakerRules(deadline=0)
    now = 0.0
    for cooldown in [30, 60, 120, 240, 480, 900, 900, 900]:
        assert cooldown <= breaker.until - now <= cooldown * (1 + JITTER)
        assert breaker.limit(breaker.until - 0.001) == 0
        now = breaker.until
        assert breaker.limit(now) == 1
        assert breaker.failed(rules, now, now, True, RANDOM)


def test_what_was_on_its_way_changes_nothing() -> None:
    """Late failures and successes of requests sent before it opened, or before it closed again."""
    breaker = opened(10)
    until = breaker.until
    breaker.succeeded(RULES, 9, 11)
    assert not fail(breaker, 12, sent_at=9)
    assert not fail(breaker, until + 1, sent_at=9)
    assert breaker.until == until
    breaker.succeeded(RULES, until, until + 2)
    assert breaker.is_closed
    for _ in range(20):
        fail(breaker, until + 3, sent_at=until + 1, connect=True)
    assert breaker.is_closed


def test_success_closes_with_nothing_held_against_it() -> None:
    """Four failures to connect after it closed do not open it."""
    breaker = opened()
    now = breaker.until
    breaker.succeeded(RULES, now, now + 1)
    for _ in range(4):
        fail(breaker, now + 2, connect=True)
    assert breaker.is_closed
    fail(breaker, now + 2, connect=True)
    assert breaker.until - (now + 2) <= RULES.cooldown * (1 + JITTER)


def test_one_probe_at_a_time_and_a_lost_one_is_replaced() -> None:
    """While it is on its way there is no other; one that says nothing, or nothing for long, makes room."""
    breaker = opened()
    now = breaker.until
    assert not breaker.probing(RULES, now)
    breaker.sent(now)
    assert breaker.probing(RULES, now + 1)
    breaker.undecided(now)
    assert not breaker.probing(RULES, now + 1)
    breaker.sent(now + 2)
    assert breaker.probing(RULES, now + 1 + RULES.patience)
    assert not breaker.probing(RULES, now + 2 + RULES.patience)


@pytest.mark.parametrize("deadline", [0.0, 3600.0])
def test_dead_by_evidence_only(deadline: float) -> None:
    """Only a probe that fails after the deadline makes it dead, for a while; then it is probed anew."""
    breaker, rules = opened(), BreakerRules(deadline=deadline)
    now = 100_000.0
    assert not breaker.is_dead(now)
    assert breaker.limit(now) == 1
    assert breaker.failed(rules, now, now, True, RANDOM)
    assert breaker.is_dead(now) is bool(deadline)
    if deadline:
        assert breaker.limit(now) is None
        assert breaker.limit(breaker.until) == 1
        assert not breaker.is_dead(breaker.until)
        breaker.succeeded(rules, breaker.until, breaker.until)
        assert breaker.is_closed


def test_a_minimum_above_the_window_is_the_window() -> None:
    """Otherwise it would never open."""
    breaker, rules = Breaker(), BreakerRules(window=4, minimum=100)
    for _ in range(4):
        breaker.failed(rules, 1, 1, False, RANDOM)
    assert breaker.is_open(1)
