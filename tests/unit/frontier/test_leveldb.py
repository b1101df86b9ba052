"""What is particular to the LevelDB frontier: its files, its memory, its faults."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from scrapy_ha.errors import StoreDamaged, StoreError
from scrapy_ha.frontier import _layout as layout
from scrapy_ha.frontier import _slots
from scrapy_ha.frontier.leveldb import LevelDBFrontier
from scrapy_ha.loop import completed
from scrapy_ha.typing import Entry, Lease, Replay, Settlement


def take(frontier: LevelDBFrontier, limit: int = 1) -> list[Lease]:
    return completed(frontier.lease(limit, {}, (), math.inf))


def drain(frontier: LevelDBFrontier, at_once: int = 50) -> list[bytes]:
    """Payloads of all that is ready, in order, each acknowledged."""
    payloads = []
    while leases := take(frontier, at_once):
        payloads += [lease.payload for lease in leases]
        completed(frontier.settle([Settlement(lease) for lease in leases]))
    return payloads


def entries(count: int, slots: int = 1, size: int = 10) -> list[Entry]:
    return [
        Entry(b"%d" % number + b"." * size, f"host{number % slots}", b"key%d" % number)
        for number in range(count)
    ]


@pytest.fixture
def frontier(tmp_path: Path) -> Iterator[LevelDBFrontier]:
    one = LevelDBFrontier(tmp_path / "frontier")
    completed(one.open())
    yield one
    completed(one.close())


def copy_of(path: Path, to: Path) -> Path:
    shutil.copytree(path, to)
    return to


def test_log_cut_anywhere_opens_with_whole_batches(tmp_path: Path) -> None:
    """Cut anywhere in its last 4 KiB, the log gives a prefix of the batches, each whole (S17)."""
    path = tmp_path / "whole"
    one = LevelDBFrontier(path)
    completed(one.open())
    for number in range(40):
        completed(one.offer([Entry(b"%03d" % number * 30, "host", b"key%d" % number) for _ in "1"]))
    snapshot = copy_of(path, tmp_path / "snapshot")
    completed(one.close())
    (log,) = (snapshot / "db").glob("*.log")
    whole = log.read_bytes()
    last = -1
    for size in [*range(max(0, len(whole) - 4096), len(whole), 7), len(whole)]:
        cut = copy_of(snapshot, tmp_path / "cut")
        (cut / "db" / log.name).write_bytes(whole[:size])
        two = LevelDBFrontier(cut)
        completed(two.open())
        seen = sum(bool(two.knows(b"key%d" % number)) for number in range(40))
        stored = drain(two)
        assert stored == [b"%03d" % number * 30 for number in range(seen)]
        assert seen >= last
        last = seen
        completed(two.close())
        shutil.rmtree(cut)
    assert last == 40


def test_bit_flips_in_the_log_are_noticed(tmp_path: Path) -> None:
    """A damaged log is refused and left as it is; never read as something else."""
    path = tmp_path / "whole"
    one = LevelDBFrontier(path)
    completed(one.open())
    completed(one.offer(entries(20)))
    completed(one.offer([Entry(b"last", "host")]))  # without it the harm would be at a torn end
    snapshot = copy_of(path, tmp_path / "snapshot")
    completed(one.close())
    (log,) = (snapshot / "db").glob("*.log")
    whole = log.read_bytes()
    for at in range(20, len(whole) - 200, 61):
        damaged = copy_of(snapshot, tmp_path / "damaged")
        flipped = bytearray(whole)
        flipped[at] ^= 1 << at % 8
        (damaged / "db" / log.name).write_bytes(flipped)
        with pytest.raises(StoreDamaged, match="Move the directory away"):
            completed(LevelDBFrontier(damaged).open())
        assert (damaged / "db" / log.name).read_bytes() == flipped
        shutil.rmtree(damaged)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("db/CURRENT", b""),
        ("db/CURRENT", None),
        ("FORMAT.json", b"{"),
        ("FORMAT.json", b"[]"),
        ("FORMAT.json", b'{"kind": "something else", "format": 1}'),
        ("FORMAT.json", b'{"kind": "scrapy_ha frontier", "format": 99, "made": true}'),
    ],
)
def test_damaged_directory_is_refused(tmp_path: Path, name: str, content: bytes | None) -> None:
    """The message says where and what to do; the data stay."""
    path = tmp_path / "frontier"
    one = LevelDBFrontier(path)
    completed(one.open())
    completed(one.offer(entries(5)))
    completed(one.close())
    file = path / name
    original = file.read_bytes()
    if content is None:
        file.unlink()
    else:
        file.write_bytes(content)
    with pytest.raises(StoreDamaged, match=f"{path}.*It was left as it is"):
        completed(LevelDBFrontier(path).open())
    file.write_bytes(original)
    again = LevelDBFrontier(path)
    completed(again.open())
    assert len(drain(again)) == 5
    completed(again.close())


def test_directory_of_another_crawl_is_refused(tmp_path: Path) -> None:
    """Its requests are not taken for this crawl's; under its own name it goes on."""
    path = tmp_path / "frontier"
    one = LevelDBFrontier(path, crawl="books")
    completed(one.open())
    completed(one.offer(entries(5)))
    completed(one.close())
    with pytest.raises(StoreDamaged, match="another crawl, 'books'"):
        completed(LevelDBFrontier(path, crawl="authors").open())
    again = LevelDBFrontier(path, crawl="books")
    assert completed(again.open()).resumed
    completed(again.close())


