"""A log torn by a power cut is cut back to its last whole write; other damage is refused."""

from __future__ import annotations

import logging
import random
import shutil
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from struct import pack, unpack_from

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scrapy_ha._plyvel import plyvel
from scrapy_ha.errors import StoreDamaged, StoreError
from scrapy_ha.frontier.leveldb import LevelDBFrontier
from scrapy_ha.leveldb import directory, tail
from scrapy_ha.leveldb.tail import BLOCK, crc32c, masked, torn_tail
from scrapy_ha.loop import completed
from scrapy_ha.typing import Entry, Settlement

BATCHES = 30
FULL, FIRST, MIDDLE, LAST = 1, 2, 3, 4


def batch(number: int, size: int) -> list[Entry]:
    return [
        Entry(b"%03d%d" % (number, part) * (size // 4), "host", b"%d.%d" % (number, part)) for part in (1, 2)
    ]


def batch_payloads(number: int, size: int) -> list[bytes]:
    return [entry.payload for entry in batch(number, size)]


def drain(frontier: LevelDBFrontier) -> list[bytes]:
    payloads = []
    while leases := completed(frontier.lease(50, {}, (), float("inf"))):
        payloads += [lease.payload for lease in leases]
        completed(frontier.settle([Settlement(lease) for lease in leases]))
    return payloads


def killed(path: Path, size: int, count: int = BATCHES) -> Path:
    """A frontier with *count* batches of two requests, as ``kill -9`` leaves it; its log."""
    one = LevelDBFrontier(path.with_name("living"))
    completed(one.open())
    for number in range(count):
        completed(one.offer(batch(number, size)))
    shutil.copytree(path.with_name("living"), path)
    completed(one.close())
    (log,) = (path / "db").glob("*.log")
    return log


def stored_batches(path: Path, size: int) -> int:
    """How many batches the frontier in *path* gives; they are whole and the first ones."""
    one = LevelDBFrontier(path)
    completed(one.open())
    payloads = drain(one)
    completed(one.close())
    count, rest = divmod(len(payloads), 2)
    assert rest == 0
    assert payloads == [payload for number in range(count) for payload in batch_payloads(number, size)]
    return count


def noise(size: int) -> bytes:
    return random.Random(size).randbytes(size)


def physical(kind: int, data: bytes) -> bytes:
    return pack("<IHB", masked(crc32c(bytes([kind]) + data)), len(data), kind) + data


def torn(tmp_path: Path, content: bytes) -> int | None:
    log = tmp_path / "000003.log"
    log.write_bytes(content)
    return torn_tail(log)


TAILS: dict[str, Callable[[bytes, int], bytes]] = {
    "zeroed": lambda log, size: log[:-size] + bytes(size),
    "garbled": lambda log, size: log[:-size] + bytes(byte ^ 0x55 for byte in log[-size:]),
    "cut and zeros appended": lambda log, size: log[:-size] + bytes(size + 3000),
    "cut and blocks of zeros appended": lambda log, size: log[:-size] + bytes(3 * BLOCK),
    "cut and garbage appended": lambda log, size: log[:-size] + noise(size + 40_000),
    "first bit of it flipped": lambda log, size: (
        log[:-size] + bytes([log[-size] ^ 1]) + log[len(log) - size + 1 :]
    ),
}


@pytest.mark.parametrize("payload", [60, 1000, 100_000])
@pytest.mark.parametrize("size", [5, 50, 100])
@pytest.mark.parametrize("harm", TAILS)
def test_only_the_last_write_is_lost(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, harm: str, size: int, payload: int
) -> None:
    """Harm within the last write leaves all earlier ones; what was cut is kept, and said."""
    path = tmp_path / "frontier"
    count = 5 if payload > 10_000 else BATCHES
    log = killed(path, payload, count)
    harmed = TAILS[harm](log.read_bytes(), size)
    log.write_bytes(harmed)
    end = torn_tail(log)
    assert end is not None
    assert stored_batches(path, payload) == count - 1
    (copy,) = path.glob("*.torn-*")
    assert copy.name.startswith(f"{log.name}.torn-")
    assert copy.read_bytes() == harmed
    (record,) = [record for record in caplog.records if record.name == directory.__name__]
    assert record.levelno == logging.WARNING
    for part in (path, f"last {len(harmed) - end} bytes", copy):
        assert str(part) in record.getMessage()
    caplog.clear()
    assert stored_batches(path, payload) == 0  # all were acknowledged above
    assert not caplog.records


@pytest.mark.parametrize("size", [5, 100, 2000, 40_000, 70_000])
@pytest.mark.parametrize("harm", ["zeroed", "garbled", "cut and zeros appended"])
def test_harm_over_many_writes(tmp_path: Path, harm: str, size: int) -> None:
    """Any long stretch at the end: a prefix of the writes is there, each whole."""
    path = tmp_path / "frontier"
    log = killed(path, 1000)
    log.write_bytes(TAILS[harm](log.read_bytes(), size))
    count = stored_batches(path, 1000)
    assert (BATCHES * 2000 - size) // 3000 <= count < BATCHES


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 6000), st.binary(max_size=3000), st.integers(0, 5000))
def test_any_tail(tmp_path_factory: pytest.TempPathFactory, cut: int, garbage: bytes, zeros: int) -> None:
    """Whatever stands behind the cut, a prefix of the writes is found, and nothing else."""
    path = tmp_path_factory.mktemp("any") / "frontier"
    log = killed(path, 300, 20)
    whole = log.read_bytes()
    log.write_bytes(whole[: len(whole) - cut] + garbage + bytes(zeros))
    assert stored_batches(path, 300) >= 20 - 1 - cut // 600
    shutil.rmtree(path.parent)


