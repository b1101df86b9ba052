"""Protocols between the parts, and the plain records that pass through them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    from scrapy import Request


class Clock(Protocol):
    def time(self) -> float:
        """Seconds since the epoch, never less than at an earlier call."""


class Durable(Protocol):
    """A part that holds what pages gave and must be durable before the page is done.

    Register with ``run_of(crawler).durables.append(self)``.
    """

    def settle(self, page: Request) -> None:
        """Make everything that *page* gave survive ``kill -9``: write it, flush it to the OS.

        Runs on the event loop at the end of every page: microseconds. May raise (disk full):
        the page then counts as not done.
        """

    def marks(self) -> Mapping[str, bytes]:
        """Small named values (file positions) to be stored atomically with the ack.

        After an interruption they come back in ``run_of(crawler).marks``, so that anything
        written later than the last ack can be recognised and undone. Keys start with the
        part's name and a colon.
        """

    def fsync(self) -> None:
        """Make everything settled so far survive a power cut. Runs in a thread."""


class Part(Protocol):
    """Something whose state the checkpoint keeps, and which is there again after a restart.

    Attributes:
        name: Names it among all; does not change.
        version: Of the data that :meth:`save` gives; raised when that changes.
    """

    name: str
    version: int

    def save(self) -> Any:
        """Its state: plain values (:func:`scrapy_ha.serialize.encode_value`); ``None``: there is none.

        Runs on the event loop every second or so: milliseconds.

        Raises:
            Unserializable: It cannot be stored. What was stored before stays.
        """

    def restore(self, data: Any) -> None:
        """Have the state that :meth:`save` gave, of this version. It comes from disk: anything may stand
        in it. What it raises is logged, and the part begins afresh."""

    def migrate(self, data: Any, version: int) -> Any:
        """What an earlier *version* saved, as this one would."""


class Gate(Protocol):
    """Which slots may be sent requests now: hosts that asked for patience, or that are down, are not.

    Register with ``run_of(crawler).gate = self``, before the scheduler opens. The scheduler leaves
    the requests of a closed slot where they are.
    """

    changed: Callable[[str | None], None]
    """Set by the scheduler when it opens; to be called with a slot whose :meth:`limit` is another now,
    and with ``None`` when :meth:`is_open` may be. Slots that are limited already when it is set are to
    be named before the first request is handed out (at ``spider_opened`` for example)."""

    def is_open(self) -> bool:
        """Whether any request may be handed out at this moment."""

    def limit(self, slot: str) -> int | None:
        """How many requests of *slot* may be on their way at once: 0 none, ``None`` no limit from here."""

    def taken(self, slot: str) -> None:
        """A request of *slot* was handed out."""


@dataclass(slots=True)
class Entry:
    """A request as the frontier sees it."""

    payload: bytes
    """The serialized request; opaque to the frontier."""
    slot: str
    """Download slot."""
    key: bytes | None = None
    """What makes it the same request as another: the fingerprint. ``None``: never a duplicate."""
    priority: int = 0
    """Higher first."""
    due: float = 0.0
    """Not to be leased before this time, epoch seconds; 0: at once."""
    parent: int | None = None
    """Lease id of the page that produced it (``SEED`` for start requests). It gives a request
    without *key* an identity until that page is done or given up: when the page is delivered again
    after a crash, a child that is stored already is not stored twice. A lease that was lost keeps
    it; a page that is not this worker's, or has ended, gives none."""
    ordinal: bytes = b""
    """Which of the children it is, the same in every delivery of *parent*. Several children with
    one ordinal are told apart by counting them in each delivery."""


SEED = 0
"""The *parent* of start requests. Each :meth:`Frontier.open` delivers them anew. Their identities
are kept until seeding is complete, and shared by all workers."""


@dataclass(slots=True)
class Lease:
    """One delivery of one request to one worker."""

    id: int
    """Names the request, and stays the same over all its deliveries and retries; at least 1. Ids
    grow in order of arrival and are never given twice."""
    payload: bytes
    slot: str
    priority: int
    deliveries: int
    """How many times it has been delivered, this time included."""
    token: int
    """Fencing token: grows with every delivery; a stale one is refused."""


UNEXPOSED_FACTOR = 100
"""How many ends of a worker without exposure weigh as much as one with it."""


SUSPECT_PATIENCE = 30.0
"""Seconds that a suspect may be leased, and others held back: it may wait for one of them."""


