"""The bytes of one segment of a log.

All numbers are little-endian. A segment is a header and frames, one after the other::

    header  magic 8 | version u32 | mark 4 | crc u32 of the 16 bytes before
    frame   mark 4 | crc u32 of all that follows | kind u8 | 0 u8 | key length u16
            | payload length u32 | key | payload

The checksum is CRC-32C. The *mark* is drawn at random for each segment. It stands in
front of each frame, so that behind a damaged place the next whole frame can be found; and
because nobody outside knows it, nothing in a payload, which comes from the web, can pass for one.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO, TypeAlias

from scrapy_ha.crc import crc32c

MAX_KEY = 2**16 - 1
MAX_PAYLOAD = 16 * 2**20

_HEADER = struct.Struct("<8sI4sI")
_FRAME = struct.Struct("<4sIBBHI")
_MARK_SIZE = 4
_CRC_FROM = 8
_CHUNK = 2**12
_SEARCH_FACTOR = 4
"""How many times its own size may be checksummed in vain in search of whole frames: hostile bytes
full of marks would else take quadratic time."""

HEADER_SIZE = _HEADER.size
FRAME_SIZE = _FRAME.size
"""What a record takes in addition to its key and payload."""


@dataclass(frozen=True, slots=True)
class Frame:
    """A whole frame: bytes *start* to *end* of its segment."""

    start: int
    end: int
    kind: int
    key: bytes
    payload: bytes


@dataclass(frozen=True, slots=True)
class Gap:
    """Bytes *start* to *end* are no frame; a whole frame, or the end of the segment, follows."""

    start: int
    end: int
    tail: bool
    """Nothing whole follows: what an interrupted write leaves."""


Found: TypeAlias = "Frame | Gap"


class NewerVersion(Exception):
    """The segment has a later version of the format."""

    def __init__(self, version: int) -> None:
        super().__init__(version)
        self.version = version


@dataclass(frozen=True, slots=True)
class Format:
    """What tells the segments of one sort of log from others."""

    magic: bytes
    """Eight bytes."""
    version: int
    """Raised with every change that an older version could not read."""
    suffix: str
    """Of the names of segments, with its dot."""
    word: str
    """In messages, after "the": ``spool``."""
    mode: int = 0o666
    """Of the files, before the umask."""

    def header(self, mark: bytes) -> bytes:
        return _checked(self.magic, self.version, mark)


def new_mark() -> bytes:
    return b"\xc1" + os.urandom(3)  # never zeros, which a power cut leaves in files


def frame(mark: bytes, key: bytes, payload: bytes, kind: int = 1) -> bytes:
    start = _FRAME.pack(mark, 0, kind, 0, len(key), len(payload))
    crc = crc32c(start[_CRC_FROM:] + key + payload)
    return b"".join((mark, crc.to_bytes(4, "little"), start[_CRC_FROM:], key, payload))


def read_mark(file: BinaryIO, form: Format) -> bytes | None:
    """The mark of the segment that *file* holds; ``None``: its header is not whole.

    Raises:
        NewerVersion: The header is whole, and of a later version.
    """
    file.seek(0)
    data = file.read(HEADER_SIZE)
    if len(data) < HEADER_SIZE:
        return None
    magic, version, mark, _ = _HEADER.unpack(data)
    if magic != form.magic or data != _checked(magic, version, mark):
        return None
    if version > form.version:
        raise NewerVersion(version)
    return mark if version == form.version else None


def scan(file: BinaryIO, size: int, form: Format) -> Iterator[Found]:
    """Everything in the first *size* bytes, in order: whole frames, and the gaps between them.

    Takes memory for one frame. The frames behind a damaged header are found as long as the
    first of them is whole.

    Raises:
        NewerVersion: The segment is of a later version.
    """
    mark = read_mark(file, form)
    if mark is None:
        file.seek(0)
        start = file.read(HEADER_SIZE)
        mark = file.read(_MARK_SIZE)
        if _read(file, mark, HEADER_SIZE, size) is None:
            if size:
                begun = form.magic.startswith(start) or start.startswith(form.magic)
                yield Gap(0, size, tail=begun and size < HEADER_SIZE)
            return
        yield Gap(0, HEADER_SIZE, tail=False)
    at = HEADER_SIZE
    search = _Search(file, mark, size)
    while at < size:
        found = _read(file, mark, at, size)
        if found is None:
            found = search.next_frame(at + 1)
            if found is None:
                yield Gap(at, size, tail=search.budget > 0)
                return
            yield Gap(at, found.start, tail=False)
        yield found
        at = found.end


def _checked(magic: bytes, version: int, mark: bytes) -> bytes:
    data = _HEADER.pack(magic, version, mark, 0)[:-4]
    return data + crc32c(data).to_bytes(4, "little")


def _read(file: BinaryIO, mark: bytes, start: int, size: int) -> Frame | None:
    """The frame at *start*, if it is whole."""
    file.seek(start)
    head = file.read(FRAME_SIZE)
    if len(head) < FRAME_SIZE:
        return None
    found, crc, kind, reserved, key_size, payload_size = _FRAME.unpack(head)
    end = start + FRAME_SIZE + key_size + payload_size
    if found != mark or reserved or payload_size > MAX_PAYLOAD or end > size:
        return None
    body = file.read(key_size + payload_size)
    if crc32c(head[_CRC_FROM:] + body) != crc:
        return None
    return Frame(start, end, kind, body[:key_size], body[key_size:])


class _Search:
    """Finds whole frames in damaged bytes."""

    def __init__(self, file: BinaryIO, mark: bytes, size: int) -> None:
        self._file = file
        self._mark = mark
        self._size = size
        self.budget = _SEARCH_FACTOR * size
        """Bytes that may still be checksummed in vain; then nothing more is found."""

    def next_frame(self, start: int) -> Frame | None:
        """The first whole frame from *start* on."""
        while start < self._size:
            self._file.seek(start)
            chunk = self._file.read(min(_CHUNK, self._size - start))
            at = chunk.find(self._mark)
            while at >= 0:
                found = _read(self._file, self._mark, start + at, self._size)
                if found is not None:
                    return found
                self.budget -= self._file.tell() - (start + at)
                if self.budget <= 0:
                    return None
                at = chunk.find(self._mark, at + 1)
            start += max(1, len(chunk) - _MARK_SIZE + 1)
        return None