@pytest.mark.parametrize("payload", [60, 100_000])
def test_damage_in_the_middle_is_refused(tmp_path: Path, payload: int) -> None:
    """With whole records behind it, damage is no torn end: nothing is cut, nothing is written."""
    snapshot = tmp_path / "snapshot"
    log = killed(snapshot, payload, 5)
    whole = log.read_bytes()
    last = last_record(whole)
    refused = 0
    for at in range(7, last - 1, max(61, last // 25)):
        if in_length_or_kind(whole, at):  # LevelDB itself takes some of these for the log's end
            continue
        path = tmp_path / "damaged"
        shutil.copytree(snapshot, path)
        harmed = bytearray(whole)
        harmed[at] ^= 1 << at % 8
        (path / "db" / log.name).write_bytes(harmed)
        names = sorted(file.name for file in path.iterdir())
        with pytest.raises(StoreDamaged, match="It was left as it is"):
            completed(LevelDBFrontier(path).open())
        assert (path / "db" / log.name).read_bytes() == harmed
        assert sorted({file.name for file in path.iterdir()} - {"lock"}) == [
            name for name in names if name != "lock"
        ]
        shutil.rmtree(path)
        refused += 1
    assert refused > 5


def records(log: bytes) -> list[tuple[int, int]]:
    """Start and kind of each physical record of a whole *log*."""
    found = []
    at = 0
    while at < len(log):
        if BLOCK - at % BLOCK < 7:
            at += BLOCK - at % BLOCK
            continue
        _, length, kind = unpack_from("<IHB", log, at)
        found.append((at, kind))
        at += 7 + length
    return found


def last_record(log: bytes) -> int:
    """Where the last physical record starts."""
    return records(log)[-1][0]


def in_length_or_kind(log: bytes, at: int) -> bool:
    return any(start + 4 <= at < start + 7 for start, _ in records(log))


def test_damage_and_a_torn_end(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Where the cut does not help, since a file besides is damaged, all is put back."""
    path = tmp_path / "frontier"
    log = killed(path, 1000)
    harmed = TAILS["zeroed"](log.read_bytes(), 50)
    log.write_bytes(harmed)
    (manifest,) = (path / "db").glob("MANIFEST-*")
    content = bytearray(manifest.read_bytes())
    content[10] ^= 1
    manifest.write_bytes(content)
    with pytest.raises(StoreDamaged, match="It was left as it is"):
        completed(LevelDBFrontier(path).open())
    assert log.read_bytes() == harmed
    assert manifest.read_bytes() == content
    assert not list(path.glob("*.torn-*"))
    assert not caplog.records


def test_no_space_for_the_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a copy nothing is cut."""

    def full(source: Path, target: Path) -> None:
        target.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    path = tmp_path / "frontier"
    log = killed(path, 1000)
    harmed = TAILS["zeroed"](log.read_bytes(), 50)
    log.write_bytes(harmed)
    with monkeypatch.context() as patch:
        patch.setattr(directory.shutil, "copyfile", full)
        with pytest.raises(StoreError, match=f"{path}.*No space left"):
            completed(LevelDBFrontier(path).open())
    assert log.read_bytes() == harmed
    assert not list(path.glob("*.torn-*"))
    assert stored_batches(path, 1000) == BATCHES - 1


def test_checksum() -> None:
    """The check value of CRC-32C, and LevelDB's own records."""
    assert crc32c(b"123456789") == 0xE3069283
    assert crc32c(b"") == 0


def test_reads_what_leveldb_writes(tmp_path: Path) -> None:
    """Records of all sizes, up to many blocks, are found whole wherever a log ends between two."""
    db = plyvel.DB(str(tmp_path / "db"), create_if_missing=True)
    (log,) = (tmp_path / "db").glob("*.log")
    ends = [0]
    for number in range(36):
        db.put(b"%d" % number, bytes([number]) * (number * 37 % 5000 if number % 9 else 100_000))
        ends.append(log.stat().st_size)
    content = log.read_bytes()
    db.close()
    kinds = {kind for _, kind in records(content)}
    assert kinds == {FULL, FIRST, MIDDLE, LAST}
    assert torn(tmp_path, content) is None
    for start, end in pairwise(ends):
        assert torn(tmp_path, content[:end]) is None
        assert torn(tmp_path, content[: end - 1] + b"\xff\xff" + bytes(9)) == start


def test_cut_inside_a_record_of_many_blocks(tmp_path: Path) -> None:
    """The whole fragments of a record without an end are torn too."""
    before = physical(FULL, b"before")
    first = physical(FIRST, b"x" * (BLOCK - len(before) - 7))
    middle = physical(MIDDLE, b"y" * (BLOCK - 7))
    assert torn(tmp_path, before + first) == len(before)
    assert torn(tmp_path, before + first + middle) == len(before)
    assert torn(tmp_path, before + first + middle + bytes(100)) == len(before)
    assert torn(tmp_path, before + first + middle[:-1] + b"z") == len(before)
    assert torn(tmp_path, before + first + middle + physical(LAST, b"z")) is None


@pytest.mark.parametrize("behind", [physical(FULL, b"whole"), physical(LAST, b""), physical(MIDDLE, b"m")])
def test_a_whole_record_anywhere_behind(tmp_path: Path, behind: bytes) -> None:
    """In the same block, at any distance, or in a later one: then it is no torn end."""
    before = physical(FULL, b"before")
    for gap in (bytes(1), noise(12), bytes(9000), noise(BLOCK - len(before)), bytes(3 * BLOCK - len(before))):
        assert torn(tmp_path, before + gap + behind) is None
        assert torn(tmp_path, before + gap + behind + noise(20)) is None
        assert torn(tmp_path, before + gap) == len(before)


def test_fragments_in_the_wrong_order(tmp_path: Path) -> None:
    """Whole records where none of their kind can be: a part in between was lost."""
    assert torn(tmp_path, physical(FULL, b"a") + physical(LAST, b"b")) is None
    assert torn(tmp_path, physical(FIRST, b"a") + physical(FULL, b"b")) is None


def test_empty_log(tmp_path: Path) -> None:
    assert torn(tmp_path, b"") is None
    assert torn(tmp_path, bytes(20)) == 0


def test_search_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Garbage full of plausible headers does not take forever: it is refused."""
    garbage = b"\x00\x04\x04" * 5000
    assert torn(tmp_path, garbage) == 0
    monkeypatch.setattr(tail, "_SEARCH_LIMIT", 10_000)
    assert torn(tmp_path, garbage) is None
