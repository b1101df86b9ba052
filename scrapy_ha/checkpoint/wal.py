"""The write-ahead log: what happened since the last snapshot, in the order in which it did."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from scrapy_ha.segments import files
from scrapy_ha.segments.format import Format, Frame, NewerVersion, scan
from scrapy_ha.segments.log import SegmentLog
from scrapy_ha.segments.recovery import Recovery, recover

logger = logging.getLogger(__name__)

LOG = Format(magic=b"HAWALOG\n", version=1, suffix=".wal", word="write-ahead log", mode=0o600)
SNAPSHOT = Format(magic=b"HASNAPS\n", version=1, suffix=".snapshot", word="snapshot", mode=0o600)
SEGMENT_BYTES = 64 << 20
BUFFER_BYTES = 64 << 10


@dataclass(frozen=True, slots=True)
class Record:
    """One thing that happened, or one part of a state."""

    kind: int
    """1 to 255; what it means is up to who writes it."""
    key: bytes
    """At most 65,535 bytes."""
    payload: bytes
    """At most 16 MiB."""


class WriteAheadLog(SegmentLog):
    """A log in segments, in a directory that somebody else has locked.

    :meth:`append` keeps a record in memory, :meth:`flush` gives it to the operating system: it survives
    ``kill -9`` then, :meth:`fsync` (in any thread) makes that survive a power cut. A write that fails is cut
    back to the last whole record, and what was appended goes out with the next flush that finds space.

    On opening, a torn end is cut off and reported. Anything else that is not a whole record ends the log
    there: it and what stands behind it, in later segments too, is kept aside as ``*.corrupt-<time>`` and
    said at ERROR level. So what comes back is always a prefix of what was written.
    """

    def __init__(
        self, path: Path, *, segment_bytes: int = SEGMENT_BYTES, buffer_bytes: int = BUFFER_BYTES
    ) -> None:
        super().__init__(path, LOG, repair=False, segment_bytes=segment_bytes, buffer_bytes=buffer_bytes)

    def open(self, first: int = 1) -> Recovery:
        """As :meth:`SegmentLog.open`, with all segments from number *first* on put right.

        Raises:
            StoreDamaged: A segment is of a newer format.
        """
        total = Recovery()
        try:
            segments = [one for one in self.segments() if files.segment_number(one) >= first]
            for n, segment in enumerate(segments):
                found = Recovery()
                recover(segment, LOG, found, repair=False)
                total.add(found)
                torn_inside = found.torn_bytes and n < len(segments) - 1
                if found.damaged_bytes or torn_inside:
                    self._set_aside(segments[n + 1 :], total)
                    break
        except OSError as error:
            raise self._failed("cannot be opened", error) from error
        super().open(first)
        return total

    def segments(self) -> list[Path]:
        """In order."""
        return files.list_segments(self.path, LOG.suffix)

    def read(self, first: int = 0, before: int | None = None) -> Iterator[Record]:
        """What is in the segments from number *first* on, *before* a number; flushed, not appended since."""
        for segment in self.segments():
            number = files.segment_number(segment)
            if number >= first and (before is None or number < before):
                yield from read_segment(segment, LOG)

    def _set_aside(self, segments: list[Path], recovery: Recovery) -> None:
        for segment in segments:
            aside = files.free_name(segment, "corrupt")
            recovery.damaged_bytes += segment.stat().st_size
            files.replace(segment, aside)
            recovery.aside.append(aside)
            logger.error(
                "%s comes after a damaged place, so it does not count. It is kept as %s", segment, aside.name
            )


def read_segment(segment: Path, form: Format) -> Iterator[Record]:
    """The whole records at the beginning of *segment*.

    Raises:
        NewerVersion: It is of a later version.
        OSError: It cannot be read.
    """
    with segment.open("rb", buffering=1 << 20) as file:
        for found in scan(file, segment.stat().st_size, form):
            if not isinstance(found, Frame):
                return
            yield Record(found.kind, found.key, found.payload)


__all__ = ["LOG", "SNAPSHOT", "NewerVersion", "Record", "WriteAheadLog", "read_segment"]
