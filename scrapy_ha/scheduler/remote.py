"""A frontier far away, as one that is at hand: no call waits for the network."""

from __future__ import annotations

import logging
import math
import time
from collections import deque
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from scrapy.utils.defer import maybe_deferred_to_future

from scrapy_ha.errors import StoreError
from scrapy_ha.loop import Ticker, Timer, call_later, sleep, spawn
from scrapy_ha.typing import Counts, Dead, Entry, Frontier, Lease, Opened, Replay, Settlement

if TYPE_CHECKING:
    from twisted.internet.defer import Deferred

logger = logging.getLogger(__name__)

FLUSH_AFTER = 0.02
"""Seconds that what is to be written waits for company."""
FLUSH_SOON = 0.0
"""The same for what was handed out: that it was is to be known before it can kill this process."""
FLUSH_ITEMS = 500
"""Requests and endings written in one call."""
IDLE_POLLS = (0.05, 2.0)
"""Seconds between two looks for work where there is none: at first, and after a while."""
RETRY_AFTER = (0.1, 5.0)
"""Seconds until a call that failed is made again: at first, and after a while."""
SEEDING_POLL = 1.0
"""Seconds between two looks whether another worker has ended, or died, producing the start requests."""
COUNT_EVERY = 1.0
"""Seconds after which the numbers of the whole crawl are asked for anew."""
CHECKS = 2
"""Looks in a row that find nothing before the crawl counts as complete."""


class SharedFrontier(Frontier, Protocol):
    """A frontier of several workers, on a server."""

    async def connect(self) -> float:
        """Connect; the server's time, epoch seconds."""

    async def disconnect(self) -> None: ...

    async def claim_seeding(self, ttl: float) -> bool | None:
        """Whether this worker is to produce the start requests, for *ttl* seconds; ``None``: all are
        stored."""

    async def settle(
        self,
        settlements: Sequence[Settlement],
        children: Sequence[Entry] = (),
        seen: Sequence[bytes] = (),
        marks: Mapping[str, bytes] | None = None,
        seeded: bool = False,
        exposed: Sequence[Lease] = (),
    ) -> list[bool]:
        """*exposed*: leases that are exposed from now on, before any ends."""


