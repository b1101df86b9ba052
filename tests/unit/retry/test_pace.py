"""Half the rate, once per round, and slowly back."""

from __future__ import annotations

import itertools

import pytest

from scrapy_ha.retry.pace import LEAST_REQUESTS, Meter, Pace, PaceRules

RULES = PaceRules()


def test_one_cut_per_round() -> None:
    """Refusals of requests that were on their way at the last cut cut nothing."""
    pace = Pace(RULES, 8.0, 100)
    assert pace.delay(RULES, 100) == pytest.approx(1 / 4)
    for sent_at in (90, 95, 100):
        assert not pace.throttled(RULES, sent_at, 100.5)
    assert pace.throttled(RULES, 100.5, 101)
    assert pace.delay(RULES, 101) == pytest.approx(1 / (4 + 8 / 300) * 2, rel=1e-6)


def test_recovers_additively_and_then_is_gone() -> None:
    """The same step every second; from one half it takes half the time of recovery."""
    pace = Pace(RULES, 10.0, 0)
    rates = [pace.rate(RULES, second) for second in range(150)]
    assert {round(b - a, 9) for a, b in itertools.pairwise(rates)} == {round(10 / 300, 9)}
    assert pace.recovers_at(RULES) == pytest.approx(150)
    assert pace.delay(RULES, 149) > 0
    assert pace.delay(RULES, 150.001) == 0


def test_never_slower_than_the_floor() -> None:
    """However often it is refused, and however slow it was measured."""
    pace = Pace(RULES, 5.0, 0)
    for now in range(1, 100):
        pace.throttled(RULES, now - 0.5, now)
        assert pace.delay(RULES, now) <= RULES.max_delay
    assert Pace(RULES, 0.0, 0).delay(RULES, 0) <= RULES.max_delay


def test_finds_the_rate_a_host_can_take() -> None:
    """A host that takes 2 requests a second, hit with 100: refused about once in ten by the end."""
    pace, now, refused, sent = Pace(RULES, 100.0, 0), 0.0, 0, 0
    allowance, last = 2.0, 0.0
    while now < 600:
        now += pace.delay(RULES, now) or 0.01
        allowance, last = min(2.0, allowance + 2 * (now - last)), now
        ok = allowance >= 1
        allowance -= ok
        if not ok:
            pace.throttled(RULES, now, now + 0.01)
        if now > 60:
            sent += 1
            refused += not ok
    assert sent > 0.6 * 2 * 540
    assert refused < 0.15 * sent


def test_the_meter_counts_what_was_sent_lately() -> None:
    """Over one to two spans, and if it was not too little."""
    meter = Meter(0, span=10)
    for tenth in range(300):
        meter.add("a", tenth / 10)
    for _ in range(LEAST_REQUESTS - 1):
        meter.add("b", 30)
    assert meter.rate("a", 30) == pytest.approx(10, rel=0.05)
    assert meter.rate("b", 30) is None
    meter.add("b", 30)
    assert meter.rate("b", 30) == pytest.approx(LEAST_REQUESTS / 10, rel=0.05)
    assert meter.rate("c", 30) is None
    assert meter.rate("a", 100) is None