def test_killed_while_being_made(tmp_path: Path) -> None:
    """A directory that was never whole is made again."""
    path = tmp_path / "frontier"
    (path / "db").mkdir(parents=True)
    (path / "FORMAT.json").write_text(json.dumps({"kind": "scrapy_ha frontier", "format": 1, "made": False}))
    one = LevelDBFrontier(path)
    assert not completed(one.open()).resumed
    completed(one.close())


def test_path_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "frontier").write_text("x")
    with pytest.raises(StoreDamaged, match="not a directory"):
        completed(LevelDBFrontier(tmp_path / "frontier").open())


def test_path_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(StoreError, match="cannot be used"):
        completed(LevelDBFrontier(tmp_path / "file" / "frontier").open())


def test_memory_holds_heads_only(frontier: LevelDBFrontier) -> None:
    """However many wait, few are in memory, and the order is that of arrival."""
    completed(frontier.offer(entries(5000)))
    slots = frontier._ready.slots
    assert sum(len(slot.items) for slot in slots._slots.values()) <= 2 * _slots.HEAD
    assert [int(payload.split(b".")[0]) for payload in drain(frontier, 1)] == list(range(5000))


def test_large_payloads_stay_on_disk(frontier: LevelDBFrontier, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is read ahead is bounded in bytes as well; the order is that of arrival all the same."""
    monkeypatch.setattr(_slots, "BUFFER_BYTES", 100_000)
    completed(frontier.offer(entries(300, slots=3, size=10_000)))
    slots = frontier._ready.slots
    assert slots._bytes <= 120_000
    numbers = [int(payload.split(b".")[0]) for payload in drain(frontier, 1)]
    assert sorted(numbers) == list(range(300))
    assert [number for number in numbers if not number % 3] == list(range(0, 300, 3))
    assert slots._bytes == 0


def test_more_slots_than_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Slots beyond the limit wait on disk and all get their turn, also after a restart."""
    monkeypatch.setattr(_slots, "SLOT_LIMIT", 10)
    one = LevelDBFrontier(tmp_path / "frontier")
    completed(one.open())
    completed(one.offer(entries(1000, slots=200)))
    assert len(one._ready.slots) == 10
    some = take(one, 300)
    completed(one.settle([Settlement(lease) for lease in some]))
    late = [Entry(b"late%d." % number, f"late{number}") for number in range(30)]
    completed(one.offer(late))
    completed(one.close())
    two = LevelDBFrontier(tmp_path / "frontier")
    completed(two.open())
    rest = drain(two, 7)
    assert len(two._ready.slots) == 0
    assert sorted(rest + [lease.payload for lease in some]) == sorted(
        entry.payload for entry in entries(1000, slots=200) + late
    )
    completed(two.close())


def test_newcomers_of_a_slot_on_disk_keep_their_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slot that is only on disk and gets new entries hands out the old ones first, each once."""
    monkeypatch.setattr(_slots, "SLOT_LIMIT", 2)
    one = LevelDBFrontier(tmp_path / "frontier")
    completed(one.open())
    for round_ in range(3):
        for slot in "abcde":
            completed(one.offer([Entry(f"{slot}{round_}".encode(), slot)]))
    payloads = drain(one, 1)
    assert sorted(payloads) == sorted(f"{slot}{round_}".encode() for slot in "abcde" for round_ in range(3))
    for slot in "abcde":
        own = [payload for payload in payloads if payload.startswith(slot.encode())]
        assert own == sorted(own)
    completed(one.close())


def test_lifo_trims_its_head(tmp_path: Path) -> None:
    """The newest come first, from memory and from disk alike."""
    one = LevelDBFrontier(tmp_path / "frontier", order="lifo")
    completed(one.open())
    for entry in entries(1000):
        completed(one.offer([entry]))
    assert sum(len(slot.items) for slot in one._ready.slots._slots.values()) <= 2 * _slots.HEAD
    assert [int(payload.split(b".")[0]) for payload in drain(one)] == list(range(999, -1, -1))
    completed(one.close())


def test_order_may_change_between_runs(tmp_path: Path) -> None:
    """Requests stored under the other order are all handed out, each once."""
    for order, offered in (("fifo", range(10)), ("lifo", range(10, 20)), ("fifo", range(20, 30))):
        one = LevelDBFrontier(tmp_path / "frontier", order=order)
        completed(one.open())
        completed(one.offer([Entry(b"%d" % number, "host") for number in offered]))
        taken = take(one, 3)
        completed(one.settle([Settlement(lease, release=True) for lease in taken]))
        completed(one.close())
    one = LevelDBFrontier(tmp_path / "frontier")
    completed(one.open())
    assert sorted(map(int, drain(one))) == list(range(30))
    completed(one.close())


def test_clock_set_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A wall clock that was set back by an hour between two runs delays nothing by an hour."""
    one = LevelDBFrontier(tmp_path / "frontier")
    completed(one.open())
    now = one.clock.time()
    completed(one.offer([Entry(b"due", "host", due=now + 0.001)]))
    completed(one.close())
    monkeypatch.setattr("scrapy_ha.clock.time.time", lambda: now - 3600)
    two = LevelDBFrontier(tmp_path / "frontier")
    completed(two.open())
    while two.clock.time() < now + 0.001:
        pass
    assert drain(two) == [b"due"]
    completed(two.close())


def test_descriptors_and_files_are_bounded(frontier: LevelDBFrontier, tmp_path: Path) -> None:
    """Thirty thousand requests of a kilobyte stand in a handful of files."""
    for start in range(0, 30_000, 1000):
        completed(
            frontier.offer(
                [Entry(b"%d" % number * 200, f"h{number % 999}") for number in range(start, start + 1000)]
            )
        )
    assert len(list((tmp_path / "frontier" / "db").iterdir())) < 50


def test_generations_are_purged(tmp_path: Path) -> None:
    """What an earlier, finished crawl had seen is forgotten, and leaves the disk bit by bit."""
    path = tmp_path / "frontier"
    one = LevelDBFrontier(path)
    completed(one.open())
    completed(one.offer(entries(100)))
    drain(one)
    completed(one.finish())
    completed(one.close())
    two = LevelDBFrontier(path)
    assert not completed(two.open()).resumed
    assert two.knows(b"key1") is False
    assert completed(two.offer(entries(1))) == [True]
    completed(two.maintain())
    assert len(list(two._db.iterator(prefix=b"s"))) == 1
    assert len(list(two._db.iterator(prefix=layout.seen_prefix(0)))) == 0
    completed(two.close())


def test_compaction_keeps_everything(frontier: LevelDBFrontier, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scrapy_ha.frontier.leveldb.COMPACT_AFTER", 50)
    completed(frontier.offer(entries(200)))
    first = take(frontier, 120)
    completed(frontier.settle([Settlement(lease) for lease in first]))
    completed(frontier.maintain())
    assert len(drain(frontier)) == 80


def test_sync_is_repeatable_while_tables_change(frontier: LevelDBFrontier) -> None:
    for start in range(0, 20_000, 5000):
        completed(frontier.offer([Entry(b"x" * 1000, "host") for _ in range(start, start + 5000)]))
        completed(frontier.sync())


def test_the_end_of_a_page_looks_nothing_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether it has a record is known without the disk, also with some that have."""
    one = LevelDBFrontier(tmp_path / "frontier")
    completed(one.open())
    completed(one.offer(entries(20)))
    leases = take(one, 20)
    for lease in leases[:5]:
        completed(one.bury(lease, b"record"))
    asked: list[bytes] = []
    monkeypatch.setattr(one._db, "get", asked.append)
    for lease in leases:
        completed(one.settle([Settlement(lease)]))
    assert asked == []
    assert completed(one.dead(5)) == []
    assert list(one._db.iterator(prefix=b"r")) == []
    completed(one.close())


def test_expiring_starts_where_it_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not at the first key, which is behind all those deleted since; and all keys of one go."""
    monkeypatch.setattr("scrapy_ha.frontier.leveldb.EXPIRE_LIMIT", 10)
    one = LevelDBFrontier(tmp_path / "frontier", dead_limit=20)
    completed(one.open())
    completed(one.offer(entries(100)))
    leases = take(one, 100)
    completed(one.settle([Settlement(lease, dead=b"record") for lease in leases]))
    steps = 0
    while completed(one.expire()) == 10:
        steps += 1
        assert layout.due_of(one._oldest)[1] == leases[10 * steps].id
    assert steps == 8
    assert len(list(one._db.iterator(prefix=b"o"))) == len(list(one._db.iterator(prefix=b"x"))) == 20
    completed(one.purge([lease.id for lease in leases]))
    assert len(list(one._db.iterator(prefix=b"o"))) == len(list(one._db.iterator(prefix=b"x"))) == 0
    completed(one.close())


def test_looking_on_begins_nothing(tmp_path: Path) -> None:
    """An operator's command leaves a complete crawl complete; what it replays is then all there is to do."""
    for replayed in (False, True):
        path = tmp_path / str(replayed)
        one = LevelDBFrontier(path)
        completed(one.open())
        completed(one.offer(entries(2)))
        done, dead = take(one, 2)
        completed(one.settle([Settlement(done), Settlement(dead, dead=b"record")], seeded=True))
        completed(one.finish())
        completed(one.close())
        operator = LevelDBFrontier(path, begin=False)
        completed(operator.open())
        if replayed:
            completed(operator.replay([Replay(dead.id)]))
        completed(operator.close())
        two = LevelDBFrontier(path)
        opened = completed(two.open())
        assert (opened.resumed, opened.seeded) == (replayed, replayed)
        assert len(drain(two)) == replayed
        completed(two.close())


def test_counts_that_are_wrong_are_set_right_when_nothing_waits(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Else the crawl would wait for what is not there, for ever."""
    one = LevelDBFrontier(tmp_path)
    completed(one.open())
    completed(one.offer([Entry(b"x", "slot", b"key")]))
    one._state.queued += 2**60
    one._state.delayed = 7
    (lease,) = completed(one.lease(5, {}, (), 60.0))
    completed(one.settle([Settlement(lease)]))
    assert completed(one.counts()).pending > 2**59
    assert completed(one.lease(5, {}, (), 60.0)) == []
    assert completed(one.counts()).pending == 0
    assert "7 delayed; there are 0 and 0" in caplog.text
    completed(one.close())
