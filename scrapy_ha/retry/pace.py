"""How fast a host that asks for patience is sent requests.

Source: additive increase, multiplicative decrease; Chiu and Jain, «Analysis of the Increase and
Decrease Algorithms for Congestion Avoidance» (1989), with one cut per round as TCP does (Jacobson,
1988): requests that were on their way when the pace was cut tell nothing about the new pace.
"""

from __future__ import annotations

from dataclasses import dataclass

LEAST_SPAN = 1.0
"""Seconds; over less than that no rate is measured."""
LEAST_REQUESTS = 5
"""Of fewer there is none to cut."""


@dataclass(frozen=True)
class PaceRules:
    """The numbers of one crawl."""

    cut: float = 0.5
    """What is left of the rate when the host asks for patience, in (0, 1)."""
    recovery: float = 300.0
    """Seconds in which the rate would grow from nothing to what it was at first, above 0."""
    max_delay: float = 60.0
    """Seconds between two requests at the slowest, above 0."""


class Pace:
    """The rate of one slot, in requests per second, from its first cut until it has recovered.

    ``rate(t) = rate(cut) + peak * (t - cut) / recovery``, up to *peak*, the rate measured when the
    host first asked for patience.
    """

    __slots__ = ("cut_at", "peak", "rate_at_cut")

    def __init__(self, rules: PaceRules, measured: float, now: float) -> None:
        self.peak = max(measured, 1 / rules.max_delay)
        self.rate_at_cut = self._less(rules, self.peak)
        self.cut_at = now

    def throttled(self, rules: PaceRules, sent_at: float, now: float) -> bool:
        """The host refused a request that was sent at *sent_at*; whether that cut the rate."""
        if sent_at <= self.cut_at:
            return False
        self.rate_at_cut = self._less(rules, self.rate(rules, now))
        self.cut_at = now
        return True

    def rate(self, rules: PaceRules, now: float) -> float:
        """Requests per second."""
        grown = self.peak * max(0.0, now - self.cut_at) / rules.recovery
        return min(self.peak, self.rate_at_cut + grown)

    def delay(self, rules: PaceRules, now: float) -> float:
        """Seconds between two requests; 0 when the slot has recovered."""
        rate = self.rate(rules, now)
        return 0.0 if rate >= self.peak else min(1 / rate, rules.max_delay)

    def recovers_at(self, rules: PaceRules) -> float:
        """When it is as fast as before, epoch seconds."""
        return self.cut_at + (1 - self.rate_at_cut / self.peak) * rules.recovery

    @property
    def rank(self) -> tuple[float, ...]:
        """Of two paces of one slot, seen by different workers, the higher one holds: the one cut later."""
        return (self.cut_at, -self.rate_at_cut, self.peak)

    def _less(self, rules: PaceRules, rate: float) -> float:
        return max(rules.cut * rate, 1 / rules.max_delay)


class Meter:
    """Counts the requests of every slot over the last *span* to twice *span* seconds.

    Memory: one number per slot that was sent a request in that time.
    """

    __slots__ = ("_before", "_now", "_span", "_start", "_turn")

    def __init__(self, now: float, span: float = 3.0) -> None:
        self._span = span
        self._before: dict[str, int] = {}
        self._now: dict[str, int] = {}
        self._start = now
        """Since when :attr:`_before` counts."""
        self._turn = now + span
        """When :attr:`_now` becomes :attr:`_before`."""

    def add(self, slot: str, now: float) -> None:
        if now >= self._turn:
            self._turn_over(now)
        self._now[slot] = self._now.get(slot, 0) + 1

    def rate(self, slot: str, now: float) -> float | None:
        """Requests per second; ``None``: there were too few to tell."""
        if now >= self._turn:
            self._turn_over(now)
        count = self._before.get(slot, 0) + self._now.get(slot, 0)
        return count / max(now - self._start, LEAST_SPAN) if count >= LEAST_REQUESTS else None

    def _turn_over(self, now: float) -> None:
        late = now >= self._turn + self._span
        self._before = {} if late else self._now
        self._start = now if late else self._turn - self._span
        self._now = {}
        self._turn = (now if late else self._turn) + self._span
