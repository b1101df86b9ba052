"""Where a LevelDB log was torn.

Source: LevelDB, ``doc/log_format.md``.

A log is a row of blocks of 32 KiB. In a block stand physical records: masked checksum of type and
data (4 bytes), length of the data (2), type (1), data; all little-endian. A rest of less than 7
bytes is filled up. A physical record never crosses a block; a logical one is a FULL record, or FIRST,
any number of MIDDLE, and LAST.
"""

from __future__ import annotations

import re
from struct import Struct
from typing import TYPE_CHECKING

from scrapy_ha.crc import crc32c

if TYPE_CHECKING:
    from pathlib import Path

BLOCK = 32 * 1024
_HEADER = Struct("<IHB")
_KIND_OFFSET = 6
_FULL, _FIRST, _MIDDLE, _LAST = range(1, 5)
_KINDS = re.compile(rb"[\x01-\x04]")
_MASK_DELTA = 0xA282EAD8
_SEARCH_LIMIT = 32 * 2**20
"""Bytes whose checksums are made in search of a whole record."""


def masked(crc: int) -> int:
    """*crc* as LevelDB stores it."""
    return ((crc >> 15 | crc << 17) + _MASK_DELTA) & 0xFFFFFFFF


def is_whole(log: Path) -> bool:
    """Whether *log* is a row of records up to its last byte, as far as their lengths and kinds tell.

    LevelDB takes a record that reaches beyond the end of the file for one that was being written, and
    leaves it out without a word, with all that stands behind it. Reads headers only.

    Raises:
        OSError: It cannot be read.
    """
    data = log.read_bytes()
    position, inside = 0, False
    while position < len(data):
        rest = BLOCK - position % BLOCK
        if rest < _HEADER.size:
            position += rest
            continue
        end = _plausible_end(data, position)
        if end is None:
            return False
        kind = data[position + _KIND_OFFSET]
        if inside != (kind in (_MIDDLE, _LAST)):
            return False
        inside = kind in (_FIRST, _MIDDLE)
        position = end
    return not inside


def torn_tail(log: Path) -> int | None:
    """Where the last whole logical record of *log* ends, if all behind it is a torn end.

    It is one if no whole physical record stands behind the first bad one. Every byte offset is
    tried, not only those where a record is expected: the length in a bad header leads nowhere. A last
    record that was damaged after it had been written whole looks the same as a torn one.

    Returns:
        The offset to cut *log* at. ``None``: nothing is torn, or the damage is in the middle, or there
        is so much garbage that it was not all searched.

    Raises:
        OSError: It cannot be read.
    """
    data = log.read_bytes()
    position = end_of_last = 0
    inside = False
    while position < len(data):
        rest = BLOCK - position % BLOCK
        if rest < _HEADER.size:
            position += rest
            continue
        if not _is_record(data, position):
            return None if _has_record(data, position + 1) else end_of_last
        _, length, kind = _HEADER.unpack_from(data, position)
        if inside != (kind in (_MIDDLE, _LAST)):  # whole, and in the wrong place
            return None
        inside = kind in (_FIRST, _MIDDLE)
        position += _HEADER.size + length
        if not inside:
            end_of_last = position
    return end_of_last if inside else None


def _is_record(data: bytes, start: int) -> bool:
    end = _plausible_end(data, start)
    return end is not None and _checksum_fits(data, start, end)


def _plausible_end(data: bytes, start: int) -> int | None:
    """The end of a record at *start*, as far as its header can be one."""
    limit = min(len(data), start - start % BLOCK + BLOCK)
    if start + _HEADER.size > limit:
        return None
    _, length, kind = _HEADER.unpack_from(data, start)
    end: int = start + _HEADER.size + length
    return end if _FULL <= kind <= _LAST and end <= limit else None


def _checksum_fits(data: bytes, start: int, end: int) -> bool:
    stored: int = _HEADER.unpack_from(data, start)[0]
    return stored == masked(crc32c(data[start + _KIND_OFFSET : end]))


def _has_record(data: bytes, start: int) -> bool:
    """Whether a whole record begins anywhere from *start* on; also true if the search was given up."""
    searched = 0
    for found in _KINDS.finditer(data, start + _KIND_OFFSET):
        candidate = found.start() - _KIND_OFFSET
        end = _plausible_end(data, candidate)
        if end is None:
            continue
        searched += end - candidate
        if searched > _SEARCH_LIMIT or _checksum_fits(data, candidate, end):
            return True
    return False
