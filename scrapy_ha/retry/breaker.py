"""When a host is sick, and how it is found to be well again.

Source: Michael Nygard, «Release It!» (circuit breaker); the rate over a window of outcomes with a
minimum as in resilience4j, the count of consecutive failures as in pybreaker. Deviations: exactly one
probe when half-open, a cool-down that doubles, and half-open is no state that a timer has to bring
about: it is an open breaker whose cool-down is over.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

JITTER = 0.2
"""Share of a cool-down that it may be longer, so that many do not end at once."""


@dataclass(frozen=True)
class BreakerRules:
    """The numbers of one crawl; seconds throughout."""

    rate: float = 0.5
    """Opens when at least this share of the window failed, in (0, 1]."""
    window: int = 20
    """Outcomes looked at, at least 1."""
    minimum: int = 20
    """Outcomes there must be before :attr:`rate` is looked at; :attr:`window` is enough."""
    consecutive: int = 5
    """Opens after so many failures to connect in a row, at least 1."""
    cooldown: float = 30.0
    """How long it is open at first, above 0."""
    max_cooldown: float = 900.0
    """How long at most, at least :attr:`cooldown`; each failed probe doubles it up to here."""
    deadline: float = 3600.0
    """A probe that fails so long after the slot first opened makes it dead; 0: none does."""
    patience: float = 200.0
    """A probe of which nothing was heard for so long is lost, and another one may go."""


class Breaker:
    """Closed, open, half-open or dead, for one slot.

    What was sent before it last opened or closed changes nothing. While closed, outcomes are looked at.
    Once open, a success of any request closes it; a failure of one sent when half-open opens it anew, for
    twice as long. A dead one asks for a probe again after ``max_cooldown``.
    """

    __slots__ = ("at", "consecutive", "cooldown", "dead", "outcomes", "probe_at", "results", "since", "until")

    def __init__(self) -> None:
        self._reset(0.0)

    def _reset(self, now: float) -> None:
        self.outcomes = 0
        """Bits, the youngest lowest: 1 for a failure."""
        self.results = 0
        """How many of them there are."""
        self.consecutive = 0
        self.at = now
        """When it last opened or closed, epoch seconds."""
        self.until = 0.0
        """End of the cool-down; 0: closed."""
        self.since = 0.0
        """When it first opened."""
        self.cooldown = 0.0
        """Seconds, without the jitter."""
        self.dead = False
        self.probe_at = 0.0
        """When the probe went; 0: none is on its way."""

    @property
    def rank(self) -> tuple[float, ...]:
        """Of two breakers of one slot, seen by different workers, the higher one holds.

        That is the one that opened or closed later; of two that are alike in that, the one that is open
        longer, then the one that saw more.
        """
        return (self.at, self.until, self.consecutive, self.results, self.outcomes)

    @property
    def is_closed(self) -> bool:
        return not self.until

    def is_open(self, now: float) -> bool:
        """Nothing may be sent."""
        return now < self.until and not self.dead

    def is_half_open(self, now: float) -> bool:
        """One request may be on its way."""
        return bool(self.until) and now >= self.until

    def is_dead(self, now: float) -> bool:
        """What waits for this slot is to be given up."""
        return self.dead and now < self.until

    def limit(self, now: float) -> int | None:
        """As :meth:`scrapy_ha.typing.Gate.limit`."""
        if not self.until or self.is_dead(now):
            return None
        return 0 if now < self.until else 1

    def probing(self, rules: BreakerRules, now: float) -> bool:
        """Half-open, and the probe is on its way."""
        return self.is_half_open(now) and self.until <= self.probe_at and now < self.probe_at + rules.patience

    def sent(self, now: float) -> None:
        """A request goes to the downloader; when half-open, it is the probe."""
        if self.is_half_open(now):
            self.probe_at = now

    def succeeded(self, rules: BreakerRules, sent_at: float, now: float) -> None:
        """The host answered a request that was sent at *sent_at*."""
        if self.is_closed:
            if sent_at >= self.at:
                self._note(rules, 0)
                self.consecutive = 0
        elif sent_at > self.at:
            self.close(now)

    def failed(self, rules: BreakerRules, sent_at: float, now: float, connect: bool, random: Random) -> bool:
        """A request that was sent at *sent_at* failed; *connect*: no connection came about.

        Returns:
            Whether it was the probe.
        """
        if self.is_closed:
            if sent_at < self.at:
                return False
            self._note(rules, 1)
            self.consecutive = self.consecutive + 1 if connect else 0
            if self.consecutive >= rules.consecutive or self._rate_reached(rules):
                self.since = now
                self._open(rules, rules.cooldown, now, random)
            return False
        if sent_at < self.until or not self.is_half_open(now):
            return False
        self.dead = 0 < rules.deadline <= now - self.since
        longer = rules.max_cooldown if self.dead else min(2 * self.cooldown, rules.max_cooldown)
        self._open(rules, longer, now, random)
        return True

    def undecided(self, sent_at: float) -> None:
        """A request ended in a way that says nothing of the host: was it the probe, another may go."""
        if self.until <= sent_at:
            self.probe_at = 0.0

    def close(self, now: float) -> None:
        """Closed, with nothing held against the host."""
        self._reset(now)

    def _note(self, rules: BreakerRules, failure: int) -> None:
        self.outcomes = (self.outcomes << 1 | failure) & ((1 << rules.window) - 1)
        self.results = min(self.results + 1, rules.window)

    def _rate_reached(self, rules: BreakerRules) -> bool:
        enough = self.results >= min(rules.minimum, rules.window)
        return enough and self.outcomes.bit_count() >= rules.rate * self.results

    def _open(self, rules: BreakerRules, cooldown: float, now: float, random: Random) -> None:
        self.at = now
        self.cooldown = cooldown
        self.until = now + cooldown * (1 + JITTER * random.random())
        self.probe_at = 0.0
