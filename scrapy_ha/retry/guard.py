"""What keeps requests from hosts that cannot take them now: holds, breakers, pace, budget, outage."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from itertools import islice
from random import Random
from typing import TYPE_CHECKING, Any

from scrapy_ha.errors import BadRecord
from scrapy_ha.retry._slot import SlotRecord, SlotRules, encode_bucket, merge_bucket
from scrapy_ha.retry.breaker import BreakerRules
from scrapy_ha.retry.classify import FailureClass
from scrapy_ha.retry.outage import Outage, OutageRules
from scrapy_ha.retry.pace import Meter, Pace, PaceRules

if TYPE_CHECKING:
    from scrapy_ha.retry.budget import BudgetRules
    from scrapy_ha.typing import Clock

CONNECT: frozenset[str] = frozenset(
    {
        FailureClass.DNS,
        FailureClass.REFUSED,
        FailureClass.CONNECTION,
        FailureClass.TLS,
        FailureClass.TIMEOUT,
        FailureClass.PROXY,
    }
)
"""Nothing came back: these say that the host, or our own network, is down."""

SICK: frozenset[str] = CONNECT | {
    FailureClass.TRUNCATED,
    FailureClass.PROTOCOL,
    FailureClass.SERVER,
    FailureClass.THROTTLED,
}
"""Failures of the host; :attr:`~FailureClass.THROTTLED` only when it did not say until when."""

ANSWERED: frozenset[str] = frozenset(
    {FailureClass.SERVER, FailureClass.THROTTLED, FailureClass.TRUNCATED, FailureClass.PROTOCOL}
)
"""Those of them that show that the network is up: the host sent something."""
OF_PAGES: frozenset[str] = ANSWERED | {FailureClass.CONNECTION}
"""Those that may be of one page, and not of its host."""

UNTOLD: frozenset[str] = frozenset({FailureClass.OTHER, FailureClass.PERMANENT})
"""These say nothing about the host. All other classes, a project's own too, say that it is well."""

