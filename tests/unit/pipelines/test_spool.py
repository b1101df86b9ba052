"""What is flushed to the spool is there again, whatever happened to the process or the disk."""

from __future__ import annotations

import errno
import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scrapy_ha.errors import StoreDamaged, StoreError, StoreFull, StoreLocked, Unserializable
from scrapy_ha.pipelines.reader import SpoolReader
from scrapy_ha.pipelines.spool import FORMAT, Spool
from scrapy_ha.segments import files
from scrapy_ha.segments import format as form

FIRST = "00000001.spool"


@contextmanager
def opened(path: Path, **options: int) -> Iterator[Spool]:
    spool = Spool(path, **options)
    spool.open()
    try:
        yield spool
    finally:
        spool.close()


def pair(n: int) -> tuple[bytes, bytes]:
    return b"key-%d" % n, b"%d " % n * (n % 4)


def fill(path: Path, count: int, start: int = 0, **options: int) -> None:
    with opened(path, **options) as spool:
        for n in range(start, start + count):
            spool.append(*pair(n))


def content(path: Path) -> list[tuple[bytes, bytes]]:
    return [(record.key, record.payload) for record in SpoolReader(path).records()]


def expected(*numbers: int) -> list[tuple[bytes, bytes]]:
    return [pair(n) for n in numbers]


def kept_aside(path: Path) -> list[str]:
    return sorted(name for name in os.listdir(path) if "torn" in name or "corrupt" in name)


def test_records_come_back_in_order_over_segments_and_restarts(tmp_path: Path) -> None:
    fill(tmp_path, 40, segment_bytes=150)
    fill(tmp_path, 40, start=40, segment_bytes=150)
    segments = files.list_segments(tmp_path, FORMAT.suffix)
    assert len(segments) > 10
    assert all(segment.stat().st_size <= 150 for segment in segments)
    assert content(tmp_path) == expected(*range(80))


def test_size_counts_everything(tmp_path: Path) -> None:
    fill(tmp_path, 20, segment_bytes=150)
    with opened(tmp_path, segment_bytes=150) as spool:
        spool.append(*pair(20))
        size = spool.size
    assert size == sum(segment.stat().st_size for segment in files.list_segments(tmp_path, FORMAT.suffix))


def test_what_is_not_flushed_is_not_yet_written(tmp_path: Path) -> None:
    """And more than the buffer may take is, by itself."""
    with opened(tmp_path, buffer_bytes=100) as spool:
        spool.append(b"a", b"x" * 30)
        assert content(tmp_path) == []
        spool.append(b"b", b"x" * 80)
        assert [key for key, _ in content(tmp_path)] == [b"a"]
        spool.flush()
        assert [key for key, _ in content(tmp_path)] == [b"a", b"b"]


def test_a_record_larger_than_a_segment_has_its_own(tmp_path: Path) -> None:
    with opened(tmp_path, segment_bytes=200) as spool:
        for size in (10, 5000, 10):
            spool.append(b"k", b"x" * size)
    assert [len(payload) for _, payload in content(tmp_path)] == [10, 5000, 10]
    assert len(files.list_segments(tmp_path, FORMAT.suffix)) == 3


def test_a_record_above_the_limit_is_refused_alone(tmp_path: Path) -> None:
    with opened(tmp_path) as spool:
        spool.append(*pair(1))
        with pytest.raises(Unserializable):
            spool.append(b"k", b"x" * (form.MAX_PAYLOAD + 1))
        with pytest.raises(Unserializable):
            spool.append(b"k" * (form.MAX_KEY + 1), b"")
        spool.append(*pair(2))
    assert content(tmp_path) == expected(1, 2)


# Torn and damaged files


@pytest.fixture
def _quick_fsync(monkeypatch: pytest.MonkeyPatch) -> None:
    """For thousands of openings; nothing is read back from the device."""
    monkeypatch.setattr(os, "fsync", lambda handle: None)