def is_suspect(deliveries: int, max_deliveries: int) -> bool:
    """Whether a request whose worker died under it *deliveries* times may be what kills it.

    Everything in flight at a death comes under suspicion. Suspects are delivered one at a time,
    so that the one that kills is alone when it does so again, and the others get done.
    """
    return deliveries >= max(1, min(2, max_deliveries - 1))


@dataclass(slots=True)
class Settlement:
    """How one lease ends. Exactly one of: done, retried later, given up, released."""

    lease: Lease
    payload: bytes | None = None
    """New payload, for a retry, release or give-up. ``None`` keeps the old one."""
    retry_at: float | None = None
    """Goes to *delayed* until then, epoch seconds, with its deliveries counted afresh: it ended
    in order, and deliveries count only those that did not."""
    dead: bytes | None = None
    """Goes to *dead*, with this record."""
    release: bool = False
    """Goes back to *ready* as if it had never been delivered: nothing is counted."""
    priority: int | None = None
    """New priority for a retry; ``None`` keeps it."""


@dataclass(slots=True)
class Replay:
    """A dead request that is to be tried again."""

    id: int
    due: float = 0.0
    """Not before this time, epoch seconds; 0: at once."""
    payload: bytes | None = None
    """New payload; ``None`` keeps the old one."""


class SlotSet(set[str]):
    """Slots to be passed over, changed by ``add`` and ``discard`` alone.

    It says which ones left it, so that a store need not look at all of those that stay, time and
    again: of hosts that are not to be asked now there may be thousands, for hours.
    """

    left: list[str] | None = None
    """``None`` until somebody follows; then those that left since it was last cleared."""

    def follow(self) -> list[str]:
        """Have those that leave noted from now on, in the list returned. For one follower."""
        self.left = []
        return self.left

    def discard(self, slot: object) -> None:
        if slot in self:
            super().discard(slot)
            if self.left is not None:
                self.left.append(str(slot))


@dataclass(slots=True)
class Counts:
    """Requests by state, over all workers. *delayed* may count due ones until the next lease call."""

    ready: int = 0
    delayed: int = 0
    leased: int = 0
    dead: int = 0
    """Not those of whose records the request is pending again."""

    @property
    def pending(self) -> int:
        return self.ready + self.delayed + self.leased


@dataclass(slots=True)
class Opened:
    """What was found when a frontier was opened."""

    resumed: bool
    """There was an interrupted crawl; it goes on. So it is once anything was stored that no
    :meth:`Frontier.finish` has closed, even if nothing is pending. A replay begins none."""
    seeded: bool
    """Its start requests had been produced to the end."""
    reclaimed: int = 0
    """Requests that had been in flight and are ready again."""
    poisoned: int = 0
    """Requests that had been in flight too often and are dead."""
    poison: list[Dead] = field(default_factory=list, compare=False)
    """Those, as they were set aside."""
    former_identity: str | None = None
    """What had made the keys, where the store was told that it is another one now."""
    marks: dict[str, bytes] = field(default_factory=dict)
    """What this worker stored with :meth:`Frontier.settle`, by name."""


@dataclass(slots=True)
class Dead:
    """One request that was given up."""

    id: int
    slot: str
    payload: bytes
    """As it was when it was given up."""
    record: bytes
    pending: bool = False
    """It is in the dead state no more, but being replayed; or was given up, see
    :meth:`Frontier.bury`, and has not ended."""


