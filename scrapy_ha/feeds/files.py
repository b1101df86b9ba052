"""Local feed files that can be cut back to where the last acknowledged page ended."""

from __future__ import annotations

import contextlib
import errno
import io
import itertools
import logging
import os
from collections.abc import Callable
from typing import IO, TYPE_CHECKING, Any

from scrapy_ha.errors import StoreError, StoreFull

if TYPE_CHECKING:
    from scrapy_ha.feeds.journal import Journal

logger = logging.getLogger(__name__)

BUFFER = 1 << 16
"""More than this many bytes are written at once, before the page has ended."""
LAST = 64
"""How many bytes before a position are compared to recognise a file."""
LONGEST_LINE = 1 << 20
"""A torn line is looked for within this many bytes."""


class FeedFile(io.BufferedIOBase):
    """What an exporter writes to. Nothing reaches *raw* before :meth:`write_out`, or :data:`BUFFER`.

    After everything that is written come the *closing* bytes of the format (``]``), to be
    overwritten by what comes next: the file is valid whenever a page has ended, killed or not.

    Args:
        raw: The file, open for writing at its end. Its own buffer is not used.
        continues: The file goes on: what the exporter writes to open it is dropped until
            :meth:`unmute`.
    """

    def __init__(self, raw: IO[bytes], path: str, continues: bool = False) -> None:
        self._raw = raw
        self._fd = raw.fileno()
        self._buffer = bytearray()
        self._end = os.fstat(self._fd).st_size
        self._closing_written = False
        self._muted = continues
        self._continues = continues
        self._start = self._end
        self.name = path
        self.closing = b""
        self.position = self._end
        """Where the last settled page ended, without the closing bytes."""
        self.last = self._written_last = _read_before(path, self._end)
        """The last bytes before that."""
        self.error: StoreError | None = None
        """Why something could not be written."""
        self.unsynced = False
        """Something was written; :class:`FeedFiles` resets it."""

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        """True for :meth:`tell`'s sake: ``TextIOWrapper`` asks whether a BOM belongs here."""
        return True

    def tell(self) -> int:
        return self._end + len(self._buffer)

    def fileno(self) -> int:
        return self._fd

    def write(self, data: Any, /) -> int:
        if self.closed:
            raise ValueError("write to closed file")
        size = memoryview(data).nbytes
        if not self._muted:
            self._buffer += data
            if len(self._buffer) > BUFFER:
                self._write_out()
        return size

    def unmute(self) -> None:
        self._muted = False

    def write_out(self) -> None:
        """Hand everything to the operating system.

        Raises:
            StoreError: It could not be written; :attr:`error` keeps it.
        """
        if self.error is not None:
            raise self.error
        if not self.closed and (self._buffer or (self.closing and not self._closing_written)):
            self._write_out()

    def settle(self) -> None:
        """What was written stands."""
        self.position, self.last = self._end, self._written_last

    def roll_back(self) -> None:
        """Forget what was not settled, in the file as well, and drop what is still to come."""
        self._muted = True
        self._buffer.clear()
        if self.closed:
            return
        try:
            self._cut(self.position)
            if self.closing and (self._continues or self.position > self._start):
                _write_all(self._fd, self.closing)
        except OSError as error:
            logger.warning("%s could not be cut back to its last whole page: %s", self.name, error)

    def flush(self) -> None:
        """Nothing: what is buffered belongs to a page that has not ended."""

    def close(self) -> None:
        """Write the rest. The closing bytes are then those that the exporter wrote."""
        if self.closed:
            return
        try:
            if self._buffer and not (self._closing_written and self._buffer == self.closing):
                self.closing = b""
                self._write_out()
        finally:
            super().close()
            self._raw.close()

    def _write_out(self) -> None:
        data = bytes(self._buffer)
        self.unsynced = True
        try:
            if self._closing_written:
                self._cut(self._end)
            _write_all(self._fd, data + self.closing)
        except OSError as error:
            with contextlib.suppress(OSError):
                self._cut(self._end)
            self.error = store_error(error, self.name)
            raise self.error from error
        self._buffer.clear()
        self._end += len(data)
        self._closing_written = bool(self.closing)
        self._written_last = (self._written_last + data[-LAST:])[-LAST:]

    def _cut(self, position: int) -> None:
        os.ftruncate(self._fd, position)
        os.lseek(self._fd, position, os.SEEK_SET)
        self._closing_written = False