@pytest.mark.usefixtures("_quick_fsync")
def test_cut_at_every_byte(tmp_path: Path) -> None:
    """The whole records before the cut are there, the rest is kept aside, and the spool goes on."""
    whole = tmp_path / "whole"
    fill(whole, 50)
    data = (whole / FIRST).read_bytes()
    with (whole / FIRST).open("rb") as file:
        ends = [f.end for f in form.scan(file, len(data), FORMAT) if isinstance(f, form.Frame)]
    for cut in range(len(data)):
        path = tmp_path / str(cut)
        path.mkdir()
        (path / FIRST).write_bytes(data[:cut])
        before = sum(end <= cut for end in ends)
        reader = SpoolReader(path)
        assert len(list(reader.records())) == before
        spool = Spool(path)
        recovery = spool.open()
        spool.append(*pair(99))
        spool.close()
        torn = cut - max([0 if cut < form.HEADER_SIZE else form.HEADER_SIZE, *(e for e in ends if e <= cut)])
        assert recovery.torn_bytes == torn == reader.findings.torn_bytes
        assert recovery.damaged_bytes == 0 == reader.findings.damaged_bytes
        assert content(path) == expected(*range(before), 99)
        assert [(path / name).read_bytes() for name in kept_aside(path)] == (
            [data[cut - torn : cut]] if torn else []
        )


