"""Which files make up a LevelDB database.

Source: LevelDB, ``doc/impl.md`` and ``db/version_edit.cc``. A manifest is a log (see :mod:`.tail`)
of edits, each a row of fields: a tag, then numbers and texts. All numbers are varints: seven bits to a
byte, the lowest first, the top bit set in all bytes but the last; a text has its length in front.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from scrapy_ha.leveldb.tail import BLOCK

_HEADER_BYTES = 7
_FULL, _FIRST, _MIDDLE, _LAST = range(1, 5)
_LOG, _NEXT, _DELETED, _NEW = 2, 3, 6, 7
_FIELDS: dict[int, str] = {
    1: "t",  # the name of the order of keys
    _LOG: "n",
    _NEXT: "n",
    4: "n",  # the last sequence number
    5: "nt",  # where to compact next: level, key
    _DELETED: "nn",  # level, number
    _NEW: "nnntt",  # level, number, size, first and last key
    9: "n",  # the log before
}
"""Of each tag, whether numbers or texts follow."""


@dataclass(slots=True)
class Manifest:
    """What the edits come to."""

    tables: set[int] = field(default_factory=set)
    """Numbers of the tables in use."""
    log: int = 0
    """Number of the oldest log in use."""
    next: int = 0
    """A file with this number or a higher one is not in use yet, and is overwritten without asking."""

    @classmethod
    def read(cls, data: bytes) -> Manifest:
        """Raises ``ValueError`` for what is none. An edit at the end that is not whole is left out."""
        manifest = cls()
        for edit in _records(data):
            for tag, numbers in _fields(edit):
                if tag == _LOG:
                    manifest.log = numbers[0]
                elif tag == _NEXT:
                    manifest.next = numbers[0]
                elif tag == _DELETED:
                    manifest.tables.discard(numbers[1])
                elif tag == _NEW:
                    manifest.tables.add(numbers[1])
        return manifest


def _records(data: bytes) -> Iterator[bytes]:
    """The logical records of a log; checksums are left to LevelDB."""
    at = 0
    parts: list[bytes] = []
    while at + _HEADER_BYTES <= len(data):
        rest = BLOCK - at % BLOCK
        if rest < _HEADER_BYTES:
            at += rest
            continue
        length = int.from_bytes(data[at + 4 : at + 6], "little")
        kind = data[at + 6]
        part = data[at + _HEADER_BYTES : at + _HEADER_BYTES + length]
        if len(part) < length:
            return
        if not _FULL <= kind <= _LAST or length > rest - _HEADER_BYTES:
            raise ValueError("no log")
        at += _HEADER_BYTES + length
        if kind in (_FULL, _FIRST):
            parts = []
        parts.append(part)
        if kind in (_FULL, _LAST):
            yield b"".join(parts)


def _fields(edit: bytes) -> Iterator[tuple[int, list[int]]]:
    """Each tag with the numbers that follow it."""
    at = 0
    while at < len(edit):
        tag, at = _varint(edit, at)
        if tag not in _FIELDS:
            raise ValueError(f"tag {tag}")
        numbers = []
        for kind in _FIELDS[tag]:
            number, at = _varint(edit, at)
            if kind == "n":
                numbers.append(number)
            else:
                at += number
        if at > len(edit):
            raise ValueError("cut off")
        yield tag, numbers


def _varint(data: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while at < len(data) and shift < 64:
        byte = data[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, at
        shift += 7
    raise ValueError("no number")