PREFIX = "retry:slot:"
CRAWL = "retry:crawl"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a failure means for the request that met it."""

    counts: bool
    """It uses up an attempt. Not so that of a probe, nor one in an outage."""


COUNTS = Verdict(True)
COUNTS_NOT = Verdict(False)


def _ignore(*_: Any) -> None:
    pass


class Guard:
    """A :class:`~scrapy_ha.typing.Gate` that learns from how requests end.

    Only slots with trouble have a record; for a healthy one each call costs a look-up. A record goes when
    the slot is healthy again, or when nothing happens to it for 1800 seconds. When there are
    *max_slots*, one that waits for little is forgotten for a new one, and :attr:`forgotten` counts it.

    Answers follow from the clock alone. :meth:`tick` only makes those known that changed by themselves,
    through :attr:`changed`, and is to be called at :meth:`next_event`.

    Args:
        breaker: ``None``: no breakers.
        pace: ``None``: the pace is never cut.
        outage: ``None``: an outage is never seen.
    """

    def __init__(
        self,
        clock: Clock,
        random: Random,
        *,
        budget: BudgetRules,
        breaker: BreakerRules | None,
        pace: PaceRules | None,
        outage: OutageRules | None,
        max_slots: int = 100_000,
    ) -> None:
        now = clock.time()
        self.changed: Callable[[str | None], None] = _ignore
        """See :attr:`scrapy_ha.typing.Gate.changed`."""
        self.observe: Callable[[str, str | None], None] = _ignore
        """Called with ``opened``, ``closed``, ``dead`` or ``slowed`` and the slot, or with ``outage``
        or ``outage_over`` and ``None``, after the fact; for the log and the stats."""
        self.forgotten = 0
        """Slots whose record was given up for want of room."""
        self.bad_records = 0
        """Records that :meth:`restore` did not understand."""
        self._clock = clock
        self._random = random
        self._rules = SlotRules(budget, breaker, pace)
        self._outage = Outage(outage)
        self._max_slots = max_slots
        self._meter = Meter(now)
        self._slots: dict[str, SlotRecord] = {}
        self._crawl = budget.of_crawl(now)
        self._connections = budget.of_connections(now)
        self._wakes: list[tuple[float, str]] = []
        """A heap; entries that differ from the slot's own :attr:`SlotRecord.wake` are stale."""
        self._dirty: set[str] = set()
        self._crawl_dirty = False
        self._open_told = True

    def __len__(self) -> int:
        """Slots with trouble."""
        return len(self._slots)

    # What the scheduler asks

    def is_open(self) -> bool:
        return self._outage.allows(self._clock.time())

    def limit(self, slot: str) -> int | None:
        record = self._slots.get(slot)
        return None if record is None else record.limit(self._clock.time())

    def taken(self, slot: str) -> None:
        now = self._clock.time()
        self._outage.taken(now)
        self._announce_open(now)
        if (record := self._slots.get(slot)) is not None:
            record.last = now

    # What others ask

    @property
    def in_outage(self) -> bool:
        """The crawl is paused because the network is down."""
        return self._outage.on

    def admits(self, slot: str) -> bool:
        """Whether a request may be sent now, where no scheduler asks :meth:`limit`.

        While a probe is on its way, none may. While one was handed out but waits for something itself,
        such as ``robots.txt``, that may be sent. Call :meth:`taken` for what is sent.
        """
        now = self._clock.time()
        if not self._outage.allows(now) and not self._outage.is_reserved:
            return False
        record = self._slots.get(slot)
        if record is None or (limit := record.limit(now)) is None:
            return True
        return limit > 0 and not (self._rules.breaker and record.breaker.probing(self._rules.breaker, now))

    def free_at(self, slot: str) -> float:
        """Epoch seconds before which no request of *slot* may be sent; 0: none stands in the way now.

        A lower bound: when it has come, ask again.
        """
        now = self._clock.time()
        at = self._outage.free_at(now)
        if (record := self._slots.get(slot)) is None:
            return at
        if record.hold > now:
            at = max(at, record.hold)
        rules = self._rules.breaker or BreakerRules()
        if record.forced == "open":
            return max(at, now + rules.cooldown)
        if record.forced is None:
            if record.breaker.is_open(now):
                at = max(at, record.breaker.until)
            elif record.breaker.probing(rules, now):
                at = max(at, now + rules.cooldown)
        return at

    def is_dead(self, slot: str) -> bool:
        """Whether what waits for *slot* is to be given up without being sent."""
        record = self._slots.get(slot)
        return record is not None and not record.forced and record.breaker.is_dead(self._clock.time())

    def state(self, slot: str) -> str:
        """Of the breaker: ``closed``, ``open``, ``half-open`` or ``dead``."""
        record = self._slots.get(slot)
        if record is None or record.forced:
            return "open" if record is not None and record.forced == "open" else "closed"
        now = self._clock.time()
        if record.breaker.is_dead(now):
            return "dead"
        return {None: "closed", 0: "open", 1: "half-open"}[record.breaker.limit(now)]

    def delay_of(self, slot: str) -> float:
        """The least seconds between two requests of *slot* at this moment; 0: its pace is not cut."""
        record = self._slots.get(slot)
        if record is None or record.pace is None or self._rules.pace is None:
            return 0.0
        return record.pace.delay(self._rules.pace, self._clock.time())

    # What the middleware reports

    def sent(self, slot: str, first: bool) -> None:
        """A request of *slot* goes to the downloader; *first*: it is no retry."""
        now = self._clock.time()
        self._meter.add(slot, now)
        self._outage.sent(now)
        record = self._slots.get(slot)
        if record is not None:
            record.breaker.sent(now)
        if not first:
            return
        ratio = self._rules.budget.ratio
        if self._crawl.tokens < self._crawl.capacity:
            self._crawl.deposit(ratio)
            self._crawl_dirty = True
        if record is not None:
            record.budget.deposit(ratio)
            self._dirty.add(slot)

    def heard(self, slot: str, sent_at: float) -> None:
        """Something came back for a request that was sent at *sent_at*, whatever it says.

        To be called first of all: :meth:`succeeded` or :meth:`failed` need not follow, as others may keep
        the response to themselves.
        """
        self._answered(slot, self._clock.time())
        if (record := self._slots.get(slot)) is not None:
            record.breaker.undecided(sent_at)

    def unsent(self, slot: str, sent_at: float | None = None) -> None:
        """A request ended of which nothing went out: it was dropped, or answered out of a cache.

        Args:
            sent_at: When :meth:`sent` was told of it; ``None``: it was not.
        """
        now = self._clock.time()
        self._outage.unsent(sent_at, now)
        self._announce_open(now)
        if sent_at is not None and (record := self._slots.get(slot)) is not None:
            record.breaker.undecided(sent_at)

    def succeeded(self, slot: str, sent_at: float) -> None:
        """The host answered, as it should, a request that was sent at *sent_at*."""
        now = self._clock.time()
        self._answered(slot, now)
        if (record := self._slots.get(slot)) is not None:
            self._is_well(slot, record, sent_at, now)

    def failed(self, slot: str, cls: str, sent_at: float, again: bool = False) -> Verdict:
        """A request that was sent at *sent_at* failed. If it was refused until a time: :meth:`hold` first.

        Args:
            cls: A failure class, or one of the project's own.
            again: It failed before. When the host can be reached, that says more of the page than of the
                host, so a closed breaker does not look at it: some broken pages, tried three times each, do
                not make a host sick.
        """
        if cls not in SICK and cls not in UNTOLD:
            self.succeeded(slot, sent_at)
            return COUNTS
        now = self._clock.time()
        if cls in UNTOLD:
            if (known := self._slots.get(slot)) is not None:
                known.breaker.undecided(sent_at)
            return COUNTS_NOT if self._outage.failed(slot, now, now, False) else COUNTS
        record = self._record(slot, now)
        record.last = now
        record.took = min(max(0.0, now - sent_at), self._rules.budget.longest)
        if cls == FailureClass.THROTTLED:
            self._throttled(slot, record, sent_at, now)
        excused = False
        if cls in ANSWERED:
            record.failing_since = 0.0
            self._answered(slot, now)
        else:
            connect = cls in CONNECT
            if connect and not record.failing_since:
                record.failing_since = now
            excused = self._outage.failed(slot, record.failing_since, now, connect)
            self._watch(now)
        if cls == FailureClass.THROTTLED and record.hold > now:
            self._is_well(slot, record, sent_at, now)
        elif not self._outage.on:
            # A probe that was answered was an attempt like any other: a broken page has a last one.
            probe = self._is_sick(slot, record, sent_at, now, cls, again)
            excused |= probe and cls not in ANSWERED
        else:
            record.breaker.undecided(sent_at)
        self._settle(slot, record, now)
        return COUNTS_NOT if excused else COUNTS

    def hold(self, slot: str, until: float) -> None:
        """Send nothing to *slot* before *until*, epoch seconds. A longer hold that stands goes on."""
        now = self._clock.time()
        if until <= now or not math.isfinite(until):
            return
        record = self._record(slot, now)
        record.last = now
        record.hold = max(record.hold, until)
        self._settle(slot, record, now)

    def reserve_retry(self, slot: str) -> float:
        """Reserve what a retry costs.

        Returns:
            Epoch seconds before which it may not be sent: when the budgets of the slot and of the crawl,
            and the share of the connections that retries may take, allow it. At most an hour off.
        """
        now = self._clock.time()
        record = self._record(slot, now)
        record.last = now
        at = max(
            record.budget.reserve(now),
            self._crawl.reserve(now),
            self._connections.reserve(now, record.took),
        )
        self._crawl_dirty = True
        self._settle(slot, record, now)
        return at

    def force(self, slot: str, state: str | None) -> None:
        """Keep the breaker of *slot* ``"open"`` or ``"closed"`` by hand; ``None``: it starts anew, closed.

        Raises:
            ValueError: There is no such state.
        """
        if state not in {"open", "closed", None}:
            raise ValueError(f"a breaker is forced open or closed, or left alone with None, not {state!r}")
        now = self._clock.time()
        record = self._record(slot, now)
        record.last = now
        record.forced = state
        record.breaker.close(now)
        self._settle(slot, record, now)

    def forced(self) -> set[str]:
        """Slots whose breaker is kept open or closed by hand."""
        return {slot for slot, record in self._slots.items() if record.forced}

    # Time

    def next_event(self) -> float | None:
        """When :meth:`tick` is to be called, epoch seconds; ``None``: not before something is reported."""
        while self._wakes:
            wake, slot = self._wakes[0]
            record = self._slots.get(slot)
            if record is not None and record.wake == wake:
                break
            heappop(self._wakes)
        times = [self._wakes[0][0]] if self._wakes else []
        if (event := self._outage.next_event(self._clock.time())) is not None:
            times.append(event)
        return min(times, default=None)

    def tick(self) -> None:
        """Make known what changed with time. After it, :meth:`next_event` lies in the future."""
        now = self._clock.time()
        while self._wakes and self._wakes[0][0] <= now:
            wake, slot = heappop(self._wakes)
            record = self._slots.get(slot)
            if record is not None and record.wake == wake:
                record.wake = 0.0
                self._settle(slot, record, now)
        self._watch(now)
        self._announce_open(now)

    def announce(self) -> None:
        """Name all slots that are limited now through :attr:`changed`, for one who listens from now on."""
        for slot, record in list(self._slots.items()):
            if record.told is not None:
                self.changed(slot)
        self.changed(None)

    # Storage

    def export(self) -> dict[str, bytes]:
        """What changed since the last call, by name; ``b""``: to be forgotten.

        All of it, given to :meth:`restore` of another guard with the same rules, makes that one answer
        alike. An outage is not kept: whether the network is up is found anew.
        """
        changes = {
            PREFIX + slot: record.encode() if (record := self._slots.get(slot)) is not None else b""
            for slot in self._dirty
        }
        self._dirty.clear()
        if self._crawl_dirty:
            self._crawl_dirty = False
            changes[CRAWL] = encode_bucket(self._crawl)
        return changes

    def discard_changes(self) -> None:
        """To be called in place of :meth:`export` where nothing is stored: it remembers what changed."""
        self._dirty.clear()

    def restore(self, records: Mapping[str, bytes]) -> None:
        """Take in what :meth:`export` gave, here, before a restart or in another worker.

        What is known of a slot already is merged part by part, so that the order does not matter and
        nothing is counted twice: of two holds the later end; of two breakers the one that opened or closed
        later; of two paces the one cut later; of two budgets the one with less in it. So a store that a
        fleet shares needs no more than the latest record of each worker, or their merger.
        Other names are left alone; what is no record is counted in :attr:`bad_records`, ignored, and
        replaced with the next :meth:`export`.
        """
        now = self._clock.time()
        for name, data in records.items():
            slot = name[len(PREFIX) :] if name.startswith(PREFIX) else None
            try:
                if name == CRAWL and data:
                    merge_bucket(self._crawl, data, now)
                elif slot is not None:
                    self._restore_slot(slot, data, now)
            except BadRecord:
                self.bad_records += 1
                if slot is None:
                    self._crawl_dirty = True
                else:
                    self._dirty.add(slot)

    # Inside

    def _record(self, slot: str, now: float) -> SlotRecord:
        record = self._slots.get(slot)
        if record is None:
            if len(self._slots) >= self._max_slots:
                self._make_room()
            record = self._slots[slot] = SlotRecord(self._rules.budget.of_slot(now), last=now)
        return record

    def _make_room(self) -> None:
        old = islice(self._slots.items(), 50)
        slot, record = min(old, key=lambda item: (bool(item[1].forced), item[1].hold, item[1].breaker.until))
        self.forgotten += 1
        self._drop(slot, record)

    def _drop(self, slot: str, record: SlotRecord) -> None:
        del self._slots[slot]
        self._dirty.add(slot)
        if record.told is not None:
            record.told = None
            self.changed(slot)

    def _answered(self, slot: str, now: float) -> None:
        if self._outage.answered(slot, now):
            self.observe("outage_over", None)
            self._announce_open(now)

    def _is_well(self, slot: str, record: SlotRecord, sent_at: float, now: float) -> None:
        record.last = now
        record.failing_since = 0.0
        if self._rules.breaker is not None:
            closed = record.breaker.is_closed
            record.breaker.succeeded(self._rules.breaker, sent_at, now)
            if record.breaker.is_closed and not closed:
                self.observe("closed", slot)
        self._settle(slot, record, now)

    def _is_sick(
        self, slot: str, record: SlotRecord, sent_at: float, now: float, cls: str, again: bool
    ) -> bool:
        """Whether it was the probe that failed."""
        if self._rules.breaker is None or record.forced:
            return False
        if again and cls in OF_PAGES and record.breaker.is_closed:
            return False
        before = record.breaker.at
        probe = record.breaker.failed(self._rules.breaker, sent_at, now, cls in CONNECT, self._random)
        if record.breaker.is_dead(now) and record.breaker.at != before:
            self.observe("dead", slot)
        elif record.breaker.at != before:
            self.observe("opened", slot)
        return probe

    def _throttled(self, slot: str, record: SlotRecord, sent_at: float, now: float) -> None:
        if self._rules.pace is None:
            return
        if record.pace is None:
            rate = self._meter.rate(slot, now)
            if rate is None:
                return
            record.pace = Pace(self._rules.pace, rate, now)
        elif not record.pace.throttled(self._rules.pace, sent_at, now):
            return
        self.observe("slowed", slot)

    def _watch(self, now: float) -> None:
        """See whether an outage began, or is no longer believed."""
        if not self._outage.check(now):
            return
        if not self._outage.on:
            self.observe("outage_over", None)
        else:
            self.observe("outage", None)
            for slot, record in list(self._slots.items()):
                if record.breaker.since >= self._outage.began and not record.breaker.is_closed:
                    record.breaker.close(now)
                    self._settle(slot, record, now)
        self._announce_open(now)

    def _announce_open(self, now: float) -> None:
        is_open = self._outage.allows(now)
        if is_open is not self._open_told:
            self._open_told = is_open
            self.changed(None)

    def _settle(self, slot: str, record: SlotRecord, now: float) -> None:
        """After any change of *record*: see when it is to be looked at again, or whether it can go."""
        if self._slots.get(slot) is not record:
            return
        self._dirty.add(slot)
        wake = record.next_wake(self._rules, now)
        if wake is None:
            self._drop(slot, record)
            return
        if wake < math.inf and not 0 < record.wake <= wake:
            record.wake = wake
            if len(self._wakes) > 2 * len(self._slots) + 1000:
                self._wakes = [(one.wake, name) for name, one in self._slots.items() if one.wake]
                heapify(self._wakes)
            else:
                heappush(self._wakes, (wake, slot))
        limit = record.limit(now)
        if limit != record.told:
            record.told = limit
            self.changed(slot)

    def _restore_slot(self, slot: str, data: bytes, now: float) -> None:
        if not data:
            if (known := self._slots.get(slot)) is not None:
                self._drop(slot, known)
            return
        other = SlotRecord.decode(data, self._rules, now)
        record = self._record(slot, now)
        record.merge(other, now)
        self._settle(slot, record, now)