class RemoteFrontier:
    """Stands between the scheduler and a shared *frontier*; its coroutines never suspend.

    Leases are taken ahead into a buffer. What is to be written waits a moment for company and goes out in
    order, children before the end of their page and all in one step; so a worker that dies leaves the pages
    leased whose children are not stored, and another one takes them. Leases are renewed, also of what waits
    in the buffer; one that is lost all the same is refused when it ends, and counted.

    While the store cannot be reached nothing is handed out, what was to be written is kept, and the crawl
    does not end.

    Args:
        ttl: Seconds of a lease.
        prefetch: Leases held ahead.
        capacity: How many requests of a slot may be on their way at once; ``None``: any number.
        wake: Called when there is something to hand out, or something has changed.
        failed: Called when the store could not be reached for *patience* seconds.
        refused: Called with the number of endings of leases that were not this worker's any more.
    """

    def __init__(
        self,
        frontier: SharedFrontier,
        *,
        ttl: float,
        prefetch: int,
        capacity: Callable[[str], int | None],
        wake: Callable[[], None],
        failed: Callable[[Exception], None],
        refused: Callable[[int], None] = lambda number: None,
        patience: float = math.inf,
    ) -> None:
        self._frontier = frontier
        self._ttl = ttl
        self._prefetch = prefetch
        self._capacity = capacity
        self._wake = wake
        self._failed = failed
        self._refused = refused
        self._patience = patience
        self._buffer: dict[str, deque[Lease]] = {}
        self._buffered = 0
        self._held: dict[int, Lease] = {}
        self._until: dict[int, float] = {}
        """By id, until when that is certain, by this process's monotonic clock."""
        self._children: list[Entry] = []
        self._settlements: list[Settlement] = []
        self._exposed: list[Lease] = []
        self._seen: list[bytes] = []
        self._marks: dict[str, bytes] = {}
        self._seeded = False
        self._seeds = False
        """This worker produces the start requests."""
        self._flushing: Deferred[None] | None = None
        self._flush_timer: Timer | None = None
        self._flush_within = FLUSH_AFTER
        self._filling = False
        self._asked: tuple[Mapping[str, int], Collection[str], Collection[str]] = ({}, (), ())
        self._poll = IDLE_POLLS[0]
        self._poll_timer: Timer | None = None
        self._counts = Counts()
        self._counted_at = -math.inf
        self._empty_checks = 0
        self._away_since: float | None = None
        self._closed = False
        self._renewal = Ticker(ttl / 3, self._renew)

    # Opening and closing: these wait

    async def open(self) -> Opened:
        opened = await self._frontier.open()
        self._counts = await self._frontier.counts()
        self._renewal.start()
        return opened

    async def finish(self) -> None:
        await self._frontier.finish()

    async def close(self) -> None:
        """Write what is left, and give back what is held."""
        if self._closed:
            return
        self._closed = True
        for timer in (self._poll_timer, self._flush_timer):
            if timer is not None:
                timer.cancel()
        await self._renewal.stop()
        await self.drain()
        await self._frontier.close()

    async def drain(self) -> None:
        """Return when everything is written."""
        while self._flushing is not None or self._outbox:
            if self._flushing is None:
                self._flush()
            if self._flushing is not None:
                await maybe_deferred_to_future(self._flushing)

    async def seeding_turn(self) -> bool:
        """Wait until this worker is to produce the start requests; False: all are stored."""
        while not self._closed:
            mine = await self._until_done(partial(self._frontier.claim_seeding, self._ttl))
            if mine is None:
                return False
            if mine:
                self._seeds = True
                return True
            await sleep(SEEDING_POLL)
        return False

    # What does not wait

    async def offer(self, entries: Sequence[Entry]) -> list[bool]:
        """All of them count as new: which are not, the store finds out."""
        self._children += entries
        self._written()
        return [True] * len(entries)

    def knows(self, key: bytes) -> bool | None:
        return None

    async def lease(
        self,
        limit: int,
        busy: Mapping[str, int],
        full: Collection[str],
        ttl: float,
        exposed: bool = True,
        sample: Collection[str] = (),
    ) -> list[Lease]:
        """Up to *limit* of those held ahead."""
        self._asked = (busy, full, sample)
        leases: list[Lease] = []
        now = time.monotonic()
        while len(leases) < limit:
            slots = [slot for slot in self._buffer if slot not in full]
            if not slots:
                break
            slot = min(slots, key=lambda slot: busy.get(slot, 0))
            lease = self._buffer[slot][0]
            if self._until[lease.id] <= now:  # this process stood still: it is another worker's by now
                self._lose(lease)
                continue
            self._unbuffer(lease)
            leases.append(lease)
        self._exposed += leases
        if leases:
            self._written(FLUSH_SOON)
        if self._poll_timer is None:  # else there was nothing just now
            self._fill_up()
        return leases

    async def settle(
        self,
        settlements: Sequence[Settlement],
        children: Sequence[Entry] = (),
        seen: Sequence[bytes] = (),
        marks: Mapping[str, bytes] | None = None,
        seeded: bool = False,
    ) -> list[bool]:
        """All of them count as accepted; see *refused*."""
        self._children += children
        self._settlements += settlements
        self._seen += seen
        self._marks.update(marks or {})
        self._seeded = self._seeded or seeded
        self._written()
        return [True] * len(settlements)

    async def expose(self, leases: Sequence[Lease], exposed: bool) -> list[bool]:
        """What is handed out is exposed from then on."""
        return [lease.id in self._held for lease in leases]

    async def bury(self, lease: Lease, record: bytes) -> bool:
        """The record comes with the end of the lease."""
        return lease.id in self._held

    async def renew(self, leases: Sequence[Lease], ttl: float) -> list[bool]:
        return [lease.id in self._held for lease in leases]

    async def reclaim(self) -> tuple[int, int]:
        return 0, 0

    async def next_due(self) -> float | None:
        """What is due is looked for here."""
        return None

    async def counts(self) -> Counts:
        """As last heard, over all workers; at least one is ready until it is certain that none is pending."""
        counts = self._counts
        if self._empty_checks >= CHECKS and not self._is_busy:
            return counts
        return Counts(max(1, counts.ready + self._buffered), counts.delayed, counts.leased, counts.dead)

    async def forget(self, keys: Sequence[bytes]) -> int:
        return 0

    async def dead(self, limit: int, after: int = 0) -> list[Dead]:
        return []

    async def replay(self, replays: Sequence[Replay]) -> int:
        return 0

    async def purge(self, ids: Sequence[int]) -> int:
        return 0

    async def expire(self) -> int:
        return 0

    async def sync(self) -> None:
        pass

    async def maintain(self) -> None:
        pass

    # Writing

    @property
    def _outbox(self) -> bool:
        return bool(
            self._children or self._settlements or self._exposed or self._seen or self._marks or self._seeded
        )

    @property
    def _is_busy(self) -> bool:
        return bool(self._held or self._outbox or self._flushing is not None or self._away_since is not None)

    def _written(self, within: float = FLUSH_AFTER) -> None:
        self._empty_checks = 0
        if self._flushing is not None or self._closed:
            return
        if len(self._children) + len(self._settlements) >= FLUSH_ITEMS:
            within = FLUSH_SOON
        if self._flush_timer is not None and within < self._flush_within:
            self._flush_timer.cancel()
            self._flush_timer = None
        if self._flush_timer is None:
            self._flush_within = within
            self._flush_timer = call_later(within, self._fire)

    def _fire(self) -> None:
        self._flush_timer = None  # Twisted refuses to cancel a timer that has fired
        self._flush()

    def _flush(self) -> None:
        if self._flushing is None and self._outbox:
            flushing = self._flushing = spawn(self._flush_all())
            if flushing.called:
                self._flushing = None

    async def _flush_all(self) -> None:
        try:
            while self._outbox:
                if len(self._children) > FLUSH_ITEMS:  # children first: an ending that waits loses nothing
                    children, self._children = self._children[:FLUSH_ITEMS], self._children[FLUSH_ITEMS:]
                    await self._until_done(partial(self._frontier.offer, children))
                else:
                    await self._flush_once()
        finally:
            self._flushing = None

    async def _flush_once(self) -> None:
        children, self._children = self._children, []
        settlements, self._settlements = self._settlements, []
        exposed, self._exposed = self._exposed, []
        seen, self._seen = self._seen, []
        marks, self._marks = self._marks, {}
        seeded, self._seeded = self._seeded, False
        ended = {settlement.lease.id for settlement in settlements}
        exposed = [lease for lease in exposed if lease.id not in ended]
        accepted = await self._until_done(
            partial(self._frontier.settle, settlements, children, seen, marks, seeded, exposed)
        )
        for settlement in settlements:
            held = self._held.get(settlement.lease.id)
            if held is not None and held.token == settlement.lease.token:
                self._drop(held)
        if accepted.count(False):
            self._refused(accepted.count(False))
        self._look_soon()

    async def _until_done(self, call: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        wait = RETRY_AFTER[0]
        while True:
            try:
                result = await call()
            except StoreError as error:
                self._away(error)
                if self._closed:
                    raise
                await sleep(wait)
                wait = min(2 * wait, RETRY_AFTER[1])
            else:
                self._back()
                return result

    def _away(self, error: Exception) -> None:
        if self._away_since is None:
            self._away_since = time.monotonic()
            logger.warning("The frontier cannot be reached; nothing is lost, and the crawl waits: %s", error)
        elif time.monotonic() - self._away_since > self._patience:
            self._failed(error)

    def _back(self) -> None:
        if self._away_since is not None:
            logger.info("The frontier is back after %.1f s", time.monotonic() - self._away_since)
            self._away_since = None

    # Taking ahead

    def _fill_up(self) -> None:
        """Take ahead if little is left that may be handed out at this moment."""
        if not self._filling and not self._closed and self._away_since is None:
            full = self._asked[1]
            ready = sum(len(queue) for slot, queue in self._buffer.items() if slot not in full)
            if ready <= self._prefetch // 2:
                self._filling = True
                spawn(self._take_ahead(self._prefetch - ready))

    async def _take_ahead(self, wanted: int) -> None:
        busy, full, sample = self._asked
        for slot in [slot for slot in self._buffer if self._capacity(slot) == 0]:  # not to be sent any now
            self._give_back(slot)
        loads = dict(busy)
        for slot, queue in self._buffer.items():
            loads[slot] = loads.get(slot, 0) + len(queue)
        passed = {slot for slot in full if self._capacity(slot) == 0}
        for slot, load in loads.items():
            capacity = self._capacity(slot)
            # Some more than it takes at once, so that it need not wait for the network; not so many that
            # slow hosts fill the memory.
            if capacity is not None and load >= capacity + max(2, capacity // 2):
                passed.add(slot)
        began = time.monotonic()
        try:
            leases = await self._frontier.lease(wanted, loads, passed, self._ttl, False, sample)
            if not leases:
                await self._frontier.reclaim()
            if not leases or began - self._counted_at > COUNT_EVERY:
                self._counts = await self._frontier.counts()
                self._counted_at = began
            self._back()
        except StoreError as error:
            self._away(error)
            leases = []
        finally:
            self._filling = False
        if self._closed:
            return
        for lease in leases:
            self._held[lease.id] = lease
            self._until[lease.id] = began + self._ttl
            self._buffer.setdefault(lease.slot, deque()).append(lease)
        self._buffered += len(leases)
        if leases:
            self._empty_checks = 0
            self._poll = IDLE_POLLS[0]
            self._wake()
        else:
            pending = self._counts.pending
            self._empty_checks = 0 if pending or self._is_busy else self._empty_checks + 1
            if self._empty_checks == CHECKS:
                self._wake()
            self._look_later()

    def _look_later(self) -> None:
        if self._poll_timer is None and not self._closed:
            self._poll_timer = call_later(self._poll, self._look)
            self._poll = min(2 * self._poll, IDLE_POLLS[1])

    def _look_soon(self) -> None:
        """Something was stored: it may be work."""
        self._poll = IDLE_POLLS[0]
        self._fill_up()

    def _look(self) -> None:
        self._poll_timer = None
        self._fill_up()

    async def _renew(self) -> None:
        leases = list(self._held.values())
        began = time.monotonic()
        try:
            if self._seeds:
                self._seeds = await self._frontier.claim_seeding(self._ttl) is not None
            kept = await self._frontier.renew(leases, self._ttl)
            await self._frontier.reclaim()
            self._back()
        except StoreError as error:
            self._away(error)
            return
        for lease, is_kept in zip(leases, kept, strict=True):
            if self._held.get(lease.id) is lease:
                if is_kept:
                    self._until[lease.id] = began + self._ttl
                else:
                    self._lose(lease)

    def _lose(self, lease: Lease) -> None:
        """It is another worker's by now; if it was not handed out, it is not to be."""
        self._drop(lease)
        if lease in self._buffer.get(lease.slot, ()):
            self._unbuffer(lease)

    def _give_back(self, slot: str) -> None:
        """What waits of *slot* is not to be handed out before long."""
        leases = list(self._buffer[slot])
        for lease in leases:
            self._unbuffer(lease)
        self._settlements += [Settlement(lease, release=True) for lease in leases]
        self._written()

    def _unbuffer(self, lease: Lease) -> None:
        queue = self._buffer[lease.slot]
        queue.remove(lease)
        self._buffered -= 1
        if not queue:
            del self._buffer[lease.slot]

    def _drop(self, lease: Lease) -> None:
        del self._held[lease.id], self._until[lease.id]
