"""The checkpoint's store on a disk that did harm, also when the process dies while it puts things right."""

from __future__ import annotations

import logging
import os
import shutil
import stat
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest
from checkpoints import Crash, Faults, content, die, fill, fold, opened, record, state

from scrapy_ha.checkpoint.reader import restore
from scrapy_ha.checkpoint.store import CheckpointStore
from scrapy_ha.checkpoint.wal import Record
from scrapy_ha.errors import StoreDamaged, StoreError


def segments(path: Path) -> list[Path]:
    return sorted(path.glob("*.wal"))


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def filled(path: Path) -> CheckpointStore:
    """Forty records, in several segments."""
    store = opened(path, segment_bytes=300)
    fill(store, range(40))
    return store


def is_prefix(records: list[Record]) -> bool:
    return records == [record(n) for n in range(len(records))]


@pytest.mark.parametrize("how", ["before", "after", "full"])
def test_death_while_damage_is_put_right(tmp_path: Path, how: str, caplog: pytest.LogCaptureFixture) -> None:
    """At every call to the disk: the next start finds a prefix all the same, without a hole."""
    caplog.set_level(logging.CRITICAL)
    die(filled(tmp_path / "template"))
    flip(segments(tmp_path / "template")[1])
    n = 0
    while True:
        path = tmp_path / str(n)
        shutil.copytree(tmp_path / "template", path)
        store = CheckpointStore(path)
        with pytest.MonkeyPatch.context() as patch:
            faults = Faults(patch, n, how)
            try:
                store.open()
            except (Crash, StoreError):
                pass
        die(store)
        records = content(path)
        assert is_prefix(records), (n, faults.names)
        assert 5 < len(records) < 20, (n, faults.names)
        if not faults.names:
            break
        n += 1
    assert n > 10


def test_a_segment_that_is_missing_ends_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """What stands behind the hole is kept aside, and the log goes on before it."""
    die(filled(tmp_path))
    gone, *later = segments(tmp_path)[2:]
    gone.unlink()
    records = content(tmp_path)
    assert is_prefix(records)
    assert 10 < len(records) < 30
    assert f"segment {int(gone.stem)} of the log is missing" in caplog.text
    assert len(list(tmp_path.glob("*.corrupt-*"))) == len(later)
    store = opened(tmp_path)
    fill(store, range(len(records), 50))
    die(store)
    assert content(tmp_path) == [record(n) for n in range(50)]


@pytest.mark.parametrize("with_snapshot", [False, True])
def test_the_last_segment_without_its_header(tmp_path: Path, with_snapshot: bool) -> None:
    """A kill right after it was made leaves it empty: nothing is lost, now or at the start after next."""
    store = filled(tmp_path)
    if with_snapshot:
        store.begin_snapshot().run(fold)
    else:
        store.log.rotate()
    die(store)
    os.truncate(segments(tmp_path)[-1], 0)
    for n in range(40, 43):
        store = opened(tmp_path, segment_bytes=300)
        assert len(list(store.read())) == n
        fill(store, [n])
        store.log.rotate()
        die(store)
    assert len(content(tmp_path)) == 43


def test_no_manifest(tmp_path: Path) -> None:
    """It is made anew from the snapshots: what was in them is not forgotten."""
    store = opened(tmp_path)
    for n in range(6):
        fill(store, [n])
        store.begin_snapshot().run(fold)
    fill(store, [6])
    die(store)
    (tmp_path / "MANIFEST.json").unlink()
    for _ in range(2):
        assert is_prefix(content(tmp_path))
        assert len(content(tmp_path)) == 7


@pytest.mark.parametrize("made", [1, 2])
def test_all_of_the_first_snapshots_are_damaged(tmp_path: Path, made: int) -> None:
    """The log alone gives everything, until there are as many snapshots as are kept."""
    store = opened(tmp_path)
    for n in range(made):
        fill(store, [n])
        store.begin_snapshot().run(fold)
    fill(store, [made])
    die(store)
    for path in tmp_path.glob("*.snapshot"):
        flip(path)
    assert content(tmp_path) == [record(n) for n in range(made + 1)]


def test_all_snapshots_are_damaged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """What is left in the log is used, and that something is lost is said."""
    store = opened(tmp_path)
    for n in range(5):
        fill(store, [n])
        store.begin_snapshot().run(fold)
    die(store)
    for path in tmp_path.glob("*.snapshot"):
        flip(path)
    assert content(tmp_path) == [record(3), record(4)]
    assert "is lost" in caplog.text


@pytest.mark.parametrize("pattern", ["*.wal", "*.snapshot"])
def test_damage_while_the_store_is_open(tmp_path: Path, pattern: str) -> None:
    """No snapshot is made of it: records would be missing without a word, and the log removed after it."""
    store = opened(tmp_path)
    fill(store, range(10))
    store.begin_snapshot().run(fold)
    fill(store, range(10, 30))
    flip(sorted(tmp_path.glob(pattern))[-1])
    before = list(store.snapshots)
    with pytest.raises(StoreDamaged, match="damaged at byte"):
        store.begin_snapshot().run(fold)
    assert store.snapshots == before
    assert not list(tmp_path.glob("*.new"))
    die(store)
    assert set(state(content(tmp_path))) >= {b"k%d" % n for n in range(10)}


def test_a_fold_that_fails(tmp_path: Path) -> None:
    """Leaves nothing behind, and the next snapshot has everything."""

    def failing(read: Callable[[], Iterable[Record]]) -> Iterator[Record]:
        yield next(iter(read()))
        raise ArithmeticError

    store = opened(tmp_path)
    fill(store, range(10))
    with pytest.raises(ArithmeticError):
        store.begin_snapshot().run(failing)
    assert not list(tmp_path.glob("*.new"))
    assert store.begin_snapshot().run(fold).records == 10
    die(store)


@pytest.mark.parametrize("how", ["before", "after"])
def test_death_while_a_snapshot_is_restored(tmp_path: Path, how: str) -> None:
    """At every call to the disk: a moment between then and now; again, it comes to the same as at once."""
    template = tmp_path / "template"
    store = opened(template, segment_bytes=200)
    for n in range(3):
        fill(store, range(10 * n, 10 * n + 10))
        store.begin_snapshot().run(fold)
    fill(store, range(30, 45))
    die(store)
    number = store.snapshots[1].number
    n = 0
    while True:
        path, looked_at = tmp_path / str(n), tmp_path / f"{n}-between"
        shutil.copytree(template, path)
        with pytest.MonkeyPatch.context() as patch:
            faults = Faults(patch, n, how)
            try:
                restore(path, number)
            except Crash:
                pass
        shutil.copytree(path, looked_at)
        between = content(looked_at)
        assert is_prefix(between), (n, faults.names)
        assert 20 <= len(between) <= 45
        restore(path, number)
        assert content(path) == [record(n) for n in range(20)]
        if not faults.names:
            break
        n += 1
    assert n > 5


@pytest.mark.skipif(os.name == "nt", reason="no such modes")
def test_nobody_else_may_read_what_was_repaired_or_kept_aside(tmp_path: Path) -> None:
    """J11: there may be cookies in it."""
    umask = os.umask(0o022)
    try:
        die(filled(tmp_path))
        flip(segments(tmp_path)[1])
        content(tmp_path)
        last = segments(tmp_path)[-1]
        os.truncate(last, last.stat().st_size - 1)
        content(tmp_path)
    finally:
        os.umask(umask)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.glob("*.wal*")}
    assert {name.split("-")[0].rpartition(".")[2] for name in modes} == {"wal", "corrupt", "torn"}
    assert set(modes.values()) == {0o600}, modes
