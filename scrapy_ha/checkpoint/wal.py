"""The write-ahead log: what happened since the last snapshot, in the order in which it did."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from scrapy_ha.errors import StoreDamaged
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

    On opening, a torn end is cut off and reported. Anything else that is not a whole record, and a segment
    that is missing, ends the log there: it and what stands behind it, in later segments too, is kept aside
    as ``*.corrupt-<time>`` and said at ERROR level. So what comes back is always a prefix of what was
    written, also when the process dies while it opens the log.
    """

    def __init__(
        self, path: Path, *, segment_bytes: int = SEGMENT_BYTES, buffer_bytes: int = BUFFER_BYTES
    ) -> None:
        super().__init__(path, LOG, repair=False, segment_bytes=segment_bytes, buffer_bytes=buffer_bytes)

    def open(self, first: int = 1) -> Recovery:
        """As :meth:`SegmentLog.open`, with all segments from number *first* on put right.

        Args:
            first: Unless it is 1, the log has to begin with it.

        Raises:
            StoreDamaged: A segment is of a newer format. All is as it was.
        """
        recovery = Recovery()
        try:
            segments = [one for one in self.segments() if files.segment_number(one) >= first]
            end, broken = self._end(segments, first)
            # The last one first, and all before the damage is taken away: killed in between, the next
            # start finds the log ending at the same place or later, never going on behind a hole.
            for segment in reversed(segments[end:]):
                self._set_aside(segment, recovery)
            if segments[end:]:
                files.fsync(self.path)
            if broken:
                found = Recovery()
                recover(segments[end - 1], LOG, found, repair=False)
                recovery.add(found)
        except OSError as error:
            raise self._failed("cannot be opened", error) from error
        except NewerVersion as error:
            raise StoreDamaged(
                f"{self.path} has a log of format {error.version}; use a newer scrapy_ha"
            ) from None
        super().open(first)
        return recovery

    def segments(self) -> list[Path]:
        """In order."""
        return files.list_segments(self.path, LOG.suffix)

    def read(self, first: int = 0, before: int | None = None) -> Iterator[Record]:
        """What is in the segments from number *first* on, *before* a number; flushed, not appended since.

        Raises:
            StoreDamaged: A sealed segment was damaged since the log was opened.
        """
        for segment in self.segments():
            number = files.segment_number(segment)
            if number >= first and (before is None or number < before):
                # Of the last one, a part may be on its way to the disk right now.
                yield from read_segment(segment, LOG, whole=number < self._number)

    def _end(self, segments: list[Path], first: int) -> tuple[int, bool]:
        """How many of *segments* count, and whether the last of these has to be put right."""
        expected = first
        for n, segment in enumerate(segments):
            number = files.segment_number(segment)
            if n == 0 and first == 1:
                expected = number
            if number != expected:
                logger.error(
                    "%s: segment %d of the log is missing, so the log ends before it", self.path, expected
                )
                return n, False
            if not _is_whole(segment):
                return n + 1, True
            expected += 1
        return len(segments), False

    def _set_aside(self, segment: Path, recovery: Recovery) -> None:
        aside = files.free_name(segment, "corrupt")
        recovery.damaged_bytes += segment.stat().st_size
        files.replace(segment, aside)
        recovery.aside.append(aside)
        logger.error(
            "%s comes after a damaged place, so it does not count. It is kept as %s", segment, aside.name
        )


def _is_whole(segment: Path) -> bool:
    size = segment.stat().st_size
    with segment.open("rb", buffering=1 << 20) as file:
        return size > 0 and all(isinstance(found, Frame) for found in scan(file, size, LOG))


def read_segment(segment: Path, form: Format, *, whole: bool = False) -> Iterator[Record]:
    """The whole records at the beginning of *segment*.

    Args:
        whole: There must be nothing else in it.

    Raises:
        StoreDamaged: There is.
        NewerVersion: It is of a later version.
        OSError: It cannot be read.
    """
    with segment.open("rb", buffering=1 << 20) as file:
        for found in scan(file, segment.stat().st_size, form):
            if isinstance(found, Frame):
                yield Record(found.kind, found.key, found.payload)
                continue
            if whole:
                raise StoreDamaged(
                    f"{segment} is damaged at byte {found.start}. Start the crawl again: it goes on with "
                    "what is whole, and keeps the file aside"
                )
            return


__all__ = ["LOG", "SNAPSHOT", "NewerVersion", "Record", "WriteAheadLog", "read_segment"]
