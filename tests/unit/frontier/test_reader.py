"""Looking at the dead without opening their store: beside its owner, and whatever the directory is."""

from __future__ import annotations

import hashlib
import json
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from scrapy_ha.errors import HAError, StoreDamaged
from scrapy_ha.frontier import _layout as layout
from scrapy_ha.frontier.leveldb import LevelDBFrontier
from scrapy_ha.frontier.reader import read_dead
from scrapy_ha.leveldb import copy
from scrapy_ha.leveldb.manifest import Manifest
from scrapy_ha.loop import completed
from scrapy_ha.typing import Entry, Replay, Settlement


@pytest.fixture
def frontier(tmp_path: Path) -> Iterator[LevelDBFrontier]:
    one = LevelDBFrontier(tmp_path / "frontier")
    completed(one.open())
    yield one
    completed(one.close())


def give_up(frontier: LevelDBFrontier, names: list[str], size: int = 10) -> list[int]:
    completed(frontier.offer([Entry(name.encode() + b"." * size, "host") for name in names]))
    leases = completed(frontier.lease(len(names), {}, (), 60))
    completed(frontier.settle([Settlement(lease, dead=b"why " + lease.payload[:3]) for lease in leases]))
    return [lease.id for lease in leases]


def fingerprint(directory: Path) -> dict[str, str]:
    """Every file there is, with its content."""
    return {
        str(path.relative_to(directory)): hashlib.sha1(path.read_bytes()).hexdigest()
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }


def test_the_same_as_the_owner_sees(frontier: LevelDBFrontier, tmp_path: Path) -> None:
    """Dead, replayed and buried ones alike; the directory stays as it is, and nothing is left beside it."""
    ids = give_up(frontier, ["a", "b", "c"])
    completed(frontier.replay([Replay(ids[1])]))
    completed(frontier.offer([Entry(b"d", "host")]))
    for lease in completed(frontier.lease(1, {}, (), 60)):
        completed(frontier.bury(lease, b"why d"))
    before = fingerprint(tmp_path)
    for _ in range(2):
        assert list(read_dead(tmp_path / "frontier")) == completed(frontier.dead(10))
    assert fingerprint(tmp_path) == before
    assert [path.name for path in tmp_path.iterdir()] == ["frontier"]
    assert give_up(frontier, ["e"])


def test_beside_an_owner_at_work(frontier: LevelDBFrontier, tmp_path: Path) -> None:
    """What is found is what there was at one moment: all up to some request, and none behind it."""
    stop = threading.Event()
    written: list[int] = []

    def work() -> None:
        while not stop.is_set():
            written.extend(give_up(frontier, [f"{n:03}" for n in range(50)], size=20_000))

    worker = threading.Thread(target=work)
    worker.start()
    try:
        for _ in range(8):
            known = len(written)
            found = [dead.id for dead in read_dead(tmp_path / "frontier")]
            assert len(found) >= known
            assert len(found) % 50 == 0
            assert found == list(range(1, len(found) + 1))
    finally:
        stop.set()
        worker.join()
    assert len(list((tmp_path / "frontier" / "db").glob("*.ldb"))) > 0


def test_a_table_that_is_being_written_is_not_touched(frontier: LevelDBFrontier, tmp_path: Path) -> None:
    """The copy's LevelDB takes its number for a table of its own, and writes over what has that name."""
    give_up(frontier, ["a"])
    database = tmp_path / "frontier" / "db"
    content = (database / (database / "CURRENT").read_text().strip()).read_bytes()
    unfinished = [
        database / f"{Manifest.read(content).next + n:06}{suffix}"
        for n in range(5)
        for suffix in (".ldb", ".sst")
    ]
    for file in unfinished:
        file.write_bytes(b"half a table")
    assert len(list(read_dead(tmp_path / "frontier"))) == 1
    assert {file.read_bytes() for file in unfinished} == {b"half a table"}


def test_of_a_killed_owner(frontier: LevelDBFrontier, tmp_path: Path) -> None:
    """A torn end of the log is no hindrance, and is not mended here."""
    give_up(frontier, ["a"])
    (log,) = (tmp_path / "frontier" / "db").glob("*.log")
    with log.open("ab") as file:
        file.write(b"\x01\x02\x03\x04\x05")
    size = log.stat().st_size
    assert [dead.payload[:1] for dead in read_dead(tmp_path / "frontier")] == [b"a"]
    assert log.stat().st_size == size


