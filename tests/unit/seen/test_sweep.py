"""What is outdated leaves the disk, and nothing else does."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from scrapy_ha.frontier.leveldb import LevelDBFrontier
from scrapy_ha.leveldb.database import Database
from scrapy_ha.loop import completed
from scrapy_ha.seen import sweep
from scrapy_ha.seen.store import SeenStore
from scrapy_ha.testing.clock import FakeClock
from scrapy_ha.typing import Entry


def keys(start: int, stop: int) -> list[bytes]:
    return [hashlib.sha1(f"{n}".encode()).digest() for n in range(start, stop)]


@pytest.fixture(autouse=True)
def _small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweep, "STEP", 70)


def test_a_store(tmp_path: Path) -> None:
    """Keys of the last hour stay, older ones go, in rounds that are a tenth of an hour apart."""
    clock = FakeClock(1_000_000.0)
    store = SeenStore(tmp_path, ttl=3600.0, clock=clock)
    store.open()
    store.add_many(keys(0, 500))
    clock.advance(3000)
    store.add_many(keys(500, 1000))
    store.add_many(keys(0, 10))
    while store.maintain():
        pass
    assert len(list(store.keys())) == 1000
    clock.advance(600)
    steps = 1
    while store.maintain():
        steps += 1
    assert steps > 1000 // 70
    assert set(store.keys()) == {*keys(0, 10), *keys(500, 1000)}
    assert not any(key in store for key in keys(10, 500))
    assert all(key in store for key in [*keys(0, 10), *keys(500, 1000)])
    clock.advance(3000)
    for _ in range(20):
        store.maintain()
        clock.advance(20)
    assert list(store.keys()) == []
    store.close()


def test_the_filter_does_not_fill_with_what_comes_again(tmp_path: Path) -> None:
    """A site that is crawled every hour has its pages in the filter once."""
    clock = FakeClock(1_000_000.0)
    store = SeenStore(tmp_path, ttl=3600.0, clock=clock)
    store.open()
    for _ in range(5):
        assert not any(key in store for key in keys(0, 100))
        store.add_many(keys(0, 100))
        clock.advance(3600)
    assert store.tier.bloom.count == 100
    store.close()


def test_what_is_seen_anew_meanwhile_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the look at a key and its end it may be written again."""
    clock = FakeClock(1_000_000.0)
    store = SeenStore(tmp_path, ttl=3600.0, clock=clock)
    store.open()
    store.add_many(keys(0, 50))
    clock.advance(3600)
    get = Database.get

    def get_later(self: Database, key: bytes) -> bytes | None:
        monkeypatch.undo()
        batch = self.batch()
        for one in keys(0, 5):
            batch.put(store._prefix + one, store._now())
        batch.write()
        return get(self, key)

    monkeypatch.setattr(Database, "get", get_later)
    store.maintain()
    assert set(store.keys()) == set(keys(0, 5))
    store.close()


def test_a_frontier(tmp_path: Path) -> None:
    """The same under our scheduler; what is outdated is new, stored once, and seen again."""
    clock = FakeClock(1_000_000.0)
    frontier = LevelDBFrontier(tmp_path, clock=clock, seen_seconds=3600.0)
    completed(frontier.open())

    def offer(start: int, stop: int) -> int:
        entries = [Entry(b"request", "host", key) for key in keys(start, stop)]
        return sum(completed(frontier.offer(entries)))

    assert offer(0, 200) == 200
    clock.advance(3600)
    assert offer(0, 10) == 10
    for _ in range(10):
        completed(frontier.maintain())
    assert set(frontier._seen.keys()) == set(keys(0, 10))
    assert offer(0, 20) == 10
    assert completed(frontier.counts()).ready == 220
    completed(frontier.close())
