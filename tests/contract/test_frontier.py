"""Every frontier passes one and the same suite, :class:`scrapy_ha.testing.FrontierContract`."""

from __future__ import annotations

import asyncio
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from livecopy import copy_live

from scrapy_ha.frontier.leveldb import LevelDBFrontier
from scrapy_ha.frontier.memory import MemoryFrontier, MemoryStore
from scrapy_ha.loop import completed
from scrapy_ha.seen.tier import BloomTier
from scrapy_ha.testing import FakeClock, FrontierContract, MakeFrontier
from scrapy_ha.typing import Entry, Settlement

if TYPE_CHECKING:
    from collections.abc import Collection, Coroutine, Iterator, Mapping, Sequence

    from scrapy_ha.typing import Frontier, Lease


class TestMemoryFrontier(FrontierContract):
    """The reference. Its calls never suspend, so no event loop is needed."""

    shared = True

    @pytest.fixture
    def make(self, clock: FakeClock) -> MakeFrontier:
        store = MemoryStore()

        def make(
            worker: str = "a",
            order: str = "fifo",
            max_deliveries: int = 5,
            fresh: bool = False,
            dead_limit: int | None = None,
            dead_seconds: float | None = None,
            seen_seconds: float | None = None,
            keep_seen: bool = False,
        ) -> Frontier:
            nonlocal store
            if fresh:
                store = MemoryStore()
            return self.frontier(
                store,
                worker=worker,
                clock=clock,
                order=order,
                max_deliveries=max_deliveries,
                dead_limit=dead_limit,
                dead_seconds=dead_seconds,
                seen_seconds=seen_seconds,
                keep_seen=keep_seen,
            )

        return make

    def frontier(self, store: MemoryStore, **options: Any) -> MemoryFrontier:
        return MemoryFrontier(store, **options)

    def crash(self, frontier: Frontier) -> None:
        """Nothing: an object that is not used any more has no farewell."""


class SuspendingFrontier(MemoryFrontier):
    """The reference, far away: every call waits before and after its step, as for a server."""

    async def offer(self, entries: Sequence[Entry]) -> list[bool]:
        await asyncio.sleep(0)
        verdicts = await super().offer(entries)
        await asyncio.sleep(0)
        return verdicts

    async def lease(
        self,
        limit: int,
        busy: Mapping[str, int],
        full: Collection[str],
        ttl: float,
        exposed: bool = True,
        sample: Collection[str] = (),
    ) -> list[Lease]:
        await asyncio.sleep(0)
        leases = await super().lease(limit, busy, full, ttl, exposed, sample)
        await asyncio.sleep(0)
        return leases

    async def renew(self, leases: Sequence[Lease], ttl: float) -> list[bool]:
        await asyncio.sleep(0)
        return await super().renew(leases, ttl)

    def knows(self, key: bytes) -> bool | None:
        return None


class TestSuspendingFrontier(TestMemoryFrontier):
    """The suite also drives a store whose calls wait, and which knows nothing by itself."""

    def frontier(self, store: MemoryStore, **options: Any) -> MemoryFrontier:
        return SuspendingFrontier(store, **options)


class TestLevelDBFrontier(FrontierContract):
    """The embedded store."""

    @pytest.fixture
    def make(self, clock: FakeClock, tmp_path: Path) -> Iterator[MakeFrontier]:
        self.path = tmp_path / "0"
        made: list[LevelDBFrontier] = []

        def make(
            worker: str = "a",
            order: str = "fifo",
            max_deliveries: int = 5,
            fresh: bool = False,
            dead_limit: int | None = None,
            dead_seconds: float | None = None,
            seen_seconds: float | None = None,
            keep_seen: bool = False,
        ) -> Frontier:
            if fresh:
                self.path = next_path(self.path)
            frontier = LevelDBFrontier(
                self.path,
                clock=clock,
                order=order,
                max_deliveries=max_deliveries,
                dead_limit=dead_limit,
                dead_seconds=dead_seconds,
                seen_seconds=seen_seconds,
                keep_seen=keep_seen,
                seen_tier=self.tier(self.path),
            )
            made.append(frontier)
            return made[-1]

        yield make
        for frontier in made:
            completed(frontier.close())

    def crash(self, frontier: Frontier) -> None:
        """The next frontier finds a copy of the files as they were, before the old one could end."""
        old, self.path = self.path, next_path(self.path)
        copy_live(old, self.path)
        completed(frontier.close())

    def drive(self, work: Coroutine[Any, Any, None]) -> None:
        """An embedded store's calls never suspend."""
        completed(work)

    def tier(self, path: Path) -> BloomTier | None:
        return None


class TestLevelDBFrontierBehindAFilter(TestLevelDBFrontier):
    """A Bloom filter in front changes no answer, not even one that is far too small."""

    def tier(self, path: Path) -> BloomTier | None:
        return BloomTier(path / "bloom", capacity=2, error_rate=0.4)


def next_path(path: Path) -> Path:
    return path.with_name(str(int(path.name) + 1))


def test_a_log_cut_anywhere(tmp_path: Path) -> None:
    """Each batch is there as a whole or not at all: no key is seen whose request is lost (I2)."""
    clock = FakeClock()
    frontier = LevelDBFrontier(tmp_path / "0", clock=clock)
    completed(frontier.open())
    batches = [[Entry(b"%d%c" % (n, c), "s", key=b"%d%c" % (n, c)) for c in b"xyz"] for n in range(20)]
    parent = None
    for batch in batches:
        settlements = [] if parent is None else [Settlement(parent)]
        completed(frontier.settle(settlements, children=batch))
        (parent,) = completed(frontier.lease(1, {}, (), 60))
    copy_live(tmp_path / "0", tmp_path / "whole")
    completed(frontier.close())
    (log,) = (tmp_path / "whole" / "db").glob("*.log")
    size = log.stat().st_size
    survivors = set()
    for n, cut in enumerate([*range(0, size, 101), size]):
        path = tmp_path / f"cut {n}"
        shutil.copytree(tmp_path / "whole", path)
        os.truncate(path / "db" / log.name, cut)
        frontier = LevelDBFrontier(path, clock=clock)
        completed(frontier.open())
        pending = {lease.payload for lease in completed(frontier.lease(1000, {}, (), 60))}
        whole = [batch for batch in batches if frontier.knows(batch[0].key or b"")]
        assert whole == batches[: len(whole)]
        survivors.add(len(whole))
        stored = [entry.payload for batch in whole for entry in batch]
        assert pending == set(stored[max(len(whole) - 1, 0) :])  # each batch but the first came with an ack
        assert all(frontier.knows(entry.key or b"") for batch in whole for entry in batch)
        completed(frontier.close())
        shutil.rmtree(path)
    assert survivors == set(range(len(batches) + 1))