@pytest.mark.usefixtures("_quick_fsync")
def test_any_flipped_bit(tmp_path: Path) -> None:
    """Costs at most the record it is in, and what it cost is kept aside and reported."""
    whole = tmp_path / "whole"
    fill(whole, 4)
    data = (whole / FIRST).read_bytes()
    for bit in range(len(data) * 8):
        path = tmp_path / str(bit)
        path.mkdir()
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        (path / FIRST).write_bytes(flipped)
        spool = Spool(path)
        recovery = spool.open()
        spool.append(*pair(99))
        spool.close()
        assert recovery.torn_bytes + recovery.damaged_bytes > 0
        (aside,) = recovery.aside
        assert bytes(flipped).endswith(aside.read_bytes())
        found = content(path)
        survivors = [pair(n) for n in (0, 1, 2, 3, 99) if pair(n) in found]
        assert found == survivors
        assert len(survivors) >= (5 if bit // 8 < form.HEADER_SIZE else 4)


def test_damage_in_the_middle_is_loud_and_costs_that_record_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    fill(tmp_path, 50)
    data = bytearray((tmp_path / FIRST).read_bytes())
    at = data.index(b"key-21") + 8
    data[at] ^= 255
    (tmp_path / FIRST).write_bytes(data)
    reader = SpoolReader(tmp_path)
    others = expected(*(n for n in range(50) if n != 21))
    assert [(r.key, r.payload) for r in reader.records()] == others
    assert reader.findings.damaged_bytes > 0
    assert reader.findings.damages[0].startswith(f"{FIRST}, bytes ")
    assert kept_aside(tmp_path) == []

    fill(tmp_path, 1, start=50)
    (record,) = [r for r in caplog.records if r.levelno == logging.ERROR]
    (name,) = kept_aside(tmp_path)
    assert ".corrupt-" in name
    assert name in record.getMessage()
    assert (tmp_path / name).read_bytes() == data
    assert content(tmp_path) == [*others, pair(50)]


def test_damage_in_a_sealed_segment_is_skipped_and_reported_not_touched(tmp_path: Path) -> None:
    fill(tmp_path, 40, segment_bytes=150)
    segment = files.list_segments(tmp_path, FORMAT.suffix)[3]
    damaged = segment.read_bytes()[:-5] + b"?????"
    segment.write_bytes(damaged)
    fill(tmp_path, 1, start=40, segment_bytes=150)
    reader = SpoolReader(tmp_path)
    assert len(list(reader.records())) == 40
    assert reader.findings.damaged_bytes > 0
    assert reader.findings.torn_bytes == 0
    assert segment.read_bytes() == damaged


@pytest.mark.parametrize("size", [3, 16, 20, 500])
def test_a_segment_of_random_bytes_is_kept_aside(tmp_path: Path, size: int) -> None:
    """The spool goes on with the others."""
    fill(tmp_path, 3)
    noise = os.urandom(size)
    (tmp_path / "00000002.spool").write_bytes(noise)
    fill(tmp_path, 1, start=3)
    (name,) = kept_aside(tmp_path)
    assert name.startswith("00000002.spool.corrupt-")
    assert (tmp_path / name).read_bytes() == noise
    assert content(tmp_path) == expected(0, 1, 2, 3)


def test_zeros_at_the_end(tmp_path: Path) -> None:
    """As a power cut leaves them on some file systems."""
    fill(tmp_path, 3)
    with (tmp_path / FIRST).open("ab") as file:
        file.write(bytes(10_000))
    spool = Spool(tmp_path)
    assert spool.open().torn_bytes == 10_000
    spool.close()
    assert content(tmp_path) == expected(0, 1, 2)


def test_what_is_kept_aside_is_never_overwritten(tmp_path: Path) -> None:
    for n in range(3):
        fill(tmp_path, 1, start=n)
        with (tmp_path / FIRST).open("ab") as file:
            file.write(b"torn %d" % n)
    fill(tmp_path, 1, start=3)
    assert sorted((tmp_path / name).read_bytes() for name in kept_aside(tmp_path)) == [
        b"torn 0",
        b"torn 1",
        b"torn 2",
    ]
    assert content(tmp_path) == expected(0, 1, 2, 3)


def test_a_whole_frame_inside_a_payload_is_no_record(tmp_path: Path) -> None:
    """Not even when the record around it is damaged: a page cannot forge items."""
    forged = form.frame(form.new_mark(), b"forged", b"item")
    with opened(tmp_path) as spool:
        spool.append(b"page", forged * 100)
        spool.append(b"next", b"")
    data = (tmp_path / FIRST).read_bytes()
    (tmp_path / FIRST).write_bytes(data.replace(b"page", b"pagE"))
    assert [key for key, _ in content(tmp_path)] == [b"next"]


@pytest.mark.timeout(20)
def test_hostile_bytes_cost_bounded_time(tmp_path: Path) -> None:
    """A segment full of marks, each claiming to begin a large record."""
    mark = form.new_mark()
    claim = mark + b"\0\0\0\0\x01\0\xff\xff\0\0\x0f\0"
    hostile = FORMAT.header(mark) + claim * 200_000
    (tmp_path / FIRST).write_bytes(hostile)
    assert content(tmp_path) == []
    fill(tmp_path, 1)
    assert content(tmp_path) == expected(0)
    assert [(tmp_path / name).read_bytes() for name in kept_aside(tmp_path)] == [hostile]


@given(st.binary(max_size=2000), st.binary(max_size=100), st.booleans())
def test_any_bytes_can_be_opened_and_read(
    tmp_path_factory: pytest.TempPathFactory, noise: bytes, more: bytes, headed: bool
) -> None:
    """Nothing raises, nothing is invented, and the original is kept."""
    path = tmp_path_factory.mktemp("spool")
    mark = form.new_mark()
    data = (FORMAT.header(mark) if headed else b"") + noise + more
    (path / FIRST).write_bytes(data)
    assert content(path) == []
    fill(path, 2)
    assert content(path) == expected(0, 1)
    kept = b"".join((path / name).read_bytes() for name in kept_aside(path))
    assert data.endswith(kept)
    assert kept or not noise + more


# Whose directory


def test_a_newer_format_is_refused_and_left_untouched(tmp_path: Path) -> None:
    """Also when an older segment has it, and the last one would need mending."""
    fill(tmp_path, 10, segment_bytes=100)
    segment = files.list_segments(tmp_path, FORMAT.suffix)[1]
    segment.write_bytes(form._checked(FORMAT.magic, 2, b"mark") + b"unknown")
    last = files.list_segments(tmp_path, FORMAT.suffix)[-1]
    last.write_bytes(last.read_bytes() + b"torn")
    before = {name: (tmp_path / name).read_bytes() for name in os.listdir(tmp_path)}
    with pytest.raises(StoreDamaged, match="format 2"):
        Spool(tmp_path).open()
    with pytest.raises(StoreDamaged, match="format 2"):
        content(tmp_path)
    assert before == {name: (tmp_path / name).read_bytes() for name in os.listdir(tmp_path)}


def test_a_foreign_directory_is_refused_and_left_untouched(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(StoreDamaged, match=r"thesis\.txt"):
        Spool(tmp_path).open()
    with pytest.raises(StoreDamaged, match="not a directory"):
        Spool(tmp_path / "thesis.txt").open()
    assert os.listdir(tmp_path) == ["thesis.txt"]


def test_a_second_owner_is_refused_and_the_first_unharmed(tmp_path: Path) -> None:
    with opened(tmp_path) as spool:
        spool.append(*pair(0))
        with pytest.raises(StoreLocked, match=f"pid {os.getpid()}"):
            Spool(tmp_path).open()
        spool.append(*pair(1))
    assert content(tmp_path) == expected(0, 1)


def test_refused_after_close(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    spool.open()
    spool.close()
    spool.close()
    spool.flush()
    spool.append(*pair(0))
    with pytest.raises(StoreError, match="closed"):
        spool.flush()


# Disk full


class SmallDisk:
    """``os.write`` and ``os.ftruncate`` of a device with room for *free* more bytes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, free: int) -> None:
        self.free = free
        self.stuck = False
        """Nothing can be cut either."""
        self._write, self._ftruncate = os.write, os.ftruncate
        monkeypatch.setattr(os, "write", self.write)
        monkeypatch.setattr(os, "ftruncate", self.ftruncate)

    def write(self, handle: int, data: bytes) -> int:
        if not self.free:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        written = self._write(handle, bytes(data)[: self.free])
        self.free -= written
        return written

    def ftruncate(self, handle: int, size: int) -> None:
        if self.stuck:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        self._ftruncate(handle, size)


@pytest.mark.parametrize("stuck", [False, True])
def test_disk_full_at_every_byte(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stuck: bool) -> None:
    """Refused with a clear error, what is stored stays whole, and with new space it goes on in order."""
    for free in range(60):
        path = tmp_path / f"{free}"
        spool = Spool(path, segment_bytes=110)
        spool.open()
        spool.append(*pair(3))
        spool.flush()
        with monkeypatch.context() as patch:
            disk = SmallDisk(patch, free)
            disk.stuck = stuck
            with pytest.raises(StoreFull, match=str(path)):
                store(spool, range(4, 9))
            stored = content(path)
            assert stored == expected(*range(3, 3 + len(stored)))
            disk.stuck = False
            disk.free = 1000
            kept = {key for key, _ in [*stored, *_unflushed(spool)]}
            spool.flush()
            for n in range(4, 9):
                if pair(n)[0] not in kept:
                    spool.append(*pair(n))
            spool.close()
        assert content(path) == expected(*range(3, 9))
        assert kept_aside(path) == []


def store(spool: Spool, numbers: Iterable[int]) -> None:
    """Each survives a kill before the next comes."""
    for n in numbers:
        spool.append(*pair(n))
        spool.flush()


def _unflushed(spool: Spool) -> list[tuple[bytes, bytes]]:
    """Records that the spool still keeps in memory."""
    pairs = [pair(n) for n in range(3, 9)]
    return [(key, payload) for key, payload in pairs for f in spool._frames if f.endswith(key + payload)]


def test_a_kill_while_the_disk_is_full_costs_nothing_that_was_flushed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half a record is left when not even cutting works; the next start cuts it."""
    spool = Spool(tmp_path)
    spool.open()
    spool.append(*pair(1))
    spool.flush()
    with monkeypatch.context() as patch:
        SmallDisk(patch, 10).stuck = True
        spool.append(*pair(2))
        with pytest.raises(StoreFull):
            spool.flush()
    spool._lock.release()
    assert content(tmp_path) == expected(1)
    fill(tmp_path, 1, start=3)
    assert content(tmp_path) == expected(1, 3)


def test_without_space_to_keep_aside_what_is_cut_nothing_is_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(tmp_path, 2)
    data = (tmp_path / FIRST).read_bytes() + b"torn"
    (tmp_path / FIRST).write_bytes(data)

    def full(*args: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("scrapy_ha.segments.recovery.shutil.copyfileobj", full)
        with pytest.raises(StoreFull):
            Spool(tmp_path).open()
    assert (tmp_path / FIRST).read_bytes() == data
    assert kept_aside(tmp_path) == []
    fill(tmp_path, 1, start=2)
    assert content(tmp_path) == expected(0, 1, 2)


LIMITED = """
import resource, sys
from pathlib import Path
from scrapy_ha.errors import StoreFull
from scrapy_ha.pipelines.spool import Spool
spool = Spool(Path(sys.argv[1]))
spool.open()
resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, resource.RLIM_INFINITY))
n = 0
try:
    while True:
        spool.append(b"key-%d" % n, b"%d " % n * (n % 4))
        spool.flush()
        n += 1
except StoreFull as error:
    print(n, error)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
spool.flush()
spool.append(b"key-%d" % (n + 1), b"%d " % (n + 1) * ((n + 1) % 4))
spool.close()
"""


def test_a_real_limit_of_the_kernel(tmp_path: Path) -> None:
    """A write that the kernel takes in part and then refuses."""
    pytest.importorskip("resource")
    ended = subprocess.run([sys.executable, "-c", LIMITED, str(tmp_path)], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    refused = int(ended.stdout.split()[0])
    assert refused > 100
    assert content(tmp_path) == expected(*range(refused + 2))


# Several at a time


APPEND = """
import sys
from pathlib import Path
from scrapy_ha.pipelines.spool import Spool
spool = Spool(Path(sys.argv[1]), segment_bytes=4000)
spool.open()
n = int(sys.argv[2])
while True:
    spool.append(b"key-%d" % n, b"%d " % n * (n % 4))
    spool.flush()
    print(n, flush=True)
    n += 1
"""


def test_killed_while_appending(tmp_path: Path) -> None:
    """Every record that was flushed is there, in order; at most one more is."""
    start = 0
    for _ in range(4):
        process = subprocess.Popen(
            [sys.executable, "-c", APPEND, str(tmp_path), str(start)], stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        for line in process.stdout:
            if int(line) >= start + 200:
                process.send_signal(signal.SIGKILL)
                break
        flushed = [int(line), *map(int, process.stdout.read().split())][-1]
        process.wait()
        process.stdout.close()
        found = len(content(tmp_path))
        assert flushed + 1 <= found <= flushed + 2
        assert content(tmp_path) == expected(*range(found))
        start = found
    assert len(files.list_segments(tmp_path, FORMAT.suffix)) > 1


def test_readers_see_whole_records_while_a_writer_appends(tmp_path: Path) -> None:
    with opened(tmp_path, segment_bytes=10_000, buffer_bytes=50) as spool:
        written = 0
        done = threading.Event()
        seen: list[int] = []
        wrong: list[object] = []

        def read() -> None:
            while not done.is_set():
                reader = SpoolReader(tmp_path)
                found = [(record.key, record.payload) for record in reader.records()]
                seen.append(len(found))
                if found != expected(*range(len(found))) or reader.findings.damaged_bytes:
                    wrong.append(reader.findings)

        thread = threading.Thread(target=read)
        thread.start()
        while written < 3000 or len(seen) < 5:
            spool.append(*pair(written))
            written += 1
        done.set()
        thread.join()
    assert not wrong
    assert seen == sorted(seen)
    assert content(tmp_path) == expected(*range(written))


def test_fsync_in_another_thread_while_appending(tmp_path: Path) -> None:
    with opened(tmp_path, segment_bytes=2000, buffer_bytes=50) as spool:
        done = threading.Event()
        errors: list[Exception] = []

        def sync() -> None:
            while not done.is_set():
                try:
                    spool.fsync()
                except Exception as error:
                    errors.append(error)

        thread = threading.Thread(target=sync)
        thread.start()
        for n in range(2000):
            spool.append(*pair(n))
        done.set()
        thread.join()
        assert not errors
    assert content(tmp_path) == expected(*range(2000))


def test_fsync_covers_every_file_written_since_the_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sealed segments and the directory as well; a failed one is tried again."""
    synced: list[str] = []
    refuse = True

    def fsync(path: Path) -> None:
        if refuse:
            raise OSError(errno.EIO, "Input/output error")
        synced.append(path.name)

    monkeypatch.setattr(files, "fsync", fsync)
    with opened(tmp_path / "spool", segment_bytes=60) as spool:
        for n in range(5):
            spool.append(*pair(n))
        spool.flush()
        with pytest.raises(StoreError, match="fsync"):
            spool.fsync()
        refuse = False
        spool.fsync()
        names = [segment.name for segment in files.list_segments(tmp_path / "spool", FORMAT.suffix)]
        assert len(names) > 2
        assert sorted(synced) == sorted([tmp_path.name, "spool", *names])
        synced.clear()
        spool.fsync()
        assert synced == []
