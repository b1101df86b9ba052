"""How much of the traffic retries may be.

Source: the retry budget of Twitter's Finagle (``RetryBudget``, 2016): a share of the first attempts
plus a small steady rate, so that a crawl of which only retries are left goes on. The deviation: an
empty bucket does not refuse, it says when. Whoever reserves has spent the token, so the times given
out are spread, and nobody has to ask twice.
"""

from __future__ import annotations

from dataclasses import dataclass

HORIZON = 3600.0
"""Seconds; no reservation is farther off. Debt beyond that is forgiven."""


@dataclass(frozen=True)
class BudgetRules:
    """The numbers of one crawl."""

    ratio: float = 0.2
    """Retries earned by each first attempt, at least 0."""
    rate: float = 3.0
    """Retries per second that each slot may always send, above 0; the whole crawl ten times that."""
    burst: float = 50.0
    """Retries that a slot may send at once after quiet; the whole crawl ten times that."""
    connections: float = 8.0
    """How many connections retries may keep busy, on average over a minute; above 0."""
    longest: float = 200.0
    """Seconds that a retry is expected to keep one busy at most, whatever the last attempt took: the
    process may have been stopped, or the machine asleep."""

    def of_slot(self, now: float) -> Bucket:
        return Bucket(self.burst, self.rate, now)

    def of_crawl(self, now: float) -> Bucket:
        return Bucket(10 * self.burst, 10 * self.rate, now)

    def of_connections(self, now: float) -> Bucket:
        """A bucket of connection seconds: a retry costs as many as it will take."""
        return Bucket(60 * self.connections, self.connections, now)


class Bucket:
    """A token bucket from which one can reserve ahead.

    Holds ``min(capacity, tokens + deposits + rate * seconds)``, and less than nothing when more
    was reserved than there was.

    Args:
        capacity: Most tokens it holds; so many it has at first.
        rate: Tokens per second that come by themselves, above 0.
        now: Seconds since the epoch.
    """

    __slots__ = ("at", "capacity", "rate", "tokens")

    def __init__(self, capacity: float, rate: float, now: float) -> None:
        self.capacity = capacity
        self.rate = rate
        self.tokens = capacity
        """As of :attr:`at`."""
        self.at = now

    def deposit(self, amount: float) -> None:
        """Add *amount* tokens, as far as they fit."""
        self.tokens = min(self.capacity, self.tokens + amount)

    def level(self, now: float) -> float:
        """Tokens at the time *now*; negative: reserved ahead."""
        return min(self.capacity, self.tokens + self.rate * max(0.0, now - self.at))

    def reserve(self, now: float, cost: float = 1.0) -> float:
        """Spend *cost* tokens.

        Returns:
            When they are there, epoch seconds: *now* or later, at most :data:`HORIZON` seconds.
        """
        left = max(self.level(now) - cost, -HORIZON * self.rate)
        self.tokens, self.at = left, now
        return now if left >= 0 else min(now - left / self.rate, now + HORIZON)

    def set(self, tokens: float, at: float) -> None:
        """Hold *tokens* as of *at*, cut to what it can hold."""
        self.tokens = min(self.capacity, max(tokens, -HORIZON * self.rate))
        self.at = at

    def full_at(self) -> float:
        """When nothing will be missing if nobody reserves, epoch seconds."""
        return self.at + (self.capacity - self.tokens) / self.rate
