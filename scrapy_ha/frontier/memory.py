"""The reference frontier: the contract at its plainest. It survives nothing but its own worker.

Every call looks at all requests, so it is for tests and for reading, not for a crawl.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import TYPE_CHECKING

from scrapy_ha import deadletter
from scrapy_ha.typing import (
    SEED,
    SUSPECT_PATIENCE,
    UNEXPOSED_FACTOR,
    Counts,
    Dead,
    Entry,
    Lease,
    Opened,
    Replay,
    Settlement,
    is_suspect,
)

if TYPE_CHECKING:
    from scrapy_ha.typing import Clock


class _State(Enum):
    READY = auto()
    DELAYED = auto()
    LEASED = auto()
    DEAD = auto()


@dataclass(slots=True)
class _Request:
    id: int
    slot: str
    priority: int
    payload: bytes
    state: _State = _State.READY
    due: float = 0.0
    """While delayed."""
    deliveries: int = 0
    unexposed: int = 0
    """Deliveries that ended with the worker before anything came of them."""
    token: int = 0
    """Of the latest delivery; valid while leased, as are the next four."""
    exposed: bool = True
    worker: str = ""
    deadline: float = 0.0
    since: float = 0.0
    record: bytes | None = None
    """Why it was given up; also when it is pending again since."""
    given_up: float = 0.0
    """When, and what its payload was then."""
    buried: bytes = b""


@dataclass(slots=True)
class _Delivery:
    """What a worker remembers of one delivery until it settles it, also when the lease is lost."""

    token: int
    met: Counter[bytes] = field(default_factory=Counter)
    """Children without a key that this delivery has produced, by ordinal."""


class MemoryStore:
    """What all workers of one crawl share, and what outlives each of them."""

    def __init__(self) -> None:
        self.requests: dict[int, _Request] = {}
        """All that are not done, by id."""
        self.last_id = 0
        self.last_token = 0
        self.last_turn = 0
        self.turns: dict[str, int] = {}
        """When each slot was last served."""
        self.crawl = 0
        self.seen: dict[bytes, float] = {}
        """Keys, and when each was seen."""
        self.start_afresh(keep_seen=False)

    def start_afresh(self, keep_seen: bool) -> None:
        """Forget the crawl that is complete. Its dead requests stay."""
        self.crawl += 1
        self.begun = False
        self.finished = False
        self.seeded = False
        if not keep_seen:
            self.seen.clear()
        self.children: dict[int, Counter[bytes]] = {}
        """By parent and ordinal, how many children without a key are stored."""
        self.marks: dict[str, dict[str, bytes]] = {}
        """By worker."""

    def all(self, state: _State) -> list[_Request]:
        """The requests in one state, by id."""
        return [request for request in self.requests.values() if request.state is state]

    def next_token(self) -> int:
        self.last_token += 1
        return self.last_token


class MemoryFrontier:
    """A :class:`~scrapy_ha.typing.Frontier` over a store that several workers may share.

    Coroutines never suspend, so every call is one atomic step. Dropping the object without
    :meth:`close` is what a crash of its worker is to a store on disk.

    Args:
        worker: Name of the worker; the same one again takes back what it held.
        max_deliveries: Deliveries after which a request that was in flight is dead.
        order: ``"fifo"`` or ``"lifo"`` within slot and priority.
        dead_limit: How many dead requests are kept; ``None``: all.
        dead_seconds: How long they are kept; ``None``: for ever.
        seen_seconds: After which a key counts as new again; ``None``: never.
        keep_seen: What was seen in a crawl that is complete counts in the next one too.
    """

    def __init__(
        self,
        store: MemoryStore,
        *,
        worker: str,
        clock: Clock,
        max_deliveries: int = 5,
        order: str = "fifo",
        dead_limit: int | None = None,
        dead_seconds: float | None = None,
        seen_seconds: float | None = None,
        keep_seen: bool = False,
    ) -> None:
        self._store = store
        self._worker = worker
        self._clock = clock
        self._max_deliveries = max_deliveries
        self._lifo = order == "lifo"
        self._dead_limit = dead_limit
        self._dead_seconds = dead_seconds
        self._seen_seconds = seen_seconds
        self._keep_seen = keep_seen
        self._crawl = 0
        self._deliveries: dict[int, _Delivery] = {}

    # Opening and closing

    async def open(self) -> Opened:
        store = self._store
        if store.finished and not self._pending():
            store.start_afresh(self._keep_seen)
        store.finished = False
        resumed = store.begun
        mine = [request for request in store.all(_State.LEASED) if request.worker == self._worker]
        poison = [_dead(one) for one in self._take_back(mine)]
        self._crawl = store.crawl
        # The start requests are produced anew each time, like the children of a page.
        self._deliveries = {SEED: _Delivery(store.next_token())}
        marks = store.marks.get(self._worker, {})
        return Opened(resumed, store.seeded, len(mine) - len(poison), len(poison), poison, marks=dict(marks))

    async def finish(self) -> None:
        # A worker that is late must not end the crawl that came after its own.
        if self._crawl == self._store.crawl:
            self._store.finished = True

    async def sync(self) -> None:
        """Nothing to do: a power cut takes it all."""

    async def maintain(self) -> None:
        """Nothing to do."""

    async def close(self) -> None:
        for id_, delivery in self._deliveries.items():
            if request := self._held(id_, delivery.token):
                self._release(request)
        self._deliveries = {}

    # The life of a request

    async def offer(self, entries: Sequence[Entry]) -> list[bool]:
        verdicts = []
        for entry in entries:
            new = self._is_new(entry)
            if new:
                self._add(entry)
            verdicts.append(new)
        return verdicts

    def knows(self, key: bytes) -> bool | None:
        time = self._store.seen.get(key)
        if time is None:
            return False
        return self._seen_seconds is None or int(time) + self._seen_seconds > self._clock.time()

    async def forget(self, keys: Sequence[bytes]) -> int:
        return sum(self._store.seen.pop(key, None) is not None for key in set(keys))

    async def lease(
        self,
        limit: int,
        busy: Mapping[str, int],
        full: Collection[str],
        ttl: float,
        exposed: bool = True,
        sample: Collection[str] = (),
    ) -> list[Lease]:
        store, now = self._store, self._clock.time()
        for request in store.all(_State.DELAYED):
            if request.due <= now:
                request.state = _State.READY
        queues: dict[str, list[_Request]] = {}
        suspect = any(
            self._is_suspect(request, leased=1) and now - request.since < SUSPECT_PATIENCE
            for request in store.all(_State.LEASED)
        )
        for request in sorted(store.all(_State.READY), key=self._rank):
            if request.slot not in full and not (suspect and self._is_suspect(request)):
                queues.setdefault(request.slot, []).append(request)
        load = {slot: busy.get(slot, 0) for slot in queues}
        leases: list[Lease] = []
        while queues and len(leases) < limit:
            slot = min(queues, key=lambda slot: (load[slot], store.turns.get(slot, 0)))
            request = queues[slot].pop(0)
            suspect = self._is_suspect(request)
            request.exposed = exposed
            leases.append(self._deliver(request, now + ttl))
            load[slot] += 1
            store.last_turn += 1
            store.turns[slot] = store.last_turn
            if suspect:
                queues = {
                    slot: [other for other in queue if not self._is_suspect(other)]
                    for slot, queue in queues.items()
                }
            queues = {slot: queue for slot, queue in queues.items() if queue}
        return leases

    async def settle(
        self,
        settlements: Sequence[Settlement],
        children: Sequence[Entry] = (),
        seen: Sequence[bytes] = (),
        marks: Mapping[str, bytes] | None = None,
        seeded: bool = False,
    ) -> list[bool]:
        store = self._store
        await self.offer(children)
        store.seen.update(dict.fromkeys(seen, self._clock.time()))
        kept = store.marks.setdefault(self._worker, {})
        for name, value in (marks or {}).items():
            if value:
                kept[name] = value
            else:
                kept.pop(name, None)
        store.begun = store.begun or bool(seen or marks or seeded)
        if seeded:
            store.seeded = True
            store.children.pop(SEED, None)
        verdicts = []
        for settlement in settlements:
            lease = settlement.lease
            request = self._held(lease.id, lease.token)
            verdicts.append(request is not None)
            if request is not None:
                self._end(request, settlement)
            delivery = self._deliveries.get(lease.id)
            if delivery is not None and delivery.token == lease.token:
                del self._deliveries[lease.id]
        return verdicts

    async def expose(self, leases: Sequence[Lease], exposed: bool) -> list[bool]:
        requests = [self._held(lease.id, lease.token) for lease in leases]
        for request in requests:
            if request is not None:
                request.exposed = exposed
        return [request is not None for request in requests]

    async def bury(self, lease: Lease, record: bytes) -> bool:
        request = self._held(lease.id, lease.token)
        if request is not None:
            self._note(request, record)
        return request is not None

    async def renew(self, leases: Sequence[Lease], ttl: float) -> list[bool]:
        deadline = self._clock.time() + ttl
        verdicts = []
        for lease in leases:
            request = self._held(lease.id, lease.token)
            verdicts.append(request is not None)
            if request is not None:
                request.deadline = deadline
        return verdicts

    async def reclaim(self) -> tuple[int, int]:
        now = self._clock.time()
        expired = [request for request in self._store.all(_State.LEASED) if request.deadline <= now]
        dead = len(self._take_back(expired))
        return len(expired) - dead, dead

    async def next_due(self) -> float | None:
        return min((request.due for request in self._store.all(_State.DELAYED)), default=None)

    async def counts(self) -> Counts:
        number = Counter(request.state for request in self._store.requests.values())
        return Counts(
            number[_State.READY], number[_State.DELAYED], number[_State.LEASED], number[_State.DEAD]
        )

    # The dead

    async def dead(self, limit: int, after: int = 0) -> list[Dead]:
        requests = self._store.requests.values()
        return [_dead(one) for one in requests if one.id > after and one.record is not None][:limit]

    async def replay(self, replays: Sequence[Replay]) -> int:
        now = self._clock.time()
        done = 0
        for replay in replays:
            request = self._store.requests.get(replay.id)
            if request is None or request.state is not _State.DEAD:
                continue
            request.state = _State.DELAYED if replay.due > now else _State.READY
            request.due = replay.due
            request.deliveries = request.unexposed = 0
            if replay.payload is not None:
                request.payload = replay.payload
            done += 1
        return done

    async def purge(self, ids: Sequence[int]) -> int:
        found = [request for request in self._store.all(_State.DEAD) if request.id in ids]
        for request in found:
            del self._store.requests[request.id]
            self._store.children.pop(request.id, None)
        return len(found)

    async def expire(self) -> int:
        now = self._clock.time()
        found = sorted(self._store.all(_State.DEAD), key=lambda one: (one.given_up, one.id))
        excess = 0 if self._dead_limit is None else len(found) - self._dead_limit
        old = [] if self._dead_seconds is None else [now - one.given_up for one in found]
        excess = max(excess, sum(age >= (self._dead_seconds or 0) for age in old))
        return await self.purge([one.id for one in found[: max(excess, 0)]])

    # Steps

    def _pending(self) -> bool:
        return any(request.state is not _State.DEAD for request in self._store.requests.values())

    def _is_new(self, entry: Entry) -> bool:
        """Whether *entry* is new; from now on it is not."""
        store = self._store
        if entry.key is not None:
            new = not MemoryFrontier.knows(self, entry.key)
            if new:
                store.seen[entry.key] = self._clock.time()
            return new
        if entry.parent is None or (entry.parent == SEED and store.seeded):
            return True
        delivery = self._deliveries.get(entry.parent)
        if delivery is None or (entry.parent != SEED and entry.parent not in store.requests):
            return True
        stored = store.children.setdefault(entry.parent, Counter())
        delivery.met[entry.ordinal] += 1
        new = delivery.met[entry.ordinal] > stored[entry.ordinal]
        stored[entry.ordinal] += new
        return new

    def _add(self, entry: Entry) -> None:
        store = self._store
        store.begun = True
        store.last_id += 1
        request = _Request(store.last_id, entry.slot, entry.priority, entry.payload)
        if entry.due > self._clock.time():
            request.state, request.due = _State.DELAYED, entry.due
        store.requests[request.id] = request

    def _rank(self, request: _Request) -> tuple[int, int]:
        """Ids tell the order of arrival, and stay the same whatever a request goes through."""
        return -request.priority, -request.id if self._lifo else request.id

    def _is_suspect(self, request: _Request, leased: int = 0) -> bool:
        """Judged by the deliveries before the present one, if it is *leased*."""
        return is_suspect(request.deliveries - leased, self._max_deliveries)

    def _deliver(self, request: _Request, deadline: float) -> Lease:
        request.state = _State.LEASED
        request.deliveries += 1
        request.token = self._store.next_token()
        request.worker = self._worker
        request.since = self._clock.time()
        request.deadline = deadline
        self._deliveries[request.id] = _Delivery(request.token)
        return Lease(
            request.id, request.payload, request.slot, request.priority, request.deliveries, request.token
        )

    def _held(self, id_: int, token: int) -> _Request | None:
        """The request, if the delivery with *token* still holds it."""
        request = self._store.requests.get(id_)
        held = request is not None and request.state is _State.LEASED and request.token == token
        return request if held else None

    def _end(self, request: _Request, settlement: Settlement) -> None:
        store = self._store
        if settlement.payload is not None:
            request.payload = settlement.payload
        if settlement.release:
            self._release(request)
        elif settlement.retry_at is not None:
            request.state, request.due = _State.DELAYED, settlement.retry_at
            request.deliveries = request.unexposed = 0
            if settlement.priority is not None:
                request.priority = settlement.priority
        else:
            store.children.pop(request.id, None)
            if settlement.dead is not None:
                request.state = _State.DEAD
                self._note(request, settlement.dead)
            else:
                del store.requests[request.id]

    def _note(self, request: _Request, record: bytes) -> None:
        """*request* is given up now."""
        request.record, request.buried, request.given_up = record, request.payload, self._clock.time()

    def _release(self, request: _Request) -> None:
        request.state = _State.READY
        request.deliveries -= 1

    def _take_back(self, requests: Sequence[_Request]) -> list[_Request]:
        """Make leased *requests* ready, or dead; the dead ones."""
        dead = []
        for request in requests:
            if not request.exposed:
                request.deliveries -= 1
                request.unexposed += 1
            if request.deliveries + request.unexposed // UNEXPOSED_FACTOR < self._max_deliveries:
                request.state = _State.READY
                continue
            times = request.deliveries + request.unexposed
            request.state = _State.DEAD
            self._note(request, deadletter.poison(times, self._clock.time(), request.slot))
            dead.append(request)
        return dead


def _dead(request: _Request) -> Dead:
    pending = request.state is not _State.DEAD
    return Dead(request.id, request.slot, request.buried, request.record or b"", pending)
