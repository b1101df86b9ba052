"""The embedded frontier: one directory, one worker, no server. Keys: :mod:`._layout`.

Every state change is one LevelDB write batch, written to the operating system before the call
returns: it survives ``kill -9``. Against a power cut it is made durable by :meth:`sync`, which
does not go through LevelDB's own synchronous write (that would make every other write wait for
the device) but fsyncs its log files from outside; tables and manifests LevelDB syncs itself.
"""

from __future__ import annotations

import contextlib
import logging
import math
import struct
from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

from scrapy_ha import deadletter
from scrapy_ha.clock import SystemClock
from scrapy_ha.errors import StoreError
from scrapy_ha.frontier import _layout as layout
from scrapy_ha.frontier._children import Children
from scrapy_ha.frontier._ready import Ready
from scrapy_ha.frontier._seen import Seen
from scrapy_ha.leveldb.database import Database
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
    from scrapy_ha.seen.tier import BloomTier
    from scrapy_ha.typing import Clock

logger = logging.getLogger(__name__)

PROMOTE_LIMIT = 256
"""Delayed requests made ready at a time."""
PROMOTE_ROUNDS = 4
"""Times that one lease call does so, when all that it found is in full slots."""
FIND_ROUNDS = 32
"""Times that one lease call looks on disk for slots, likewise."""
RECLAIM_LIMIT = 100
COMPACT_AFTER = 200_000
"""Settled requests after which the range they stood in is compacted."""
PURGE_LIMIT = 10_000
"""Outdated keys removed by one call of ``maintain``."""
EXPIRE_LIMIT = 1000
"""Dead requests forgotten by one call of ``expire``: some milliseconds."""


@dataclass(slots=True)
class _Held:
    lease: Lease
    queue_key: bytes
    deadline: float
    known: layout.Delivered
    gone: bool = False
    """Expired, and not ready again but dead."""


