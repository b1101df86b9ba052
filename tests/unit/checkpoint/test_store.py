"""The checkpoint's store: cut, flipped or failing anywhere, a prefix of what was written comes back."""

from __future__ import annotations

import json
import logging
import os
import shutil
from pathlib import Path

import pytest
from checkpoints import DELETE, SET, Crash, Faults, content, die, fill, fold, latest, opened, record, state
from hypothesis import given, settings
from hypothesis import strategies as st

from scrapy_ha.checkpoint.store import CheckpointStore
from scrapy_ha.checkpoint.wal import WriteAheadLog
from scrapy_ha.errors import StoreDamaged, StoreError, StoreFull, StoreLocked, Unserializable

# The log


def test_what_was_flushed_comes_back(tmp_path: Path) -> None:
    """In order, over segments; what was not flushed is lost with its process."""
    store = opened(tmp_path, segment_bytes=300)
    fill(store, range(40))
    store.append(SET, b"never", b"flushed")
    assert store.since_snapshot == 41
    die(store)
    assert len(list(tmp_path.glob("*.wal"))) > 3
    assert content(tmp_path) == [record(n) for n in range(40)]


def test_whether_it_was_closed_in_order(tmp_path: Path) -> None:
    """Known after reading; a log that goes on after such an end is not at it."""
    store = opened(tmp_path)
    fill(store, range(3))
    store.close()
    store.close()
    again = opened(tmp_path)
    assert list(again.read()) == [record(n) for n in range(3)]
    assert again.clean
    fill(again, [3])
    die(again)
    third = opened(tmp_path)
    assert list(third.read()) == [record(n) for n in range(4)]
    assert not third.clean
    third.close()


def test_a_log_cut_at_every_byte(tmp_path: Path) -> None:
    """J2: of 50 records the whole ones before the cut; the rest is cut off, kept aside and said."""
    log = WriteAheadLog(tmp_path)
    log.open()
    ends = []
    for n in range(50):
        one = record(n)
        log.append(one.key, one.payload, one.kind)
        log.flush()
        ends.append(log.size)
    log.close()
    (segment,) = log.segments()
    data = segment.read_bytes()
    assert len(data) == ends[-1]
    for cut in range(len(data)):
        path = tmp_path / str(cut)
        path.mkdir()
        (path / segment.name).write_bytes(data[:cut])
        again = WriteAheadLog(path)
        recovery = again.open()
        whole = sum(end <= cut for end in ends)
        assert list(again.read()) == [record(n) for n in range(whole)], cut
        assert recovery.torn_bytes in {cut - ([20, *ends][whole]), cut}, cut
        again.append(b"more", b"", SET)
        again.flush()
        assert len(list(again.read())) == whole + 1
        again.close()
        shutil.rmtree(path)


