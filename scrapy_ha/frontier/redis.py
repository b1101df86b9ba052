"""The shared frontier: one crawl of many workers, in Redis.

Each call is one Lua script, which the server runs in one piece. The keys of a crawl bear one hash tag, so
all of them live in one slot of a cluster:

===============  =======  ==========================================================================
key              type     content
===============  =======  ==========================================================================
``state``        hash     counters and flags of the crawl
``requests``     hash     id → where a request stands, see ``lua/_common.lua``
``payloads``     hash     id → the serialized request
``records``      hash     id → why it was given up, and what it was then
``ready``        zset     slot, rank and id of what is ready, all with one score: a queue per slot
``suspects``     zset     the same, of requests that may be what kills workers
``turns``        zset     slots with anything ready → when they had their last turn
``last-turns``   hash     the same of all slots
``delayed``      zset     id → when it is due
``leased``       zset     id → until when
``active``       zset     suspects that are leased → since when
``dead``         zset     ids of what is dead
``dead-at``      zset     the same → since when
``recorded``     zset     ids of what has a record
``slots``        hash     name of a slot → its number; ``names``: the other way round
``marks``        hash     worker, zero byte, name → mark
``children:<i>`` hash     ordinal → how many children of request *i* without a key are stored
``seen:<g>:<b>`` set      bucket *b* of the keys seen in generation *g*; a hash with times if they expire
===============  =======  ==========================================================================

What was seen takes some ten bytes a key: a bucket holds integers of 64 bits, and as long as it has no more
than 512 of them Redis keeps them side by side (``set-max-intset-entries``). Two keys that are different are
taken for one when they fall into one bucket and have the same integer. Among *n* keys and *b* buckets that
happens with a probability of n² / (2 b 2^64): with a billion keys planned for, 7e-9.
"""

from __future__ import annotations

import random
import struct
from asyncio import gather
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from msgpack import Packer
from redis.exceptions import RedisError

from scrapy_ha import deadletter
from scrapy_ha.errors import StoreError
from scrapy_ha.seen.bloom import normal
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
)

if TYPE_CHECKING:
    from scrapy_ha.typing import Clock

NAMES = (
    "state",
    "requests",
    "payloads",
    "records",
    "ready",
    "suspects",
    "turns",
    "last-turns",
    "delayed",
    "leased",
    "active",
    "dead",
    "dead-at",
    "recorded",
    "slots",
    "names",
    "marks",
)
"""Of the keys that every script gets."""
BUCKET = 256
"""Keys planned for each bucket of what was seen: half of what Redis packs, so that few have more."""
CONNECTIONS = 3
"""Writing, taking ahead, and renewing go on side by side, and none is to wait for a connection."""
BATCH = 500
"""Requests that one script looks at: the server does nothing else meanwhile."""
FOREVER = 1e15
"""Seconds, where infinity is meant."""
_RANK = 1 << 63
_HALVES = struct.Struct(">qI")
# The server knows the older MessagePack alone, which has one type for bytes and text.
_pack = Packer(use_bin_type=False).pack


@dataclass(slots=True)
class _Delivery:
    """One delivery of a page: children are told apart by counting them."""

    token: int
    met: Counter[bytes] = field(default_factory=Counter)