class LevelDBFrontier:
    """A :class:`~scrapy_ha.typing.Frontier` in the directory *path*, made when missing.

    Coroutines never suspend. All methods but :meth:`sync` and :meth:`maintain` belong to one
    thread; those two may run in another at any time.

    Args:
        clock: Time; ``None`` makes one that starts no earlier than the latest time stored.
        max_deliveries: Deliveries after which a request that was in flight at a crash is dead.
        order: ``"fifo"`` or ``"lifo"`` within slot and priority.
        crawl: Name of the crawl, kept with the data; another crawl's directory is refused.
        dead_limit: How many dead requests are kept; ``None``: all.
        dead_seconds: How long they are kept; ``None``: for ever.
        seen_tier: A Bloom filter that tells keys that are certainly new; it is opened and closed here.
        seen_seconds: After which a key counts as new again; ``None``: never.
        reset_seen: Forget on opening what was seen; requests that wait stay.
        identity: What makes the keys, kept with the data; "" says nothing of it.
        keep_seen: What was seen in a crawl that is complete counts in the next one too.
        begin: Whether opening begins a fresh crawl when the last one is complete. An operator's command
            does not: what it replays is then all that is left to do of the last one.
    """

    def __init__(
        self,
        path: Path,
        *,
        clock: Clock | None = None,
        max_deliveries: int = 5,
        order: str = "fifo",
        crawl: str | None = None,
        dead_limit: int | None = None,
        dead_seconds: float | None = None,
        seen_tier: BloomTier | None = None,
        seen_seconds: float | None = None,
        keep_seen: bool = False,
        reset_seen: bool = False,
        identity: str = "",
        begin: bool = True,
    ) -> None:
        self._db = Database(path, layout.KIND, crawl)
        self._ready = Ready(self._db)
        self._clock = clock
        self._max_deliveries = max_deliveries
        self._lifo = order == "lifo"
        self._dead_limit = dead_limit
        self._dead_seconds = dead_seconds
        self._seen = Seen(self._db, seen_tier, seen_seconds)
        self._random = Random()
        self._keep_seen = keep_seen
        self._reset_seen = reset_seen
        self._identity = identity
        self._begin = begin
        self._state = layout.State()
        self._leases: dict[int, _Held] = {}
        self._delivered: dict[int, layout.Delivered] = {}
        """Of requests that were delivered before and are not settled."""
        self._returned: set[int] = set()
        """Those that were given up and are pending: with few, or none, of them in memory, the end of
        a page costs no look-up."""
        self._oldest = b"o"
        """Nothing dead stands before this key; only tombstones may."""
        self._children = Children(self._db)
        self._lost: dict[int, int] = {}
        self._suspect: int | None = None
        self._suspect_since = 0.0
        self._parked: list[tuple[bytes, bytes]] = []
        self._tokens = 0
        self._earliest = math.inf
        self._delayed_from = b"d"
        self._settled = 0
        self._dead_ranges: list[tuple[bytes, bytes]] = []
        self._recounted = False

    @property
    def clock(self) -> Clock:
        """The time that ``due`` refers to. Only when open."""
        assert self._clock is not None
        return self._clock

    # Opening and closing

    async def open(self) -> Opened:
        self._db.open()
        try:
            with self._db.translated("open"):
                return self._restore()
        except (struct.error, ValueError) as error:
            self._db.close()
            raise self._db.damaged(f"one of its records is unreadable ({error})") from None
        except BaseException:
            self._db.close()
            raise

    def _restore(self) -> Opened:
        stored = self._db.get(layout.STATE_KEY)
        if stored is not None:
            try:
                self._state = layout.State.unpack(stored)
            except struct.error as error:
                raise self._db.damaged(f"its state record is unreadable ({error})") from None
        state = self._state
        if self._clock is None:
            self._clock = SystemClock(state.time)
        batch = self._db.batch()
        if state.finished and self._begin:
            state.finished = False
            if not (state.queued or state.delayed):  # else something was offered or replayed since
                state.generation += 1
                state.seen_generation += not self._keep_seen
                state.started = state.seeded = False
                for key in self._db.iterator(prefix=b"k", include_value=False):
                    batch.delete(key)
        with self._db.iterator(prefix=b"r", include_value=False) as returned:
            self._returned = set(map(layout.returned_id, returned))
        resumed = state.started
        state.opens += 1
        self._tokens = state.opens << 32
        reclaimed = 0
        poison = []
        for key, value in self._db.iterator(prefix=b"l"):
            known = layout.Delivered.unpack(value)
            if known.held:
                dead = self._lost_worker(batch, key, known)
                if dead is not None:
                    poison.append(dead)
                    continue
                reclaimed += 1
            self._delivered[layout.id_of(known.queue_key)] = known
        state.seen_generation += self._reset_seen
        former = self._db.get(layout.IDENTITY_KEY)
        if self._identity:
            batch.put(layout.IDENTITY_KEY, self._identity.encode())
        self._seen.open(state.seen_generation, batch)
        self._write(batch)
        self._earliest = self._first_due(b"d")
        self._children.load(state.generation)
        marks = {
            key[1:].decode("utf-8", "surrogatepass"): value for key, value in self._db.iterator(prefix=b"k")
        }
        changed = former is not None and self._identity and former != self._identity.encode()
        identity = former.decode(errors="replace") if changed and former else None
        return Opened(resumed, state.seeded, reclaimed, len(poison), poison, identity, marks)

    async def close(self) -> None:
        if not self._db.is_open:
            return
        with contextlib.suppress(StoreError):  # a store that failed has its leases back on opening
            held = [Settlement(one.lease, release=True) for one in self._leases.values()]
            if held and not self._db.failed:
                await self.settle(held)
        if not self._db.failed:
            self._seen.close()
        self._db.close()

    # The life of a request

    async def offer(self, entries: Sequence[Entry]) -> list[bool]:
        batch = self._db.batch()
        placed: list[tuple[bytes, bytes] | None] = []
        verdicts = self._store(batch, entries, placed)
        self._state.started |= bool(placed)
        self._write(batch)
        self._place(placed)
        return verdicts

    def knows(self, key: bytes) -> bool | None:
        return self._seen.knows(key, self.clock.time())

    async def forget(self, keys: Sequence[bytes]) -> int:
        batch = self._db.batch()
        forgotten = self._seen.forget(batch, keys)
        self._write(batch)
        return forgotten

    def seen_at(self, key: bytes) -> float | None:
        """When *key* was seen, epoch seconds; ``None``: it was not."""
        return self._seen.when(key)

    async def lease(
        self,
        limit: int,
        busy: Mapping[str, int],
        full: Collection[str],
        ttl: float,
        exposed: bool = True,
        sample: Collection[str] = (),
    ) -> list[Lease]:
        with self._db.translated("read"):
            return self._lease(limit, busy, full, ttl, exposed, sample)

    def _lease(
        self,
        limit: int,
        busy: Mapping[str, int],
        full: Collection[str],
        ttl: float,
        exposed: bool,
        sample: Collection[str],
    ) -> list[Lease]:
        now = self.clock.time()
        if self._suspect is not None and now - self._suspect_since >= SUSPECT_PATIENCE:
            self._cleared(self._suspect)
        more = self._find_more(now)
        next(more, None)
        taken: list[_Held] = []
        batch = self._db.batch()
        load = busy
        while len(taken) < limit:
            found = self._ready.take(load, full)
            if found is None:
                if next(more, False):
                    continue
                break
            slot, (queue_key, payload) = found
            if slot in sample:
                queue_key, payload = self._ready.swap((queue_key, payload), self._random)
            id_ = layout.id_of(queue_key)
            before = self._delivered.get(id_)
            deliveries = 1 if before is None else before.deliveries + 1
            if deliveries > 1 and is_suspect(deliveries - 1, self._max_deliveries):
                if self._suspect is not None:
                    self._parked.append((queue_key, payload))
                    continue
                self._suspect, self._suspect_since = id_, now
            self._tokens += 1
            lease = Lease(id_, payload, slot, layout.priority_of(queue_key), deliveries, self._tokens)
            unexposed = 0 if before is None else before.unexposed
            known = layout.Delivered(deliveries, unexposed, True, exposed, queue_key)
            batch.put(layout.lease_key(id_), known.pack())
            taken.append(_Held(lease, queue_key, now + ttl, known))
            if limit > 1:
                if load is busy:
                    load = dict(busy)
                load[slot] = load.get(slot, 0) + 1  # type: ignore[index]
        if taken:
            self._db.write(batch)  # what was taken is lost to this process if that fails: so is the store
            for held in taken:
                lease = held.lease
                self._leases[lease.id] = held
                self._lost.pop(lease.id, None)
                self._delivered[lease.id] = held.known
        elif not (self._leases or busy or full or self._recounted):
            state = self._state
            if state.queued or (state.delayed and self._earliest == math.inf):
                self._recount()
        return [held.lease for held in taken]

    def _recount(self) -> None:
        """Set right what the state says of how much waits: nothing does, so the crawl would never end."""
        self._recounted = True
        state = self._state
        said = state.queued, state.delayed
        with self._db.iterator(prefix=b"q", include_value=False) as keys:
            state.queued = sum(1 for _ in keys)
        with self._db.iterator(prefix=b"d", include_value=False) as keys:
            state.delayed = sum(1 for _ in keys)
        if (state.queued, state.delayed) != said:
            logger.warning(
                "The state record says that %d requests are queued and %d delayed; there are %d and %d",
                *said,
                state.queued,
                state.delayed,
            )
            self._write(self._db.batch())

    async def settle(
        self,
        settlements: Sequence[Settlement],
        children: Sequence[Entry] = (),
        seen: Sequence[bytes] = (),
        marks: Mapping[str, bytes] | None = None,
        seeded: bool = False,
    ) -> list[bool]:
        batch = self._db.batch()
        placed: list[tuple[bytes, bytes] | None] = []
        self._store(batch, children, placed)
        for key in seen:
            self._seen.add(batch, key, self.clock.time())
        for name, value in (marks or {}).items():
            if value:
                batch.put(layout.mark_key(name), value)
            else:
                batch.delete(layout.mark_key(name))
        accepted: list[tuple[Settlement, _Held]] = []
        verdicts = []
        ended: set[int] = set()
        for settlement in settlements:
            lease = settlement.lease
            held = self._leases.get(lease.id)
            valid = held is not None and held.lease.token == lease.token and lease.id not in ended
            verdicts.append(valid)
            if valid and held is not None:
                ended.add(lease.id)
                accepted.append((settlement, held))
                self._end(batch, settlement, held)
        self._state.started |= bool(placed or seen or marks or seeded)
        self._state.seeded |= seeded
        self._write(batch)
        self._place(placed)
        for settlement, held in accepted:
            self._forget(held)
            if settlement.release:
                self._release(settlement, held)
            elif settlement.retry_at is not None:
                self._delay(settlement.retry_at, settlement.lease.id)
        return verdicts

    async def expose(self, leases: Sequence[Lease], exposed: bool) -> list[bool]:
        verdicts = []
        batch = None
        for lease in leases:
            held = self._leases.get(lease.id)
            verdicts.append(held is not None and held.lease.token == lease.token)
            if held is not None and verdicts[-1] and held.known.exposed is not exposed:
                held.known.exposed = exposed
                batch = batch or self._db.batch()
                batch.put(layout.lease_key(lease.id), held.known.pack())
        if batch is not None:
            self._db.write(batch)
        return verdicts

    async def bury(self, lease: Lease, record: bytes) -> bool:
        held = self._leases.get(lease.id)
        if held is None or held.lease.token != lease.token:
            return False
        batch = self._db.batch()
        buried = layout.Buried(self.clock.time(), lease.slot, lease.priority, record, lease.payload)
        batch.put(layout.dead_key(lease.id), buried.pack())
        batch.put(layout.returned_key(lease.id), b"")
        self._write(batch)
        self._returned.add(lease.id)
        return True

    async def renew(self, leases: Sequence[Lease], ttl: float) -> list[bool]:
        deadline = self.clock.time() + ttl
        verdicts = []
        for lease in leases:
            held = self._leases.get(lease.id)
            valid = held is not None and held.lease.token == lease.token
            if valid and held is not None:
                held.deadline = deadline
            verdicts.append(valid)
        return verdicts

    async def reclaim(self) -> tuple[int, int]:
        now = self.clock.time()
        expired = [held for held in self._leases.values() if held.deadline <= now][:RECLAIM_LIMIT]
        if not expired:
            return 0, 0
        batch = self._db.batch()
        dead = 0
        for held in expired:
            held.gone = self._lost_worker(batch, layout.lease_key(held.lease.id), held.known) is not None
            dead += held.gone
        self._write(batch)
        for held in expired:
            del self._leases[held.lease.id]
            self._cleared(held.lease.id)
            if held.gone:
                del self._delivered[held.lease.id]
                self._ready.forget(held.queue_key)
            else:
                self._lost[held.lease.id] = held.lease.token
                self._ready.put(held.queue_key, held.lease.payload)
        return len(expired) - dead, dead

    async def next_due(self) -> float | None:
        return None if self._earliest == math.inf else self._earliest

    async def counts(self) -> Counts:
        state, leased = self._state, len(self._leases)
        return Counts(state.queued - leased, state.delayed, leased, state.dead)

    async def finish(self) -> None:
        self._state.finished = True
        self._write(self._db.batch())

    # The dead

    async def dead(self, limit: int, after: int = 0) -> list[Dead]:
        found: list[Dead] = []
        start = layout.dead_key(after)
        with (
            self._db.translated("read"),
            self._db.iterator(start=start, include_start=False, stop=b"y") as iterator,
        ):
            for key, value in iterator:
                if len(found) >= limit:
                    break
                found.append(dead_of(key, value, self._returned))
        return found

    async def replay(self, replays: Sequence[Replay]) -> int:
        state, now = self._state, self.clock.time()
        batch = self._db.batch()
        placed: list[tuple[bytes, bytes] | None] = []
        by_id = {replay.id: replay for replay in reversed(replays)}
        for id_, buried in self._in_dead_state(by_id):
            replay = by_id[id_]
            payload = buried.payload if replay.payload is None else replay.payload
            batch.delete(layout.order_key(buried.time, id_))
            batch.put(layout.returned_key(id_), b"")
            if replay.due > now:
                batch.put(
                    layout.delayed_key(replay.due, id_),
                    layout.pack_placed(buried.slot, buried.priority, payload),
                )
                self._delay(replay.due, id_)
                state.delayed += 1
                placed.append(None)
            else:
                queue_key = layout.slot_prefix(buried.slot) + layout.rank(buried.priority, id_, self._lifo)
                batch.put(queue_key, payload)
                state.queued += 1
                placed.append((queue_key, payload))
            self._returned.add(id_)
        state.dead -= len(placed)
        if placed:
            state.finished = False
        self._write(batch)
        self._place(placed)
        return len(placed)

    async def purge(self, ids: Sequence[int]) -> int:
        batch = self._db.batch()
        found = self._in_dead_state(dict.fromkeys(ids))
        for id_, buried in found:
            batch.delete(layout.dead_key(id_))
            batch.delete(layout.order_key(buried.time, id_))
        self._state.dead -= len(found)
        self._write(batch)
        return len(found)

    async def expire(self) -> int:
        state = self._state
        excess = -math.inf if self._dead_limit is None else state.dead - self._dead_limit
        latest = -math.inf if self._dead_seconds is None else self.clock.time() - self._dead_seconds
        if not state.dead or (excess <= 0 and latest == -math.inf):
            return 0
        batch = self._db.batch()
        found = 0
        with (
            self._db.translated("read"),
            self._db.iterator(start=self._oldest, stop=b"p", include_value=False) as iterator,
        ):
            for key in iterator:
                time, id_ = layout.due_of(key)
                self._oldest = key
                if (found >= excess and time > latest) or found >= EXPIRE_LIMIT:
                    break
                batch.delete(key)
                batch.delete(layout.dead_key(id_))
                found += 1
        if found:
            state.dead -= found
            self._write(batch)
        return found

    def _in_dead_state(self, ids: Iterable[int]) -> list[tuple[int, layout.Buried]]:
        values = ((id_, self._db.get(layout.dead_key(id_))) for id_ in ids if id_ not in self._returned)
        try:
            return [(id_, layout.Buried.unpack(value)) for id_, value in values if value is not None]
        except (struct.error, ValueError) as error:
            raise self._db.damaged(f"a dead request is unreadable ({error})") from None

    def _set_dead(self, batch: Any, id_: int, buried: layout.Buried) -> None:
        """Put into *batch* that a request is in the dead state."""
        key = layout.order_key(buried.time, id_)
        batch.put(layout.dead_key(id_), buried.pack())
        batch.put(key, b"")
        self._oldest = min(self._oldest, key)
        self._state.dead += 1
        if id_ in self._returned:
            batch.delete(layout.returned_key(id_))
            self._returned.discard(id_)

    # Durability and housekeeping, in any thread

    async def sync(self) -> None:
        self._db.fsync()

    async def maintain(self) -> None:
        if self._db.failed or not self._db.is_open:
            return
        ranges, self._dead_ranges = self._dead_ranges, []
        for start, stop in ranges:
            self._db.compact(start, stop)
        self._purge_outdated()
        self._seen.maintain(self.clock.time())

    def _purge_outdated(self) -> None:
        """Remove some of what is no longer needed: what earlier crawls had seen, identities of seeds."""
        state = self._state
        ranges = [
            (b"s", layout.seen_prefix(state.seen_generation)),
            (b"c", layout.children_of_generation(state.generation)),
        ]
        if state.seeded:
            seeds = layout.children_prefix(state.generation, SEED)
            ranges.append((seeds, layout.after(seeds)))
        for start, stop in ranges:
            if self._db.remove_some(start, stop, PURGE_LIMIT):
                return

    # Writing

    def _write(self, batch: Any) -> None:
        """Write *batch* and the state in one step."""
        state = self._state
        state.time = self.clock.time()
        batch.put(layout.STATE_KEY, state.pack())
        self._db.write(batch)
        self._seen.written()

    def _store(
        self, batch: Any, entries: Sequence[Entry], placed: list[tuple[bytes, bytes] | None]
    ) -> list[bool]:
        """Put what is new of *entries* into *batch*, and what to do in memory into *placed*."""
        state = self._state
        now = self.clock.time()
        fresh: set[bytes] = set()
        verdicts = []
        for entry in entries:
            if entry.key is not None:
                new = entry.key not in fresh and self._seen.is_new(entry.key, now)
                if new:
                    fresh.add(entry.key)
                    self._seen.add(batch, entry.key, now)
            else:
                new = entry.parent is None or self._is_new_child(entry, entry.parent)
            verdicts.append(new)
            if not new:
                continue
            id_ = state.next_id
            state.next_id += 1
            if entry.due > now:
                batch.put(
                    layout.delayed_key(entry.due, id_),
                    layout.pack_placed(entry.slot, entry.priority, entry.payload),
                )
                state.delayed += 1
                self._delay(entry.due, id_)
                placed.append(None)
            else:
                queue_key = layout.slot_prefix(entry.slot) + layout.rank(entry.priority, id_, self._lifo)
                batch.put(queue_key, entry.payload)
                state.queued += 1
                placed.append((queue_key, entry.payload))
        self._children.write(batch)
        return verdicts

    def _is_new_child(self, entry: Entry, parent: int) -> bool:
        if parent == SEED:
            if self._state.seeded:
                return True
            token = self._state.opens
        elif parent in self._leases:
            token = self._leases[parent].lease.token
        elif parent in self._lost:
            token = self._lost[parent]
        else:
            return True
        return self._children.is_new(entry, parent, token, self._state.generation)

    def _end(self, batch: Any, settlement: Settlement, held: _Held) -> None:
        """Put the end of one lease into *batch*."""
        state, lease = self._state, held.lease
        payload = lease.payload if settlement.payload is None else settlement.payload
        priority = lease.priority if settlement.priority is None else settlement.priority
        lease_key = layout.lease_key(lease.id)
        if settlement.release:
            known = held.known
            known.deliveries -= 1
            known.held = False
            if settlement.payload is not None:
                batch.put(held.queue_key, payload)
            if known.deliveries or known.unexposed:
                batch.put(lease_key, known.pack())
            else:
                batch.delete(lease_key)
            return
        batch.delete(held.queue_key)
        batch.delete(lease_key)
        state.queued -= 1
        if settlement.retry_at is not None:
            batch.put(
                layout.delayed_key(settlement.retry_at, lease.id),
                layout.pack_placed(lease.slot, priority, payload),
            )
            state.delayed += 1
            return
        if settlement.dead is not None:
            now = self.clock.time()
            self._set_dead(
                batch, lease.id, layout.Buried(now, lease.slot, priority, settlement.dead, payload)
            )
        elif lease.id in self._returned:
            self._returned.discard(lease.id)
            batch.delete(layout.returned_key(lease.id))
            batch.delete(layout.dead_key(lease.id))
        self._children.forget(batch, lease.id, state.generation)

    def _lost_worker(self, batch: Any, lease_key: bytes, known: layout.Delivered) -> Dead | None:
        """Put into *batch* that the worker of a delivery is gone; the request if it is poison now."""
        queue_key = known.queue_key
        known.held = False
        if not known.exposed:
            known.deliveries -= 1
            known.unexposed = min(known.unexposed + 1, 0xFFFF)
        payload = self._db.get(queue_key)
        if payload is None:  # cannot be: they are written and deleted together
            batch.delete(lease_key)
            return None
        ends = known.deliveries + known.unexposed // UNEXPOSED_FACTOR
        if ends < self._max_deliveries:
            batch.put(lease_key, known.pack())
            return None
        times = known.deliveries + known.unexposed
        id_, slot, now = layout.id_of(queue_key), layout.slot_of(queue_key), self.clock.time()
        record = deadletter.poison(times, now, slot)
        buried = layout.Buried(now, slot, layout.priority_of(queue_key), record, payload)
        self._set_dead(batch, id_, buried)
        batch.delete(queue_key)
        batch.delete(lease_key)
        self._state.queued -= 1
        return Dead(id_, slot, payload, record)

    # In memory, after the write

    def _place(self, placed: Sequence[tuple[bytes, bytes] | None]) -> None:
        for item in placed:
            if item is not None:
                self._ready.put(*item)

    def _forget(self, held: _Held) -> None:
        lease = held.lease
        del self._leases[lease.id]
        self._ready.forget(held.queue_key)
        self._delivered.pop(lease.id, None)
        self._cleared(lease.id)
        self._settled += 1
        if self._settled >= COMPACT_AFTER:
            self._settled = 0
            prefix = held.queue_key[: -layout.RANK_BYTES]
            self._dead_ranges = [(prefix, held.queue_key), (b"l", b"m")]

    def _cleared(self, id_: int) -> None:
        """When the suspect in flight is settled, or has been there for long, the next one may come."""
        if self._suspect == id_:
            self._suspect = None
            parked, self._parked = self._parked, []
            for item in parked:
                self._ready.put(*item)

    def _release(self, settlement: Settlement, held: _Held) -> None:
        lease = held.lease
        if held.known.deliveries or held.known.unexposed:
            self._delivered[lease.id] = held.known
        payload = lease.payload if settlement.payload is None else settlement.payload
        self._ready.put(held.queue_key, payload)

    def _delay(self, due: float, id_: int) -> None:
        self._earliest = min(self._earliest, due)
        self._delayed_from = min(self._delayed_from, layout.delayed_key(due, id_))

    # Delayed

    def _find_more(self, now: float) -> Iterator[bool]:
        """Make due requests ready and load slots, step by step, a bounded number of times.

        What is left is found by the next call of ``lease``: ``next_due`` is in the past as long as
        something due is not ready.
        """
        for turn in range(FIND_ROUNDS):
            due = self._earliest <= now and turn < PROMOTE_ROUNDS
            if due:
                self._promote(now)
            if not (self._ready.load_more() or due):
                return
            yield True

    def _promote(self, now: float) -> None:
        """Make delayed requests ready whose time has come."""
        batch = self._db.batch()
        placed: list[tuple[bytes, bytes] | None] = []
        last = self._delayed_from
        stop = layout.last_delayed_key(now)
        with self._db.iterator(start=last, stop=stop, include_stop=True) as iterator:
            for key, value in iterator:
                _, id_ = layout.due_of(key)
                slot, priority, (payload,) = layout.unpack_placed(value)
                queue_key = layout.slot_prefix(slot) + layout.rank(priority, id_, self._lifo)
                batch.delete(key)
                batch.put(queue_key, payload)
                placed.append((queue_key, payload))
                last = key
                if len(placed) >= PROMOTE_LIMIT:
                    break
        if placed:
            self._state.delayed -= len(placed)
            self._state.queued += len(placed)
            self._write(batch)
            self._place(placed)
        self._delayed_from = last
        self._earliest = self._first_due(last)

    def _first_due(self, start: bytes) -> float:
        with self._db.iterator(start=start, stop=b"e", include_value=False) as iterator:
            key = next(iterator, None)
        return math.inf if key is None else layout.due_of(key)[0]


def dead_of(key: bytes, value: bytes, returned: Container[int]) -> Dead:
    """The request that an ``x`` record is of; one that cannot be read has neither payload nor record."""
    id_ = layout.dead_id(key)
    try:
        buried = layout.Buried.unpack(value)
    except (struct.error, ValueError):
        return Dead(id_, "", b"", b"")
    return Dead(id_, buried.slot, buried.payload, buried.record, id_ in returned)