def test_every_single_bit_flipped(tmp_path: Path) -> None:
    """J2, J10: a prefix of whole records, nothing invented; the file as it was found is kept."""
    log = WriteAheadLog(tmp_path)
    log.open()
    numbers = range(50)
    for n in numbers:
        one = record(n)
        log.append(one.key, one.payload, one.kind)
    log.close()
    (segment,) = log.segments()
    data = segment.read_bytes()
    logging.disable(logging.CRITICAL)
    try:
        for bit in range(0, 8 * len(data), 5):  # one or two of each byte
            flipped = bytearray(data)
            flipped[bit // 8] ^= 1 << bit % 8
            path = tmp_path / "flipped"
            path.mkdir()
            (path / segment.name).write_bytes(flipped)
            again = WriteAheadLog(path)
            again.open()
            found = list(again.read())
            assert found == [record(n) for n in numbers][: len(found)], bit
            assert len(found) < 50, bit
            again.close()
            kept = [file.read_bytes() for file in path.iterdir() if file.name != segment.name]
            assert any(flipped.endswith(one) or one == flipped for one in kept), bit
            shutil.rmtree(path)
    finally:
        logging.disable(logging.NOTSET)


def test_damage_in_the_middle_ends_the_log_there(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """J2: loudly; later segments do not count either, and everything is kept aside."""
    store = opened(tmp_path, segment_bytes=300)
    fill(store, range(40))
    die(store)
    segments = sorted(tmp_path.glob("*.wal"))
    damaged = segments[2]
    data = bytearray(damaged.read_bytes())
    data[len(data) // 2] ^= 1
    damaged.write_bytes(data)
    store = CheckpointStore(tmp_path)
    found = store.open()
    records = list(store.read())
    assert records == [record(n) for n in range(len(records))]
    assert 10 < len(records) < 30
    assert found.recovery.damaged_bytes > 0
    assert len(found.recovery.aside) == len(segments) - 2
    assert bytes(data) in [path.read_bytes() for path in found.recovery.aside]
    assert all(".corrupt-" in path.name or ".torn-" in path.name for path in found.recovery.aside)
    assert [one for one in caplog.records if one.levelno >= logging.WARNING]
    fill(store, range(len(records), 60))
    die(store)
    assert content(tmp_path) == [record(n) for n in range(60)]


@pytest.mark.parametrize("size", [0, 3, 16])
def test_a_segment_of_random_bytes(tmp_path: Path, size: int) -> None:
    """J10: it is kept aside and does not stand in the way of this start or the next."""
    tmp_path.joinpath("00000001.wal").write_bytes(b"\x93" * size)
    store = CheckpointStore(tmp_path)
    (tmp_path / "FORMAT.json").write_text(json.dumps({"kind": "scrapy_ha checkpoint", "format": 1}))
    store.open()
    assert not list(store.read())
    fill(store, [1])
    die(store)
    assert content(tmp_path) == [record(1)]
    assert [
        path for path in tmp_path.iterdir() if ".corrupt-" in path.name or ".torn-" in path.name
    ] or not size


def test_a_record_that_is_too_large(tmp_path: Path) -> None:
    """Refused, with nothing else lost."""
    store = opened(tmp_path)
    with pytest.raises(Unserializable):
        store.append(SET, b"k", b"x" * (2**24 + 1))
    fill(store, [1])
    die(store)
    assert content(tmp_path) == [record(1)]


# Snapshots


def test_a_snapshot_takes_the_place_of_the_log_before_it(tmp_path: Path) -> None:
    """What comes meanwhile is not in it, and not lost."""
    store = opened(tmp_path)
    fill(store, range(100))
    store.append(DELETE, b"k7", b"")
    work = store.begin_snapshot()
    assert store.since_snapshot == 0
    fill(store, range(100, 120))
    snapshot = work.run(fold)
    assert snapshot.records == 99
    die(store)
    expected = {record(n).key: record(n).payload for n in range(120) if n != 7}
    assert state(content(tmp_path)) == expected
    assert not list(tmp_path.glob("*.new"))


def test_three_snapshots_are_kept_and_the_log_since_the_first(tmp_path: Path) -> None:
    """Disk does not grow with the crawl."""
    store = opened(tmp_path)
    for n in range(10):
        fill(store, [n])
        store.begin_snapshot().run(fold)
    assert len(list(tmp_path.glob("*.snapshot"))) == 3
    assert len(list(tmp_path.glob("*.wal"))) == 4 - 1
    die(store)
    assert len(content(tmp_path)) == 10


@pytest.mark.parametrize("damage", ["flip", "cut", "remove"])
@pytest.mark.parametrize("how_many", [1, 2])
def test_a_damaged_snapshot(
    tmp_path: Path, damage: str, how_many: int, caplog: pytest.LogCaptureFixture
) -> None:
    """The one before it serves, with the log since then: nothing is lost, and it is kept aside."""
    store = opened(tmp_path)
    for n in range(5):
        fill(store, range(10 * n, 10 * n + 10))
        store.begin_snapshot().run(fold)
    fill(store, [50])
    die(store)
    for path in sorted(tmp_path.glob("*.snapshot"))[-how_many:]:
        data = bytearray(path.read_bytes())
        if damage == "flip":
            data[30] ^= 1
            path.write_bytes(data)
        elif damage == "cut":
            os.truncate(path, len(data) - 1)
        else:
            path.unlink()
    assert len(content(tmp_path)) == 51
    assert (
        sum("snapshot" in one.getMessage() for one in caplog.records if one.levelname == "ERROR") == how_many
    )
    assert len(list(tmp_path.glob("*.corrupt-*"))) == (0 if damage == "remove" else how_many)


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b'{"snapshots": [{}]}', b"[" * 100_000])
def test_a_damaged_manifest(tmp_path: Path, data: bytes) -> None:
    """It is made anew from the snapshots that are whole."""
    store = opened(tmp_path)
    for n in range(2):
        fill(store, [n])
        store.begin_snapshot().run(fold)
    fill(store, [2])
    die(store)
    (tmp_path / "MANIFEST.json").write_bytes(data)
    assert len(content(tmp_path)) == 3
    assert len(content(tmp_path)) == 3


# Faults


def work(path: Path, done: list[int]) -> None:
    """Everything that a store does to the disk; *done* says what had returned before it failed."""
    store = CheckpointStore(path, segment_bytes=400)
    try:
        store.open()
        list(store.read())
        for n in range(12):
            one = record(n)
            store.append(one.kind, one.key, one.payload)
            store.flush()
            done.append(n)
            if n % 3 == 2:
                store.fsync()
                store.begin_snapshot().run(fold)
        store.close()
    except BaseException:
        die(store)
        raise


@pytest.mark.parametrize("how", ["before", "after", "half", "full"])
def test_every_call_to_the_disk_fails_once(
    tmp_path: Path, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    """What had returned is there afterwards, in order; of what had not, all or nothing."""
    caplog.set_level(logging.CRITICAL)
    hit: set[str] = set()
    n = 0
    while True:
        path = tmp_path / str(n)
        done: list[int] = []
        with pytest.MonkeyPatch.context() as patch:
            faults = Faults(patch, n, how)
            try:
                work(path, done)
            except (Crash, StoreError):
                pass
        hit.update(faults.names)
        found = sorted(int(one.key[1:]) for one in latest(content(path)))
        assert found[: len(done)] == done, (n, faults.names)
        assert len(found) <= len(done) + 1, (n, faults.names)
        assert found == list(range(len(found)))
        assert all(one == record(int(one.key[1:])) for one in latest(content(path)))
        shutil.rmtree(path)
        if not faults.names:
            break
        n += 1
    assert n > 80
    assert {"create", "write", "fsync", "replace"} <= hit


def test_a_full_disk_and_then_space(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """J5: the failed write is cut back; what was appended goes out when there is space, in order."""
    store = opened(tmp_path)
    fill(store, range(5))
    with monkeypatch.context() as patch:
        Faults(patch, 0, "full")
        with pytest.raises(StoreFull, match="No space"):
            fill(store, [5])
    fill(store, [6])
    die(store)
    assert content(tmp_path) == [record(n) for n in range(7)]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from(["set", "delete", "flush", "snapshot", "die", "close"]), max_size=40))
def test_any_order_of_events(tmp_path_factory: pytest.TempPathFactory, steps: list[str]) -> None:
    """Against a dict that forgets at a kill what was not flushed."""
    path = tmp_path_factory.mktemp("any")
    model: dict[bytes, bytes] = {}
    unflushed: list[tuple[bytes, bytes | None]] = []
    store = opened(path, segment_bytes=200)
    assert not list(store.read())

    def flushed() -> None:
        for key, value in unflushed:
            if value is None:
                model.pop(key, None)
            else:
                model[key] = value
        unflushed.clear()

    for n, step in enumerate(steps):
        key = b"%d" % (n % 5)
        if step == "set":
            store.append(SET, key, b"%d" % n)
            unflushed.append((key, b"%d" % n))
        elif step == "delete":
            store.append(DELETE, key, b"")
            unflushed.append((key, None))
        elif step == "flush":
            store.flush()
            flushed()
        elif step == "snapshot":
            store.begin_snapshot().run(fold)
            flushed()
        else:
            if step == "close":
                store.close()
                flushed()
            else:
                die(store)
                unflushed.clear()
            store = opened(path, segment_bytes=200)
            assert state(store.read()) == model
            assert store.clean or step == "die"
    die(store)


# Owner and format


def test_one_owner(tmp_path: Path) -> None:
    """J9: the second is refused, the first unharmed; after its death the lock is free."""
    store = opened(tmp_path)
    with pytest.raises(StoreLocked, match=str(os.getpid())):
        opened(tmp_path)
    fill(store, [1])
    die(store)
    assert content(tmp_path) == [record(1)]


def test_the_lock_file_of_another_host_is_no_lock(tmp_path: Path) -> None:
    """J9: on shared storage its owner died; only the kernel's lock counts, so no override is needed."""
    owner = {"pid": 1, "host": "elsewhere", "since": "2020-01-01T00:00:00+00:00", "command": "scrapy crawl"}
    (tmp_path / "lock").write_text(json.dumps(owner))
    store = opened(tmp_path)
    assert json.loads((tmp_path / "lock").read_bytes())["pid"] == os.getpid()
    die(store)


@pytest.mark.parametrize(
    ("name", "data", "said"),
    [
        (
            "FORMAT.json",
            b'{"kind": "scrapy_ha checkpoint", "format": 99}',
            "format 99",
        ),
        ("FORMAT.json", b"{}", "damaged"),
        ("FORMAT.json", b"\xff", "damaged"),
        ("FORMAT.json", b'{"kind": "x", "format": 1}', "'x'"),
        ("FORMAT.json", b'{"kind": "scrapy_ha checkpoint", "format": 1, "crawl": "other"}', "another crawl"),
        ("holiday.jpg", b"", "not a checkpoint's"),
    ],
)
def test_what_is_not_ours_stays_untouched(tmp_path: Path, name: str, data: bytes, said: str) -> None:
    """Of a newer format, of another kind, of another crawl, or with foreign files in it."""
    (tmp_path / name).write_bytes(data)
    with pytest.raises(StoreDamaged, match=said):
        CheckpointStore(tmp_path, crawl="this").open()
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert (tmp_path / name).read_bytes() == data


def test_a_log_of_a_newer_version(tmp_path: Path) -> None:
    """Refused, and whole when a newer release takes it up."""
    store = opened(tmp_path)
    fill(store, [1])
    die(store)
    (segment,) = tmp_path.glob("*.wal")
    from scrapy_ha.segments.format import _checked

    segment.write_bytes(_checked(b"HAWALOG\n", 2, b"mark") + b"unknown")
    data = segment.read_bytes()
    with pytest.raises(StoreDamaged, match="newer"):
        CheckpointStore(tmp_path).open()
    assert segment.read_bytes() == data


def test_how_much_came_since_the_snapshot(tmp_path: Path) -> None:
    """In records and in bytes: either may be what calls for the next one."""
    store = CheckpointStore(tmp_path / "checkpoint")
    store.open()
    for _ in range(3):
        store.append(1, b"name", b"x" * 1000)
    assert (store.since_snapshot, store.bytes_since_snapshot) == (3, 3000)
    store.begin_snapshot()
    assert (store.since_snapshot, store.bytes_since_snapshot) == (0, 0)
    store.close()
