"""The exact store of what was seen, with a Bloom filter in front of it."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from scrapy_ha.clock import SystemClock
from scrapy_ha.leveldb.database import Database
from scrapy_ha.leveldb.kind import Kind
from scrapy_ha.seen.keycache import KeyCache
from scrapy_ha.seen.sweep import Sweep
from scrapy_ha.seen.tier import BloomTier

if TYPE_CHECKING:
    from scrapy_ha.seen.bloom import LayeredBloom
    from scrapy_ha.typing import Clock

KIND = Kind(
    name="scrapy_ha seen",
    word="store of what was seen",
    format=1,
    lost="what was done since may be done again",
    options={
        # The filter in front answers what LevelDB's own would be asked for.
        "bloom_filter_bits": 0,
        # Open tables are mapped into memory: 64 of them, the fewest that LevelDB takes. They hold four
        # million keys; of more than that, one met long ago takes some 100 µs in place of 15.
        "max_file_size": 2 * 2**20,
        "max_open_files": 74,
    },
)
STATE_KEY = b"m"
PURGE_LIMIT = 10_000
"""Outdated keys removed by one call of :meth:`SeenStore.maintain`."""
_U32 = struct.Struct(">I")


@dataclass(frozen=True, slots=True)
class State:
    """The state record."""

    generation: int = 1
    token: str = ""
    """See :mod:`scrapy_ha.seen.tier`."""
    identity: str = ""
    finished: bool = False


@dataclass(frozen=True, slots=True)
class Opened:
    """What was found."""

    count: int
    """Keys of the present generation, as far as the filter tells."""
    fresh: bool
    """Nothing was kept here before."""
    finished: bool
    """The last owner said that nothing was left to do."""
    former_identity: str | None
    """What had made the keys, if that is another one now."""
    rebuilt: bool
    """The filter's file was of no use."""


