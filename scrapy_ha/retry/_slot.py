"""What is known of one slot with trouble, and how it is stored.

Stored as JSON with a version. The bytes may come from anywhere: what does not decode raises
:class:`~scrapy_ha.errors.BadRecord` and nothing else, and what is out of range is cut to what the crawl's
own numbers could have given.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from typing import Any

from scrapy_ha.errors import BadRecord
from scrapy_ha.retry.breaker import JITTER, Breaker, BreakerRules
from scrapy_ha.retry.budget import Bucket, BudgetRules
from scrapy_ha.retry.pace import Pace, PaceRules

VERSION = 1

LIMIT = 4096
"""Bytes of a record at most."""

IDLE = 1800.0
"""Seconds after which a slot is forgotten to which nothing happens any more."""

HOLD_LIMIT = 7 * 86400.0
"""Seconds; no hold read from a store is believed to be longer."""

RATE_LIMIT = 1e6
"""Requests per second; no pace read from a store is believed to be faster."""


@dataclass(frozen=True)
class SlotRules:
    """The numbers of one crawl. ``None``: no breakers; the pace is never cut."""

    budget: BudgetRules
    breaker: BreakerRules | None
    pace: PaceRules | None


@dataclass(slots=True)
class SlotRecord:
    """A slot with trouble; times in epoch seconds."""

    budget: Bucket
    breaker: Breaker = field(default_factory=Breaker)
    hold: float = 0.0
    """``Retry-After``: nothing before this time."""
    pace: Pace | None = None
    forced: str | None = None
    """What the breaker is by hand."""
    failing_since: float = 0.0
    """The first failure to connect after the last answer; 0: none. Not stored."""
    took: float = 0.0
    """Seconds that the last failure took. Not stored."""
    last: float = 0.0
    """When something happened to it. Not stored."""
    wake: float = 0.0
    """When it is to be looked at again; 0: no time. Not stored."""
    told: int | None = None
    """The limit that was last announced. Not stored."""

    def limit(self, now: float) -> int | None:
        """As :meth:`scrapy_ha.typing.Gate.limit`."""
        if self.forced == "open" or self.hold > now:
            return 0
        return None if self.forced else self.breaker.limit(now)

    def next_wake(self, rules: SlotRules, now: float) -> float | None:
        """When something changes by itself, after *now*; infinite: never; ``None``: the slot is healthy."""
        full_at = self.budget.full_at()
        times = [self.hold, self.breaker.until, full_at]
        if self.pace is not None and rules.pace is not None:
            recovers_at = self.pace.recovers_at(rules.pace)
            if recovers_at <= now:
                self.pace = None
            times.append(recovers_at)
        if self.forced is None:
            stale = max(self.last, self.hold, self.breaker.until) + IDLE
            at_rest = self.pace is None and self.hold <= now and full_at <= now
            well = self.breaker.is_closed and not self.breaker.outcomes and not self.failing_since
            if stale <= now or (well and at_rest):
                return None
            times.append(stale)
        return min((time for time in times if time > now), default=math.inf)

    def merge(self, other: SlotRecord, now: float) -> None:
        """Take in what *other* knows of the same slot; in which order many are merged does not matter."""
        self.last = now
        self.hold = max(self.hold, other.hold)
        self.forced = other.forced or self.forced
        if other.breaker.rank > self.breaker.rank:
            self.breaker = other.breaker
        if other.pace is not None and (self.pace is None or other.pace.rank > self.pace.rank):
            self.pace = other.pace
        if other.budget.level(now) < self.budget.level(now):
            self.budget = other.budget

    def encode(self) -> bytes:
        breaker, pace = self.breaker, self.pace
        return _encode(
            hold=self.hold,
            forced=self.forced,
            outcomes=[breaker.outcomes, breaker.results, breaker.consecutive],
            breaker=[breaker.at, breaker.until, breaker.since, breaker.cooldown, breaker.dead],
            pace=pace and [pace.cut_at, pace.rate_at_cut, pace.peak],
            budget=[self.budget.tokens, self.budget.at],
        )

    @classmethod
    def decode(cls, data: bytes, rules: SlotRules, now: float) -> SlotRecord:
        """The slot as :meth:`encode` stored it.

        Raises:
            BadRecord: It did not.
        """
        parts = _decode(data)
        forced = parts.get("forced")
        return cls(
            budget=_bucket(rules.budget.of_slot(now), parts, now),
            breaker=Breaker() if rules.breaker is None else _breaker(rules.breaker, parts, now),
            hold=min(_number(parts.get("hold", 0.0)), now + HOLD_LIMIT),
            pace=None if rules.pace is None or "pace" not in parts else _pace(rules.pace, parts, now),
            forced=forced if forced in ("open", "closed") else None,
        )


def encode_bucket(bucket: Bucket) -> bytes:
    return _encode(budget=[bucket.tokens, bucket.at])


def merge_bucket(bucket: Bucket, data: bytes, now: float) -> None:
    """Have in *bucket* no more than in the one that :func:`encode_bucket` stored.

    Raises:
        BadRecord: It did not.
    """
    stored = _bucket(Bucket(bucket.capacity, bucket.rate, now), _decode(data), now)
    if stored.level(now) < bucket.level(now):
        bucket.set(stored.tokens, stored.at)


def _bucket(bucket: Bucket, parts: dict[str, Any], now: float) -> Bucket:
    tokens, at = _numbers(parts.get("budget"), 2)
    bucket.set(tokens, min(at, now))
    return bucket


def _breaker(rules: BreakerRules, parts: dict[str, Any], now: float) -> Breaker:
    breaker = Breaker()
    outcomes = parts.get("outcomes")
    if not isinstance(outcomes, list) or len(outcomes) != 3 or any(type(n) is not int for n in outcomes):
        raise BadRecord("a record of a slot holds no outcomes")
    breaker.outcomes = outcomes[0] & ((1 << rules.window) - 1)
    breaker.results = max(min(outcomes[1], rules.window), breaker.outcomes.bit_length())
    breaker.consecutive = max(0, min(outcomes[2], rules.consecutive))
    at, until, since, cooldown, dead = _numbers(parts.get("breaker"), 5)
    breaker.at, breaker.since = min(at, now), min(since, now)
    if until > 0:
        breaker.until = min(until, now + rules.max_cooldown * (1 + JITTER))
        breaker.cooldown = min(max(cooldown, rules.cooldown), rules.max_cooldown)
        breaker.dead = bool(dead)
    return breaker


def _pace(rules: PaceRules, parts: dict[str, Any], now: float) -> Pace:
    cut_at, rate, peak = _numbers(parts["pace"], 3)
    pace = Pace(rules, min(peak, RATE_LIMIT), min(cut_at, now))
    pace.rate_at_cut = min(max(rate, 1 / rules.max_delay), pace.peak)
    return pace


def _encode(**parts: Any) -> bytes:
    kept = {name: value for name, value in parts.items() if value}
    return json.dumps({"v": VERSION, **kept}, separators=(",", ":")).encode()


def _decode(data: bytes) -> dict[str, Any]:
    try:
        record = json.loads(data) if len(data) <= LIMIT else None
    except (ValueError, RecursionError, TypeError) as error:
        raise BadRecord("a record of a slot is not JSON") from error
    if not isinstance(record, dict) or record.get("v") != VERSION:
        raise BadRecord(f"not a record of a slot of version {VERSION}")
    return record


def _numbers(value: Any, count: int) -> list[float]:
    if not isinstance(value, list) or len(value) != count:
        raise BadRecord(f"a record of a slot needs {count} numbers")
    return [_number(one) for one in value]


def _number(value: Any) -> float:
    try:
        if isinstance(value, (int, float)) and math.isfinite(value):
            return float(value)
    except OverflowError:
        pass
    raise BadRecord("a record of a slot holds something that is no number")