class RedisFrontier:
    """A :class:`~scrapy_ha.typing.Frontier` that any number of workers share.

    Args:
        client: Of redis-py's asynchronous kind; answers are bytes.
        name: Of the crawl: it is the hash tag of all keys.
        worker: Name of this worker; the same one again takes back what it held.
        capacity: Keys planned for. Of the crawl's first worker; those of others do not count.
        clock: In place of the server's, for tests.
        max_deliveries, order, dead_limit, dead_seconds, seen_seconds, keep_seen: See
            :class:`~scrapy_ha.frontier.memory.MemoryFrontier`.
    """

    def __init__(
        self,
        client: Any,
        name: str,
        *,
        worker: str,
        capacity: int = 1_000_000,
        clock: Clock | None = None,
        max_deliveries: int = 5,
        order: str = "fifo",
        dead_limit: int | None = None,
        dead_seconds: float | None = None,
        seen_seconds: float | None = None,
        keep_seen: bool = False,
    ) -> None:
        self._client = client
        self._prefix = f"ha:{{{name}}}:"
        self._keys = [self._prefix + key for key in NAMES]
        self._worker = worker
        self._clock = clock
        self._dead_limit = dead_limit
        self._dead_seconds = dead_seconds
        self._keep_seen = keep_seen
        self._planned = max(1, capacity // BUCKET)
        self._fixed: dict[str, Any] = {
            "worker": worker,
            "lifo": order == "lifo",
            "max_deliveries": max_deliveries,
            "patience": SUSPECT_PATIENCE,
            "unexposed_factor": UNEXPOSED_FACTOR,
        }
        if seen_seconds is not None:
            self._fixed["seen_seconds"] = seen_seconds
        self._crawl = 0
        self._generation = 0
        self._buckets = 1
        self._deliveries: dict[int, _Delivery] = {}
        self._open = False

    # Opening and closing

    async def connect(self) -> float:
        """Make all connections that are needed side by side; the server's time, epoch seconds.

        Raises:
            StoreError: The server cannot be reached.
        """
        await self._call(gather(*(self._client.ping() for _ in range(CONNECTIONS))))
        seconds, microseconds = await self._call(self._client.time())
        return float(seconds + microseconds / 1e6)

    async def disconnect(self) -> None:
        """Close all connections."""
        await self._client.aclose()

    async def open(self) -> Opened:
        begun, seeded, self._crawl, self._generation, self._buckets, token = await self._run(
            "open", [self._children(SEED)], buckets=self._planned, keep_seen=self._keep_seen
        )
        poisoned: list[bytes] = []
        ready, at = 0, 0
        while at >= 0:
            at, some, dead = await self._run("recover", at=at, limit=BATCH)
            ready += some
            poisoned += dead
        self._deliveries = {SEED: _Delivery(token)}
        self._open = True
        marks = await self._call(self._client.hgetall(self._prefix + "marks"))
        mine = self._mark("")
        poison = [dead for id_ in poisoned for dead in await self.dead(1, int(id_) - 1)]
        return Opened(
            bool(begun),
            bool(seeded),
            ready,
            len(poison),
            poison,
            marks={_text(name[len(mine) :]): value for name, value in marks.items() if name.startswith(mine)},
        )

    async def finish(self) -> None:
        await self._run("finish", crawl=self._crawl)

    async def sync(self) -> None:
        """Nothing to do: what the server keeps over a power cut is its own affair."""

    async def maintain(self) -> None:
        """Nothing to do."""

    async def close(self) -> None:
        if not self._open:
            return
        self._open = False
        leases = [[str(id_), delivery.token] for id_, delivery in self._deliveries.items() if id_ != SEED]
        self._deliveries = {}
        for at in range(0, len(leases), BATCH):
            await self._run("release", leases=leases[at : at + BATCH])

    async def claim_seeding(self, ttl: float) -> bool | None:
        """Whether this worker is to produce the start requests, for *ttl* seconds, after which it has to
        claim them again; ``None``: they are all stored. Another one takes over when it does not."""
        answer = await self._run("seed", ttl=ttl)
        return None if answer == 2 else bool(answer)

    # The life of a request

    async def offer(self, entries: Sequence[Entry]) -> list[bool]:
        keys = _Keys(len(NAMES))
        packed = [self._entry(entry, keys) for entry in entries]
        return [bool(new) for new in await self._run("offer", keys.names, entries=packed)]

    def knows(self, key: bytes) -> bool | None:
        return None

    async def forget(self, keys: Sequence[bytes]) -> int:
        names = _Keys(len(NAMES))
        seen = [value for key in set(keys) for value in self._seen(key, names)]
        return int(await self._run("forget", names.names, seen=seen))

    async def lease(
        self,
        limit: int,
        busy: Mapping[str, int],
        full: Collection[str],
        ttl: float,
        exposed: bool = True,
        sample: Collection[str] = (),
    ) -> list[Lease]:
        loaded = {slot: load for slot, load in busy.items() if load}
        values = await self._run(
            "lease",
            limit=limit,
            busy=[_bytes(slot) for slot in loaded],
            loads=list(loaded.values()),
            full=[_bytes(slot) for slot in full],
            sample=[_bytes(slot) for slot in sample],
            ttl=min(ttl, FOREVER),
            exposed=exposed,
            random=random.random(),
        )
        leases = []
        for at in range(0, len(values), 6):
            id_, payload, slot, priority, deliveries, token = values[at : at + 6]
            lease = Lease(int(id_), payload, _text(slot), int(priority), deliveries, token)
            self._deliveries[lease.id] = _Delivery(token)
            leases.append(lease)
        return leases

    async def settle(
        self,
        settlements: Sequence[Settlement],
        children: Sequence[Entry] = (),
        seen: Sequence[bytes] = (),
        marks: Mapping[str, bytes] | None = None,
        seeded: bool = False,
        exposed: Sequence[Lease] = (),
    ) -> list[bool]:
        """*exposed*: leases that are exposed from now on, before any ends; see :meth:`expose`."""
        keys = _Keys(len(NAMES), self._children(SEED))
        arguments = {
            "children": [self._entry(entry, keys) for entry in children],
            "seen": [value for key in seen for value in self._seen(key, keys)],
            "marks": [part for name, value in (marks or {}).items() for part in (self._mark(name), value)],
            "seeded": seeded,
            "exposed": [[str(one.id), one.token] for one in exposed],
            "settlements": [self._settlement(settlement, keys) for settlement in settlements],
        }
        verdicts = await self._run("settle", keys.names, **arguments)
        for settlement in settlements:
            delivery = self._deliveries.get(settlement.lease.id)
            if delivery is not None and delivery.token == settlement.lease.token:
                del self._deliveries[settlement.lease.id]
        return [bool(accepted) for accepted in verdicts]

    async def expose(self, leases: Sequence[Lease], exposed: bool) -> list[bool]:
        return await self._hold(leases, exposed=exposed)

    async def bury(self, lease: Lease, record: bytes) -> bool:
        return (await self._hold([lease], record=record))[0]

    async def renew(self, leases: Sequence[Lease], ttl: float) -> list[bool]:
        return await self._hold(leases, ttl=min(ttl, FOREVER))

    async def reclaim(self) -> tuple[int, int]:
        ready, dead = await self._run("reclaim", limit=BATCH)
        return ready, dead

    async def next_due(self) -> float | None:
        due = (await self._run("counts"))[4]
        return float(due) if due else None

    async def counts(self) -> Counts:
        return Counts(*(await self._run("counts"))[:4])

    # The dead

    async def dead(self, limit: int, after: int = 0) -> list[Dead]:
        values = await self._run("dead", limit=limit, after=str(after))
        found = []
        for at in range(0, len(values), 7):
            id_, slot, payload, record, times, given_up, pending = values[at : at + 7]
            if times >= 0:
                record = deadletter.poison(times, float(given_up), _text(slot))
            found.append(Dead(int(id_), _text(slot), payload, record, bool(pending)))
        return found

    async def replay(self, replays: Sequence[Replay]) -> int:
        packed = [[str(one.id), one.due, False if one.payload is None else one.payload] for one in replays]
        return int(await self._run("replay", replays=packed))

    async def purge(self, ids: Sequence[int]) -> int:
        wanted = list(dict.fromkeys(ids))
        names = [self._children(id_) for id_ in wanted]
        return int(await self._run("purge", names, ids=[str(id_) for id_ in wanted]))

    async def expire(self) -> int:
        limits: dict[str, Any] = {"dead_limit": self._dead_limit, "dead_seconds": self._dead_seconds}
        given = {name: value for name, value in limits.items() if value is not None}
        if not given:
            return 0
        return await self.purge([int(id_) for id_ in await self._run("outdated", limit=BATCH, **given)])

    # Scripts

    async def _run(self, script: str, names: Sequence[str] = (), **arguments: Any) -> Any:
        if self._clock is not None:
            arguments["now"] = self._clock.time()
        keys = [*self._keys, *names]
        run = self._client.register_script(_source(script))
        return await self._call(run(keys=keys, args=[_pack({**self._fixed, **arguments})]))

    async def _call(self, call: Any) -> Any:
        try:
            return await call
        except (RedisError, OSError) as error:
            raise StoreError(f"Redis: {error}") from error

    async def _hold(self, leases: Sequence[Lease], **what: Any) -> list[bool]:
        verdicts = await self._run("hold", leases=[[str(one.id), one.token] for one in leases], **what)
        return [bool(held) for held in verdicts]

    def _entry(self, entry: Entry, keys: _Keys) -> list[Any]:
        bucket, key, identities, ordinal, met, parent = 0, b"", 0, b"", 0, ""
        if entry.key is not None:
            bucket, key = self._seen(entry.key, keys)
        elif entry.parent is not None and (delivery := self._deliveries.get(entry.parent)):
            delivery.met[entry.ordinal] += 1
            identities, parent = keys.place(self._children(entry.parent)), str(entry.parent)
            ordinal, met = entry.ordinal, delivery.met[entry.ordinal]
        rank, priority = _rank(entry.priority)
        due = min(entry.due, FOREVER)
        return [
            entry.payload,
            _bytes(entry.slot),
            rank,
            priority,
            due,
            bucket,
            key,
            identities,
            ordinal,
            met,
            parent,
        ]

    def _settlement(self, one: Settlement, keys: _Keys) -> list[Any]:
        payload = False if one.payload is None else one.payload
        rank, priority = b"", ""
        becomes, what = "done", b""  # type: str, bytes | float
        if one.release:
            becomes = "released"
        elif one.retry_at is not None:
            becomes, what = "retried", min(one.retry_at, FOREVER)
            if one.priority is not None:
                rank, priority = _rank(one.priority)
        elif one.dead is not None:
            becomes, what = "dead", one.dead
        place = keys.place(self._children(one.lease.id))
        return [str(one.lease.id), one.lease.token, becomes, payload, what, rank or False, priority, place]

    def _seen(self, key: bytes, keys: _Keys) -> tuple[int, bytes]:
        number, bucket = _HALVES.unpack_from(normal(key))
        name = f"{self._prefix}seen:{self._generation}:{bucket % self._buckets}"
        return keys.place(name), str(number).encode()

    def _mark(self, name: str) -> bytes:
        return _bytes(f"{self._worker}\0{name}")

    def _children(self, id_: int) -> str:
        return f"{self._prefix}children:{id_}"


class _Keys:
    """Keys that a script gets beside those of every crawl, each once."""

    def __init__(self, before: int, *names: str) -> None:
        self._before = before
        self._places = {name: before + n for n, name in enumerate(names, 1)}

    @property
    def names(self) -> list[str]:
        return list(self._places)

    def place(self, name: str) -> int:
        """Where *name* stands among the script's ``KEYS``."""
        return self._places.setdefault(name, self._before + len(self._places) + 1)


def _rank(priority: int) -> tuple[bytes, str]:
    """What sorts before that of lower priorities; and *priority*, within the range that can be told apart."""
    bounded = max(1 - _RANK, min(priority, _RANK - 1))
    return (_RANK - 1 - bounded).to_bytes(8, "big"), str(bounded)


def _text(value: bytes) -> str:
    return value.decode("utf-8", "surrogatepass")


def _bytes(value: str) -> bytes:
    return value.encode("utf-8", "surrogatepass")


@cache
def _source(script: str) -> str:
    folder = files("scrapy_ha.frontier") / "lua"
    return (folder / "_common.lua").read_text() + (folder / f"{script}.lua").read_text()
