"""The spool: a durable local log of items.

A directory of numbered segments (see :mod:`scrapy_ha.pipelines._segment`) that are only ever
appended to; the last one is the one being written, the others are sealed and never change. One
process owns the directory; any number may read it meanwhile, without a lock, and see whole
records only (:mod:`scrapy_ha.pipelines.reader`).

Nothing is ever deleted here. What had to be taken out of a segment is kept beside it:
``<segment>.torn-<time>`` is what an interrupted write left at the end, and
``<segment>.corrupt-<time>`` is a damaged segment as it was found.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path

from scrapy_ha.errors import StoreError, StoreFull, Unserializable
from scrapy_ha.lock import DirectoryLock
from scrapy_ha.pipelines import _files, _segment
from scrapy_ha.pipelines._recovery import Recovery, recover
from scrapy_ha.pipelines._segment import FRAME_SIZE, HEADER_SIZE, MAX_KEY, MAX_PAYLOAD

SEGMENT_BYTES = 64 * 2**20
BUFFER_BYTES = 2**20

_OPEN_FLAGS = os.O_WRONLY | os.O_APPEND | _files.BINARY


class Spool:
    """The owner's end of a spool. Not thread-safe, but for :meth:`fsync`.

    Args:
        path: Its directory; made when it is opened.
        segment_bytes: A segment is sealed before it grows beyond this.
        buffer_bytes: Appended records are written at the latest when they take more than this.
    """

    def __init__(
        self, path: Path, *, segment_bytes: int = SEGMENT_BYTES, buffer_bytes: int = BUFFER_BYTES
    ) -> None:
        self.path = path
        self._segment_bytes = segment_bytes
        self._buffer_bytes = buffer_bytes
        self._lock = DirectoryLock(path)
        self._handle = -1
        self._number = 0
        self._path = path  # of the last segment
        self._mark = b""
        self._size = 0  # of the last segment, up to the end of its last whole record
        self._sealed_size = 0
        self._cut_needed = False
        self._frames: list[bytes] = []
        self._frames_size = 0
        self._unsynced: set[Path] = set()
        self._unsynced_guard = threading.Lock()

    @property
    def size(self) -> int:
        """Bytes that all segments take, with what is not yet flushed."""
        return self._sealed_size + self._size + self._frames_size

    def open(self) -> Recovery:
        """Own the directory, and put the end of the last segment right.

        Damage in the segments before it is not looked for; readers skip and report it.

        Raises:
            StoreLocked: Another process owns it.
            StoreDamaged: It is of a newer format, or not a spool. It stays untouched.
            StoreFull: There is no space to keep aside what has to be cut. It stays untouched.
            StoreError: It cannot be made, read or written.
        """
        try:
            _files.refuse_foreign(self.path)
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock.acquire()
        except OSError as error:
            raise self._failed("cannot be used", error) from error
        try:
            return self._resume()
        except OSError as error:
            self._release()
            raise self._failed("cannot be opened", error) from error
        except BaseException:
            self._release()
            raise

    def append(self, key: bytes, payload: bytes) -> None:
        """Add one record. It survives ``kill -9`` after the next :meth:`flush`.

        Raises:
            Unserializable: It is too large.
            StoreFull, StoreError: It was not added, because those before it cannot be written.
        """
        if len(key) > MAX_KEY or len(payload) > MAX_PAYLOAD:
            raise Unserializable(
                "item:size",
                f"A record takes {len(key)} + {len(payload)} bytes (key and content); up to "
                f"{MAX_KEY} + {MAX_PAYLOAD} are stored.",
            )
        size = FRAME_SIZE + len(key) + len(payload)
        used = self._size + self._frames_size
        if used > HEADER_SIZE and used + size > self._segment_bytes:
            self.flush()
            self._seal()
        elif self._frames_size + size > self._buffer_bytes:
            self.flush()
        self._frames.append(_segment.frame(self._mark, key, payload))
        self._frames_size += size

    def flush(self) -> None:
        """Write what was appended to the operating system: from then on it survives ``kill -9``.

        When that fails, the segment is cut back to its last whole record. What was appended
        stays in memory, and goes out with the next flush that finds space.

        Raises:
            StoreFull: There is no space.
            StoreError: It cannot be written.
        """
        if not self._frames:
            return
        if self._handle < 0:
            raise StoreError(f"The spool in {self.path} is closed; {len(self._frames)} items are not stored")
        try:
            if self._cut_needed:
                os.ftruncate(self._handle, self._size)
                self._cut_needed = False
            _files.write(self._handle, b"".join(self._frames))
        except OSError as error:
            self._cut_back()
            raise self._failed("cannot be written", error) from error
        self._size += self._frames_size
        self._frames = []
        self._frames_size = 0
        self._touch(self._path)

    def fsync(self) -> None:
        """Make everything flushed so far survive a power cut. Blocks; may run in another thread.

        Raises:
            StoreFull, StoreError: The device did not take it.
        """
        with self._unsynced_guard:
            unsynced, self._unsynced = self._unsynced, set()
        try:
            for path in unsynced:
                _files.fsync(path)
        except OSError as error:
            with self._unsynced_guard:
                self._unsynced |= unsynced
            raise self._failed("cannot be fsynced", error) from error

    def close(self) -> None:
        """Flush, and give the directory up. Idempotent.

        Raises:
            StoreFull, StoreError: Not everything could be written. It is closed all the same.
        """
        try:
            self.flush()
        finally:
            self._release()

    def _resume(self) -> Recovery:
        recovery = Recovery()
        segments = _files.list_segments(self.path)
        self._number = _files.segment_number(segments[-1]) if segments else 0
        self._sealed_size = sum(segment.stat().st_size for segment in segments[:-1])
        resumed = recover(segments[-1], recovery) if segments else None
        if resumed is None:
            self._touch(self.path.parent)  # which may have got this directory just now
            self._start_segment()
        else:
            self._mark, self._size = resumed
            self._path = segments[-1]
            self._handle = os.open(self._path, _OPEN_FLAGS)
        return recovery

    def _seal(self) -> None:
        old, size = self._handle, self._size
        self._start_segment()
        self._sealed_size += size
        os.close(old)

    def _start_segment(self) -> None:
        """Write to a new segment from now on; when it cannot be made, everything stays as it is."""
        mark = _segment.new_mark()
        path = _files.segment_path(self.path, self._number + 1)
        handle = -1
        try:
            handle = os.open(path, _OPEN_FLAGS | os.O_CREAT | os.O_TRUNC, 0o666)
            _files.write(handle, _segment.header(mark))
        except OSError as error:
            if handle >= 0:
                os.close(handle)
                path.unlink(missing_ok=True)
            raise self._failed("cannot be written", error) from error
        self._number += 1
        self._path = path
        self._handle, self._mark, self._size = handle, mark, HEADER_SIZE
        self._touch(path)

    def _cut_back(self) -> None:
        try:
            os.ftruncate(self._handle, self._size)
        except OSError:
            self._cut_needed = True  # when this process dies before, the next one cuts

    def _touch(self, path: Path) -> None:
        with self._unsynced_guard:
            self._unsynced |= {path, self.path}

    def _release(self) -> None:
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1
        self._lock.release()

    def _failed(self, what: str, error: OSError) -> StoreError:
        if error.errno in _files.FULL:
            return StoreFull(
                f"The spool in {self.path} {what}: {error.strerror}. Free some space and start the crawl "
                "again; what was stored before is whole."
            )
        return StoreError(f"The spool in {self.path} {what}: {error}")