def test_without_links(frontier: LevelDBFrontier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file system that knows none costs a copy."""

    def link(source: Path, target: Path) -> None:
        raise PermissionError("no links here")

    give_up(frontier, [str(n) for n in range(600)], size=20_000)
    assert list((tmp_path / "frontier" / "db").glob("*.ldb"))
    monkeypatch.setattr(os, "link", link)
    assert len(list(read_dead(tmp_path / "frontier"))) == 600


@pytest.mark.skipif(sys.platform == "win32" or os.geteuid() == 0, reason="root may write anywhere")
def test_beside_a_directory_that_is_not_ours(frontier: LevelDBFrontier, tmp_path: Path) -> None:
    """The copy is made elsewhere."""
    give_up(frontier, ["a"])
    tmp_path.chmod(0o500)
    try:
        assert len(list(read_dead(tmp_path / "frontier"))) == 1
    finally:
        tmp_path.chmod(0o700)


def test_one_that_never_stands_still(
    frontier: LevelDBFrontier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is said so, and nothing is left behind."""

    def copy_once(source: Path, target: Path) -> None:
        target.mkdir()
        raise FileNotFoundError

    monkeypatch.setattr(copy, "_copy_once", copy_once)
    with pytest.raises(HAError, match="changes too fast"):
        list(read_dead(tmp_path / "frontier"))
    assert [path.name for path in tmp_path.iterdir()] == ["frontier"]


def test_a_log_that_goes_meanwhile(
    frontier: LevelDBFrontier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was in it is in a table by then, which the manifest read before does not name: begun anew."""
    give_up(frontier, ["a"])
    listed, counts = Path.glob, iter([1, 1])

    def glob(self: Path, pattern: str) -> Iterator[Path]:
        yield from listed(self, pattern)
        if next(counts, 0):
            yield self / "000999.log"

    copies = []
    copy_once = copy._copy_once
    monkeypatch.setattr(Path, "glob", glob)
    monkeypatch.setattr(copy, "_copy_once", lambda *paths: (copies.append(paths), copy_once(*paths)))
    assert len(list(read_dead(tmp_path / "frontier"))) == 1
    assert len(copies) == 3


@pytest.mark.parametrize(
    "files",
    [
        {},
        {"thesis.txt": b"three years of work"},
        {"FORMAT.json": b"{}"},
        {"FORMAT.json": b"{}", "db/CURRENT": b"x"},
        {"FORMAT.json": b"\xff", "db/CURRENT": b"x"},
        {"FORMAT.json": b"[" * 100_000, "db/CURRENT": b"x"},
        {"FORMAT.json": b'{"kind": "scrapy_ha frontier", "format": 99, "made": true}', "db/CURRENT": b"x"},
        {"FORMAT.json": b'{"kind": "scrapy_ha frontier", "format": 1, "made": true}', "db/x": b"x"},
        {"FORMAT.json": b'{"kind": "scrapy_ha frontier", "format": 1, "made": true}', "db/CURRENT": b"x"},
        {
            "FORMAT.json": b'{"kind": "scrapy_ha frontier", "format": 1, "made": true}',
            "db/CURRENT": b"MANIFEST-000001\n",
            "db/MANIFEST-000001": b"\xff" * 999,
        },
    ],
    ids=range(10),
)
def test_what_is_no_frontier(tmp_path: Path, files: dict[str, bytes]) -> None:
    """One line that names the directory, which is left as it is."""
    path = tmp_path / "some where"
    for name, content in files.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(content)
    path.mkdir(exist_ok=True)
    before = fingerprint(tmp_path)
    with pytest.raises(HAError) as raised:
        list(read_dead(path))
    assert str(path) in str(raised.value)
    assert ".dead-letters" not in str(raised.value)
    assert fingerprint(tmp_path) == before
    assert [one.name for one in tmp_path.iterdir()] == ["some where"]


def test_links_are_not_followed(frontier: LevelDBFrontier, tmp_path: Path) -> None:
    """A directory that came from elsewhere leads nowhere."""
    give_up(frontier, ["a"])
    (tmp_path / "secret").write_bytes(b"secret")
    (tmp_path / "frontier" / "db" / "000999.log").symlink_to(tmp_path / "secret")
    os.mkfifo(tmp_path / "frontier" / "db" / "000998.log")
    assert len(list(read_dead(tmp_path / "frontier"))) == 1


def test_records_that_are_none(frontier: LevelDBFrontier, tmp_path: Path) -> None:
    """Whole tables with nonsense in them, which only somebody's hand can have put there."""
    (id_,) = give_up(frontier, ["a"])
    batch = frontier._db.batch()
    good = frontier._db.get(layout.dead_key(id_))
    assert good is not None
    values = [b"", b"x", good[:-3], good + b"\0\0\0\1", b"\xff" * 50]
    for n, value in enumerate(values):
        batch.put(layout.dead_key(100 + n), value)
    frontier._db.write(batch)
    found = list(read_dead(tmp_path / "frontier"))
    assert found == completed(frontier.dead(10))
    assert [dead.id for dead in found if dead.payload] == [id_]
    assert len(found) == 1 + len(values)
    with pytest.raises(StoreDamaged, match="unreadable"):
        completed(frontier.purge([100]))
    batch = frontier._db.batch()
    batch.put(b"x", b"")
    batch.put(b"r", b"")
    frontier._db.write(batch)
    with pytest.raises(StoreDamaged, match="not what it should be"):
        list(read_dead(tmp_path / "frontier"))


def test_one_of_a_newer_format_says_so(frontier: LevelDBFrontier, tmp_path: Path) -> None:
    marker = tmp_path / "frontier" / "FORMAT.json"
    marker.write_text(json.dumps({**json.loads(marker.read_bytes()), "format": 2}))
    with pytest.raises(StoreDamaged, match="format 2"):
        list(read_dead(tmp_path / "frontier"))
