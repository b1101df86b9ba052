"""Reading a spool, also while a crawl appends to it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path

from scrapy_ha.errors import StoreError
from scrapy_ha.pipelines.spool import FORMAT, newer
from scrapy_ha.segments.files import list_segments
from scrapy_ha.segments.format import Gap, NewerVersion, scan

_DAMAGES_LISTED = 100
_FILTER_MIN = 2**16
_FILTER_MAX = 2**27
_FILTER_SHARE = 128
_HASHES = 4


@dataclass(frozen=True, slots=True)
class Record:
    """One write of one document."""

    key: bytes
    payload: bytes


@dataclass(slots=True)
class Findings:
    """What the latest reading of all records came across."""

    records: int = 0
    """Whole records."""
    torn_bytes: int = 0
    """At the very end: a record being written right now, or interrupted by a kill."""
    damaged_bytes: int = 0
    """Elsewhere: lost to a damaged file."""
    damages: list[str] = field(default_factory=list)
    """Where, the first hundred of them."""


class SpoolReader:
    """The records that the spool in *path* holds at this moment; needs no lock.

    Takes memory for one record at a time. Damaged places are skipped, and reported in
    :attr:`findings`; nothing on disk is touched.

    Raises:
        StoreError: There is no spool in *path*, or it cannot be read.
        StoreDamaged: It is of a newer format (when it is read).
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.findings = Findings()
        try:
            segments = list_segments(path, FORMAT.suffix)
            self._segments = [(segment, segment.stat().st_size) for segment in segments]
        except FileNotFoundError:
            raise StoreError(f"There is no spool in {path}") from None
        except OSError as error:
            raise StoreError(f"The spool in {path} cannot be read: {error}") from error
        if not segments:
            raise StoreError(f"There is no spool in {path}")

    def records(self) -> Iterator[Record]:
        """Every whole record, in the order of writing."""
        findings = self.findings = Findings()
        for segment, size in self._segments:
            last = segment is self._segments[-1][0]
            try:
                with segment.open("rb", buffering=2**20) as file:
                    for found in scan(file, size, FORMAT):
                        if not isinstance(found, Gap):
                            findings.records += 1
                            yield Record(found.key, found.payload)
                        elif found.tail and last:
                            findings.torn_bytes += found.end - found.start
                        else:
                            findings.damaged_bytes += found.end - found.start
                            if len(findings.damages) < _DAMAGES_LISTED:
                                findings.damages.append(f"{segment.name}, bytes {found.start} to {found.end}")
            except NewerVersion as error:
                raise newer(segment, error) from None
            except OSError as error:
                raise StoreError(f"{segment} cannot be read: {error}") from error

    def documents(self) -> Iterator[Record]:
        """One record per key: the last one written, at its place in the order.

        Reads everything twice. The first time a Bloom filter tells which keys may have come
        before; the last record of each of those is remembered. Memory: 1/128 of the spool's
        size, from 64 KiB to 128 MiB, and some 200 bytes for each document that was written
        more than once. For 10 million documents of 1 KB each that is 128 MiB when each was
        written once, and 2 GB more when each was written twice.
        """
        last = self._last_of_repeated()
        for n, record in enumerate(self.records()):
            if not last or last.get(_digest(record.key), n) == n:
                yield record

    def _last_of_repeated(self) -> dict[bytes, int]:
        """For each key that comes more than once, by digest: the number of its last record. A few
        keys that come once are in it as well, with their own number."""
        size = sum(size for _, size in self._segments)
        share = min(max(size // _FILTER_SHARE, _FILTER_MIN), _FILTER_MAX)
        bits = bytearray(1 << (share - 1).bit_length())
        mask = len(bits) * 8 - 1
        last: dict[bytes, int] = {}
        for n, record in enumerate(self.records()):
            digest = _digest(record.key)
            seen = True
            for at in range(0, 4 * _HASHES, 4):
                bit = int.from_bytes(digest[at : at + 4], "little") & mask
                byte, flag = bit >> 3, 1 << (bit & 7)
                if not bits[byte] & flag:
                    seen = False
                    bits[byte] |= flag
            if seen:
                last[digest] = n
        return last


def _digest(key: bytes) -> bytes:
    return blake2b(key, digest_size=16).digest()