class SeenStore:
    """Keys in LevelDB, in the directory *path*, with the time when each was seen.

    What :meth:`add` returned from survives ``kill -9``; against a power cut :meth:`fsync` helps. Belongs to
    one thread, but for :meth:`fsync`, :meth:`maintain` and what :meth:`begin_save` returns.

    Keys stand under the generation in which they were added. Beginning a new one forgets all of them in
    one step; their space comes back by and by.

    Args:
        identity: What makes the keys, such as the name of the fingerprinter.
        capacity, error_rate, kind, on_filling: See :class:`~scrapy_ha.seen.tier.BloomTier`.
        ttl: Seconds after which a key is new again; ``None``: never.
        crawl: Name of the crawl, kept with the data; another crawl's directory is refused.
    """

    def __init__(
        self,
        path: Path,
        *,
        identity: str = "",
        capacity: int = 1_000_000,
        error_rate: float = 0.01,
        kind: str = "auto",
        ttl: float | None = None,
        crawl: str | None = None,
        clock: Clock | None = None,
        on_filling: Callable[[LayeredBloom], None] = lambda bloom: None,
    ) -> None:
        self.tier = BloomTier(
            path / "bloom", capacity=capacity, error_rate=error_rate, kind=kind, on_filling=on_filling
        )
        self.path = path
        self._db = Database(path, KIND, crawl)
        self._identity = identity
        self._ttl = ttl
        self._clock: Clock = clock or SystemClock()
        self._generation = 1
        self._finished = False
        self._prefix = b""
        self._met = KeyCache()
        self._sweep = None if ttl is None else Sweep(self._db, ttl, _when)

    def open(self) -> Opened:
        """Raises what :meth:`scrapy_ha.leveldb.directory.Directory.open` raises, and ``StoreDamaged``."""
        self._db.open()
        try:
            found = read_state(self._db)
            state = found or State()
            self._generation = state.generation
            self._prefix = prefix_of(self._generation)
            new = _new_token()
            self.tier.open(state.token, new, self.keys)
            self._write_state(new)
        except BaseException:
            self._db.close()
            raise
        changed = found is not None and found.identity != self._identity
        return Opened(
            count=self.tier.bloom.count,
            fresh=found is None,
            finished=state.finished,
            former_identity=state.identity if changed else None,
            rebuilt=self.tier.rebuilt,
        )

    def close(self) -> None:
        """Idempotent."""
        if self._db.is_open:
            self.tier.close()
            self._db.close()

    def __contains__(self, key: bytes) -> bool:
        """Whether *key* was seen, in this generation and not too long ago."""
        if not self.tier.perhaps(key):
            return False
        if key in self._met:
            self.tier.settle(True)
            return True
        value = self._db.get(self._prefix + key)
        self.tier.settle(value is not None)
        if value is None or self._is_outdated(value):
            return False
        if self._ttl is None:
            self._met.add(key)
        return True

    def add(self, key: bytes) -> None:
        """Have *key* seen now.

        Raises:
            StoreFull, StoreError: It is not. The store takes no more.
        """
        self.add_many((key,))

    def add_many(self, keys: Iterable[bytes]) -> None:
        """Have *keys* seen now, in one step."""
        batch = self._db.batch()
        now = self._now()
        added = list(keys)
        for key in added:
            if self._ttl is None or key not in self.tier:  # one that was outdated stands in it
                self.tier.add(key)
            batch.put(self._prefix + key, now)
        self._db.write(batch)
        if self._ttl is None:
            for key in added:
                if key not in self._met:
                    self._met.add(key)

    def when(self, key: bytes) -> float | None:
        """When *key* was seen, epoch seconds; ``None``: it was not."""
        value = self._db.get(self._prefix + key)
        return None if value is None else _when(value)

    def forget(self, key: bytes) -> bool:
        """Have *key* new again; whether it was seen. Its place in the filter stays taken."""
        if self._db.get(self._prefix + key) is None:
            return False
        batch = self._db.batch()
        batch.delete(self._prefix + key)
        self._db.write(batch)
        self._met = KeyCache()
        return True

    def begin_generation(self) -> None:
        """Forget everything."""
        self._generation += 1
        self._prefix = prefix_of(self._generation)
        self._met = KeyCache()
        token = _new_token()
        self._write_state(token)
        self.tier.clear(token)

    def finish(self) -> None:
        """Note that nothing is left to do, for whoever opens this next."""
        self._finished = True
        self._write_state(self._token)

    def keys(self) -> Iterator[bytes]:
        """Of this generation, outdated ones too, in no order."""
        return self._db.keys(self._prefix)

    def fsync(self) -> None:
        self._db.fsync()

    def maintain(self) -> bool:
        """Remove some keys of earlier generations, or that are outdated; whether there may be more."""
        if self._db.remove_some(b"s", self._prefix, PURGE_LIMIT):
            return True
        stop = prefix_of(self._generation + 1)
        return self._sweep is not None and self._sweep.step(self._prefix, stop, self._clock.time())

    def _is_outdated(self, value: bytes) -> bool:
        if self._ttl is None:
            return False
        return _when(value) + self._ttl <= self._clock.time()

    def _now(self) -> bytes:
        return _U32.pack(int(self._clock.time()) & 0xFFFFFFFF)

    def _write_state(self, token: str) -> None:
        self._token = token
        batch = self._db.batch()
        state = State(self._generation, token, self._identity, self._finished)
        batch.put(STATE_KEY, json.dumps(asdict(state)).encode())
        self._db.write(batch)


def read_state(db: Database) -> State | None:
    """The state of the store in *db*; ``None``: it has none yet.

    Raises:
        StoreDamaged: Its record is unreadable.
    """
    stored = db.get(STATE_KEY)
    if stored is None:
        return None
    try:
        state = json.loads(stored)
        return State(
            int(state["generation"]), str(state["token"]), str(state["identity"]), bool(state["finished"])
        )
    except (ValueError, KeyError, TypeError, RecursionError, OverflowError):
        raise db.damaged("its state record is unreadable") from None


def forget_in(path: Path, key: bytes | None) -> bool:
    """Have *key* new again in the store at *path*, which nobody has open, or all keys with ``None``.

    Returns:
        Whether it was seen.

    Raises:
        StoreLocked, StoreDamaged, StoreError: As for :meth:`SeenStore.open`.
    """
    db = Database(path, KIND)
    db.open()
    try:
        state = read_state(db) or State()
        batch = db.batch()
        if key is None:
            state = replace(state, generation=state.generation + 1, token=_new_token())
            batch.put(STATE_KEY, json.dumps(asdict(state)).encode())
            known = True
        else:
            known = db.get(prefix_of(state.generation) + key) is not None
            batch.delete(prefix_of(state.generation) + key)
        db.write(batch)
        return known
    finally:
        db.close()


def _when(value: bytes) -> float:
    return float(_U32.unpack(value)[0])


def prefix_of(generation: int) -> bytes:
    """What the keys of *generation* start with."""
    return b"s" + _U32.pack(generation & 0xFFFFFFFF)


def _new_token() -> str:
    return os.urandom(16).hex()