@runtime_checkable
class Frontier(Protocol):
    """The store of all requests that are not done.

    Every call is one atomic step: after a crash all of it happened or none of it. What a call
    returned survives ``kill -9`` of this process (I1). An embedded store's coroutines never
    suspend; a shared store's may, and then the calls of several workers interleave.

    Any call may raise :class:`~scrapy_ha.errors.StoreError`.
    """

    async def open(self) -> Opened:
        """Open or create the store; take back what this worker held when it died.

        Raises:
            StoreLocked: Another process owns it (embedded stores).
            StoreDamaged: It is not a whole store of a format known here. It stays untouched.
        """

    async def offer(self, entries: Sequence[Entry]) -> list[bool]:
        """Store requests and mark their keys seen, in one step (I2).

        Returns:
            For each entry whether it is new. ``False`` for a key that is seen, or for a child
            that an earlier delivery of its parent stored.
        """

    def knows(self, key: bytes) -> bool | None:
        """Whether *key* is seen, from local knowledge alone; ``None``: only the store can tell."""

    async def forget(self, keys: Sequence[bytes]) -> int:
        """Have *keys* new again; how many of them were seen."""

    async def lease(
        self,
        limit: int,
        busy: Mapping[str, int],
        full: Collection[str],
        ttl: float,
        exposed: bool = True,
        sample: Collection[str] = (),
    ) -> list[Lease]:
        """Take up to *limit* due requests for this worker, at least *ttl* seconds for each.

        Slots in *full* are passed over; when these are many, give the same :class:`SlotSet` with
        every call. Of the others the least busy go first, by the numbers
        in *busy* (absent: 0) plus what this call has taken; among equals in turn. Within a slot
        by priority, then by order of arrival, which whatever comes back keeps. Fewer than *limit*
        may come while more are due, but none only if none is. A suspect (:func:`is_suspect`) is
        passed over while another one is leased to any worker, for :data:`SUSPECT_PATIENCE` at most.

        Of slots in *sample* any request of the highest priority may come instead of the first one: what
        probes a sick host should not be the same request every time.

        The deliveries are *exposed* or not, see :meth:`expose`.
        """

    async def settle(
        self,
        settlements: Sequence[Settlement],
        children: Sequence[Entry] = (),
        seen: Sequence[bytes] = (),
        marks: Mapping[str, bytes] | None = None,
        seeded: bool = False,
    ) -> list[bool]:
        """End leases, store children, mark keys seen and keep marks, all in one step (I3).

        A mark that is given as ``b""`` is forgotten. With *seeded*, all start requests are stored, and
        their identities are no longer needed.

        Returns:
            For each settlement whether it was accepted. A lease that expired and was taken
            away is refused: its settlement changes nothing (fencing), children, seen and marks
            are stored all the same. Until it is taken away, an expired lease counts.
        """

    async def expose(self, leases: Sequence[Lease], exposed: bool) -> list[bool]:
        """Say whether what came of *leases* is being worked on, so that it may be what kills the worker.

        An exposed delivery that ends with its worker counts in full. One that does not (the request
        is on its way, or waits) is not counted as a delivery; only after ``UNEXPOSED_FACTOR`` times
        ``max_deliveries`` such ends is the request poison too. ``False``: no longer held.
        """

    async def bury(self, lease: Lease, record: bytes) -> bool:
        """Store the *record* of a request that is given up, while its lease goes on.

        So the record is safe before the request has ended, which may take a while. It is final
        when the request ends dead, with the record that then comes along in place of this one. When
        the worker dies first, the request is delivered again. A request that is done has no record.
        ``False``: no longer held.
        """

    async def renew(self, leases: Sequence[Lease], ttl: float) -> list[bool]:
        """Extend leases to *ttl* seconds from now. ``False``: no longer held."""

    async def reclaim(self) -> tuple[int, int]:
        """Return expired leases, of any worker, to ready, or to dead as poison after too many deliveries.

        The record of poison is :func:`scrapy_ha.deadletter.poison`.

        Returns:
            How many became ready and how many dead. Work per call is bounded.
        """

    async def next_due(self) -> float | None:
        """When the earliest delayed request is due; ``None`` without one."""

    async def counts(self) -> Counts: ...

    async def finish(self) -> None:
        """The crawl that this worker opened is complete.

        The next :meth:`open` starts a fresh one: keys, seeding and marks are gone, the dead stay.
        The keys stay too where the store is told to keep them.
        Unless requests are pending by then (replayed, or late): then the crawl is resumed.
        """

    async def dead(self, limit: int, after: int = 0) -> list[Dead]:
        """Up to *limit* requests that were given up, with an id above *after*, by id, from earlier
        crawls too; also those that are pending again and have a record still."""

    async def replay(self, replays: Sequence[Replay]) -> int:
        """Make dead requests ready or delayed again, with no deliveries counted; how many it became.

        The id stays. So does the record: it goes when the request is done, and is replaced when it
        is given up again. A request that is pending is not changed: a second replay does nothing.
        """

    async def purge(self, ids: Sequence[int]) -> int:
        """Forget requests that are in the dead state; how many there were."""

    async def expire(self) -> int:
        """Forget requests in the dead state that are beyond the store's limits of number and age,
        those given up first of all; how many there were. Work per call is bounded.
        """

    async def sync(self) -> None:
        """Make everything so far survive a power cut. May block: embedded stores in a thread."""

    async def maintain(self) -> None:
        """Housekeeping (compaction, old generations), bounded. Embedded stores: in a thread."""

    async def close(self) -> None:
        """Give up the store. Leases still held are released, nothing counted. Idempotent."""