class FeedFiles:
    """All local feed files that are open."""

    def __init__(self) -> None:
        self.active = False
        """Pages will be settled. Else everything is left to Scrapy."""
        self.resumed = False
        self.journal: Journal | None = None
        self.error: StoreError | None = None
        """Once something could not be written, nothing more is."""
        self._files: list[FeedFile] = []
        self._unsynced: set[str] = set()

    def open(self, raw: IO[bytes], path: str, continues: bool) -> FeedFile:
        file = FeedFile(raw, path, continues)
        self._files.append(file)
        return file

    def note(self, path: str, overwrite: bool) -> None:
        """The file *path* is about to be opened, not to go on in it.

        Raises:
            OSError: It cannot be made, or that cannot be noted.
        """
        assert self.journal is not None
        self.journal.note(path, overwrite)
        self._unsynced.update((os.path.dirname(os.path.abspath(path)), str(self.journal.path)))

    def settle(self) -> None:
        """Hand everything to the operating system.

        Raises:
            StoreError: Something could not be written, now or earlier. All files are as they were
                after the last call that succeeded, as far as that is possible.
        """
        if self.error is not None:
            raise self.error
        try:
            for file in self._files:
                file.write_out()
        except StoreError as error:
            self.fail(error)
            raise
        for file in self._files:
            file.settle()
            if file.unsynced:
                file.unsynced = False
                self._unsynced.add(os.path.abspath(file.name))
        self._files = [file for file in self._files if not file.closed]

    def fail(self, error: StoreError) -> None:
        """Write no more, and cut back what was not settled."""
        if self.error is None:
            self.error = error
            for file in self._files:
                file.roll_back()

    def fsync(self) -> None:
        """Make what was settled survive a power cut. Blocks.

        Raises:
            StoreError: The device refused.
        """
        for _ in range(len(self._unsynced)):
            path = self._unsynced.pop()
            try:
                fd = os.open(path, os.O_RDONLY)
                try:
                    os.fsync(fd)
                finally:
                    os.close(fd)
            except FileNotFoundError:
                continue  # moved away meanwhile
            except OSError as error:
                self._unsynced.add(path)
                raise store_error(error, path) from error


def store_error(error: OSError, path: str) -> StoreError:
    """*error* as one of ours."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return StoreFull(
            f"The feed {path} cannot grow ({error.strerror}): make room, then start the crawl again"
        )
    return StoreError(f"The feed {path} cannot be written: {error}")


def differs(path: str, position: int, last: bytes) -> str | None:
    """Why the file *path* is not the one that was *position* bytes long and ended in *last*."""
    try:
        size = os.path.getsize(path)
    except OSError:
        return "it is gone"
    if size < position:
        return f"it is shorter than it was, {size} bytes and not {position}"
    if _read_before(path, position)[-len(last) :] != last:
        return "its content is another"
    return None


def set_aside(path: str) -> str | None:
    """Rename the file *path* to the first free ``<path>.part-<n>``, and return that.

    An empty or absent file stays as it is.
    """
    if not os.path.isfile(path) or not os.path.getsize(path):
        return None
    for n in itertools.count(1):
        part = f"{path}.part-{n}"
        if not os.path.lexists(part):
            os.rename(path, part)
            return part
    raise AssertionError


def mend_last_line(path: str, whole: Callable[[bytes], bool]) -> int:
    """Have the file *path* end with a whole line; how many bytes were cut off.

    A last line without its end is given one if it is *whole*, and cut off otherwise.
    """
    size = os.path.getsize(path)
    line = _read_before(path, size, LONGEST_LINE)
    if not line or line.endswith(b"\n"):
        return 0
    line = line[line.rfind(b"\n") + 1 :]
    if len(line) == LONGEST_LINE or whole(line):
        with open(path, "ab") as file:
            file.write(b"\n")
        return 0
    os.truncate(path, size - len(line))
    return len(line)


def _read_before(path: str, position: int, count: int = LAST) -> bytes:
    with open(path, "rb") as file:
        file.seek(max(position - count, 0))
        return file.read(min(count, position))


def _write_all(fd: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(fd, rest) :]
