"""A checkpoint on disk: snapshots, and a write-ahead log of what came after.

::

    FORMAT.json           what this is, and which versions wrote it
    lock                  who has it open; the kernel holds the lock itself
    MANIFEST.json         the snapshots, with size and SHA-256 of each
    00000007.snapshot     the state before segment 7 of the log
    00000007.wal …        the log

A snapshot is made of the one before it and of the log since then, in another thread. It is written beside,
fsynced and renamed, and only then named in the manifest; the oldest ones go after that, and never the last
one that was verified.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from scrapy_ha.checkpoint.manifest import (
    FORMAT_FILE,
    MANIFEST_FILE,
    Snapshot,
    check_format,
    digest,
    migrate,
    read_manifest,
    write_format,
    write_manifest,
)
from scrapy_ha.checkpoint.wal import SNAPSHOT, NewerVersion, Record, WriteAheadLog, read_segment
from scrapy_ha.errors import StoreDamaged, StoreError, StoreFull
from scrapy_ha.lock import DirectoryLock
from scrapy_ha.segments import files, format
from scrapy_ha.segments.recovery import Recovery

logger = logging.getLogger(__name__)

KEEP = 3
"""Snapshots."""
CLEAN = 255
"""Kind of the record with which a log ends whose owner closed it."""
_WRITE_BYTES = 1 << 20

Fold = Callable[[Callable[[], Iterator[Record]]], Iterable[Record]]
"""Gives the records of a snapshot; called with what reads all records so far, each time anew."""


@dataclass
class Found:
    """What was found on opening."""

    fresh: bool
    """There was nothing."""
    recovery: Recovery = field(default_factory=Recovery)
    """What had to be cut off the log, or kept aside."""
    damaged: list[Path] = field(default_factory=list)
    """Where snapshots are kept aside that were not what they should be."""


class CheckpointStore:
    """Appends to, and compacts, the checkpoint in the directory *path*; made when it is opened.

    Belongs to one thread, but for :meth:`fsync` and :meth:`Work.run`.

    Args:
        crawl: Name of the crawl, kept with the data; another crawl's directory is refused.
        versions: Of the software that writes, by name.
    """

    def __init__(
        self,
        path: Path,
        *,
        crawl: str | None = None,
        versions: dict[str, str] | None = None,
        segment_bytes: int = 64 << 20,
    ) -> None:
        self.path = path
        self._crawl = crawl
        self._versions = versions or {}
        self._lock = DirectoryLock(path)
        self.log = WriteAheadLog(path, segment_bytes=segment_bytes)
        self.snapshots: list[Snapshot] = []
        """Oldest first."""
        self.since_snapshot = 0
        """Records appended, in this run."""
        self.bytes_since_snapshot = 0
        """What they hold."""
        self.clean = False
        """The last owner closed it in order. Known when :meth:`read` is through."""

    def open(self) -> Found:
        """Own the directory.

        Raises:
            StoreLocked: Another process owns it.
            StoreDamaged: It is of a newer format, another crawl's, or no checkpoint. It stays untouched.
            StoreFull, StoreError: It cannot be made, read or written.
        """
        try:
            check_format(self.path, self._crawl)
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock.acquire()
        except OSError as error:
            raise StoreError(f"{self.path}: cannot be used as the checkpoint's directory: {error}") from error
        try:
            return self._open()
        except OSError as error:
            self._lock.release()
            raise self._failed("cannot be opened", error) from error
        except NewerVersion as error:
            self._lock.release()
            raise StoreDamaged(
                f"{self.path} has a log of format {error.version}; use a newer scrapy_ha"
            ) from None
        except BaseException:
            self._lock.release()
            raise

    def read(self) -> Iterator[Record]:
        """The newest snapshot, and what came after it. Before anything is appended."""
        yield from self._read(self.snapshots[-1] if self.snapshots else None, None)

    def append(self, kind: int, key: bytes, payload: bytes) -> None:
        """See :class:`~scrapy_ha.checkpoint.wal.WriteAheadLog`; likewise :meth:`flush`, :meth:`fsync`."""
        self.log.append(key, payload, kind)
        self.since_snapshot += 1
        self.bytes_since_snapshot += len(payload)

    def flush(self) -> None:
        self.log.flush()

    def fsync(self) -> None:
        self.log.fsync()

    def begin_snapshot(self) -> Work:
        """Begin a snapshot of everything so far; :meth:`Work.run` makes it.

        Raises:
            StoreFull, StoreError: The log cannot go on in another segment. It goes on in the old one.
        """
        number = self.log.rotate()
        self.since_snapshot = self.bytes_since_snapshot = 0
        return Work(self, number)

    def close(self) -> None:
        """Note that all is in order, and give the directory up. Idempotent.

        Raises:
            StoreFull, StoreError: Not everything could be written. It is closed all the same.
        """
        try:
            if self.log.is_open:
                self.log.append(b"", b"", CLEAN)
                self.log.flush()
                self.log.fsync()
        finally:
            try:
                self.log.close()
            finally:
                self._lock.release()

    def _open(self) -> Found:
        found = Found(fresh=not (self.path / FORMAT_FILE).exists())
        if not found.fresh:
            migrate(self.path)
        write_format(self.path, self._crawl, self._versions)
        listed = read_manifest(self.path)
        if listed is None or (not listed and files.list_segments(self.path, SNAPSHOT.suffix)):
            listed = self._without_manifest()
        while listed and not listed[-1].is_whole(self.path):
            self._set_aside(listed.pop(), found, last=not listed)
        self.snapshots = listed
        for orphan in self.path.glob("*.snapshot.new"):  # a process died while it made one
            files.remove(orphan)
        segments = self.log.segments()
        if not listed and segments and files.segment_number(segments[0]) > 1:
            logger.error("What happened before %s is lost: no snapshot of it is whole", segments[0])
        found.recovery = self.log.open(listed[-1].number if listed else 1)
        return found

    def _without_manifest(self) -> list[Snapshot]:
        """The manifest is damaged or missing: it is made anew from snapshots that are whole by themselves."""
        path = self.path / MANIFEST_FILE
        if path.exists():
            aside = files.free_name(path, "corrupt")
            files.replace(path, aside)
            logger.error(
                "%s is damaged. It is kept as %s, and made anew from the snapshots", path, aside.name
            )
        else:  # a process died before it wrote the first one, or somebody removed it
            logger.warning("%s is missing. It is made anew from the snapshots", path)
        snapshots = []
        for segment in files.list_segments(self.path, SNAPSHOT.suffix):
            records = list(read_segment(segment, SNAPSHOT))
            if records and records[-1].kind == CLEAN:
                size = segment.stat().st_size
                snapshots.append(
                    Snapshot(files.segment_number(segment), size, digest(segment), len(records), time.time())
                )
        write_manifest(self.path, snapshots)
        return snapshots

    def _set_aside(self, snapshot: Snapshot, found: Found, *, last: bool) -> None:
        path = self.path / snapshot.name
        aside = files.free_name(path, "corrupt")
        if path.exists():
            files.replace(path, aside)
            found.damaged.append(aside)
        logger.error(
            "The snapshot %s is missing or not what was written. %s, and %s",
            path,
            f"It is kept as {aside.name}" if aside.exists() else "It is gone",
            "the log alone is used" if last else "the one before it is used with the log since then",
        )

    def _read(self, snapshot: Snapshot | None, before: int | None) -> Iterator[Record]:
        self.clean = False
        if snapshot is not None:
            for record in read_segment(self.path / snapshot.name, SNAPSHOT, whole=True):
                if record.kind != CLEAN:
                    yield record
        for record in self.log.read(snapshot.number if snapshot else 0, before):
            self.clean = record.kind == CLEAN
            if not self.clean:
                yield record

    def _failed(self, what: str, error: OSError) -> StoreError:
        kind = StoreFull if error.errno in files.FULL else StoreError
        return kind(f"The checkpoint in {self.path} {what}: {error}")


class Work:
    """One snapshot in the making."""

    def __init__(self, store: CheckpointStore, number: int) -> None:
        self._store = store
        self._number = number
        self._base = store.snapshots[-1] if store.snapshots else None

    def run(self, fold: Fold) -> Snapshot:
        """Write what *fold* makes of all records so far. In any thread, one at a time.

        Raises:
            StoreFull, StoreError: It could not be written. All is as it was.
            StoreDamaged: What it is made of was damaged since the store was opened. Likewise.
        """
        store = self._store
        path = store.path / f"{self._number:08}.snapshot"
        new = path.with_name(path.name + ".new")
        try:
            records = self._write(new, fold(lambda: store._read(self._base, self._number)))
            snapshot = Snapshot(self._number, new.stat().st_size, digest(new), records, time.time())
            files.replace(new, path)
            files.fsync(store.path)
            snapshots = [*store.snapshots, snapshot]
            kept = snapshots[-KEEP:]
            write_manifest(store.path, kept)
            store.snapshots = kept
            for old in snapshots[:-KEEP]:
                files.remove(store.path / old.name)
            if len(kept) == KEEP:  # else the log is what there is in case that they are damaged
                store.log.remove_before(kept[0].number)
        except OSError as error:
            raise store._failed("cannot be written", error) from error
        finally:
            new.unlink(missing_ok=True)
        return snapshot

    def _write(self, path: Path, records: Iterable[Record]) -> int:
        mark = format.new_mark()
        handle = files.create(path, SNAPSHOT.mode)
        count = 0
        try:
            parts, size = [SNAPSHOT.header(mark)], 0
            for count, record in enumerate(records, 1):  # noqa: B007 - returned
                parts.append(format.frame(mark, record.key, record.payload, record.kind))
                size += len(parts[-1])
                if size >= _WRITE_BYTES:
                    files.write(handle, b"".join(parts))
                    parts, size = [], 0
            parts.append(format.frame(mark, b"", b"", CLEAN))
            files.write(handle, b"".join(parts))
            files.fsync_handle(handle)
        finally:
            files.close(handle)
        return count
