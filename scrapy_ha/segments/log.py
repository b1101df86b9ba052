"""A log in a directory: the owner's end."""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from pathlib import Path

from scrapy_ha.errors import StoreError, StoreFull, Unserializable
from scrapy_ha.segments import files, format
from scrapy_ha.segments.format import FRAME_SIZE, HEADER_SIZE, MAX_KEY, MAX_PAYLOAD, Format
from scrapy_ha.segments.recovery import Recovery, recover

SEGMENT_BYTES = 64 * 2**20
BUFFER_BYTES = 2**20


class SegmentLog:
    """Appends records to the last segment in a directory that it alone may write to.

    Not thread-safe, but for :meth:`fsync` and :meth:`remove_before`.

    Args:
        path: The directory; it exists when the log is opened.
        form: Of the segments.
        repair: See :func:`~scrapy_ha.segments.recovery.recover`.
        segment_bytes: A segment is sealed before it grows beyond this.
        buffer_bytes: Appended records are written at the latest when they take more than this.
    """

    def __init__(
        self,
        path: Path,
        form: Format,
        *,
        repair: bool,
        segment_bytes: int = SEGMENT_BYTES,
        buffer_bytes: int = BUFFER_BYTES,
    ) -> None:
        self.path = path
        self._form = form
        self._repair = repair
        self._segment_bytes = segment_bytes
        self._buffer_bytes = buffer_bytes
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
        self._guard = threading.Lock()

    @property
    def is_open(self) -> bool:
        return self._handle >= 0

    @property
    def size(self) -> int:
        """Bytes that all segments take, with what is not yet flushed."""
        return self._sealed_size + self._size + self._frames_size

    def open(self, first: int = 1) -> Recovery:
        """Put the end of the last segment right, and append to it from now on.

        Damage in the segments before it is not looked for.

        Args:
            first: Segments with lower numbers do not count.

        Raises:
            StoreFull: There is no space to keep aside what has to be cut. It stays untouched.
            StoreError: It cannot be made, read or written.
        """
        try:
            return self._resume(first)
        except OSError as error:
            raise self._failed("cannot be opened", error) from error

    def append(self, key: bytes, payload: bytes, kind: int = 1) -> None:
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
        self._frames.append(format.frame(self._mark, key, payload, kind))
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
            raise StoreError(
                f"The {self._form.word} in {self.path} is closed; {len(self._frames)} records are not stored"
            )
        try:
            if self._cut_needed:
                files.truncate(self._handle, self._size)
                self._cut_needed = False
            files.write(self._handle, b"".join(self._frames))
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
        with self._guard:
            unsynced, self._unsynced = self._unsynced, set()
        try:
            for path in unsynced:
                with suppress(FileNotFoundError):  # it was removed, as something durable took its place
                    files.fsync(path)
        except OSError as error:
            with self._guard:
                self._unsynced |= unsynced
            raise self._failed("cannot be fsynced", error) from error

    def close(self) -> None:
        """Flush, and end. Idempotent.

        Raises:
            StoreFull, StoreError: Not everything could be written. It is closed all the same.
        """
        try:
            self.flush()
        finally:
            if self._handle >= 0:
                os.close(self._handle)
                self._handle = -1

    def _resume(self, first: int) -> Recovery:
        recovery = Recovery()
        listed = files.list_segments(self.path, self._form.suffix)
        segments = [segment for segment in listed if files.segment_number(segment) >= first]
        self._number = files.segment_number(segments[-1]) if segments else first - 1
        self._sealed_size = sum(segment.stat().st_size for segment in segments[:-1])
        resumed = recover(segments[-1], self._form, recovery, self._repair) if segments else None
        if resumed is None:
            self._touch(self.path.parent)  # which may have got this directory just now
            self._start_segment()
        else:
            self._mark, self._size = resumed
            self._path = segments[-1]
            self._handle = files.append_to(self._path)
        return recovery

    def rotate(self) -> int:
        """Write to a new segment from now on; its number.

        Raises:
            StoreFull, StoreError: It cannot be made, or what was appended not be written.
        """
        self.flush()
        self._seal()
        return self._number

    def remove_before(self, number: int) -> None:
        """Remove the segments before *number*."""
        for segment in files.list_segments(self.path, self._form.suffix):
            if files.segment_number(segment) < number:
                size = segment.stat().st_size
                files.remove(segment)
                with self._guard:
                    self._sealed_size -= size

    def _seal(self) -> None:
        old, size = self._handle, self._size
        self._start_segment()
        with self._guard:
            self._sealed_size += size
        os.close(old)

    def _start_segment(self) -> None:
        """Write to a new segment from now on; when it cannot be made, everything stays as it is."""
        mark = format.new_mark()
        path = files.segment_path(self.path, self._number + 1, self._form.suffix)
        handle = -1
        try:
            handle = files.create(path, self._form.mode)
            files.write(handle, self._form.header(mark))
        except OSError as error:
            if handle >= 0:
                os.close(handle)
                files.remove(path)
            raise self._failed("cannot be written", error) from error
        self._number += 1
        self._path = path
        self._handle, self._mark, self._size = handle, mark, HEADER_SIZE
        self._touch(path)

    def _cut_back(self) -> None:
        try:
            files.truncate(self._handle, self._size)
        except OSError:
            self._cut_needed = True  # when this process dies before, the next one cuts

    def _touch(self, path: Path) -> None:
        with self._guard:
            self._unsynced |= {path, self.path}

    def _failed(self, what: str, error: OSError) -> StoreError:
        if error.errno in files.FULL:
            return StoreFull(
                f"The {self._form.word} in {self.path} {what}: {error.strerror}. Free some space and start "
                "the crawl again; what was stored before is whole."
            )
        return StoreError(f"The {self._form.word} in {self.path} {what}: {error}")
