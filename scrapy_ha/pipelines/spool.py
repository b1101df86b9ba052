"""The spool: a durable local log of items.

A directory of numbered segments (see :mod:`scrapy_ha.segments.format`) that are only ever
appended to; the last one is the one being written, the others are sealed and never change. One
process owns the directory; any number may read it meanwhile, without a lock, and see whole
records only (:mod:`scrapy_ha.pipelines.reader`).

Nothing is ever deleted here. What had to be taken out of a segment is kept beside it:
``<segment>.torn-<time>`` is what an interrupted write left at the end, and
``<segment>.corrupt-<time>`` is a damaged segment as it was found.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from scrapy_ha.errors import StoreDamaged
from scrapy_ha.lock import DirectoryLock
from scrapy_ha.segments.files import list_segments
from scrapy_ha.segments.format import Format, NewerVersion, read_mark
from scrapy_ha.segments.log import BUFFER_BYTES, SEGMENT_BYTES, SegmentLog

if TYPE_CHECKING:
    from scrapy_ha.segments.recovery import Recovery

FORMAT = Format(magic=b"HASPOOL\n", version=1, suffix=".spool", word="spool")
DEAD_LETTERS = "dead.jsonl"
_OURS = re.compile(rf"lock|{re.escape(DEAD_LETTERS)}|\d{{8,16}}\.spool(\.new|\.(corrupt|torn)-.*)?")


class Spool(SegmentLog):
    """The owner's end of a spool. Not thread-safe, but for :meth:`fsync`.

    Args:
        path: Its directory; made when it is opened.
        segment_bytes: A segment is sealed before it grows beyond this.
        buffer_bytes: Appended records are written at the latest when they take more than this.
    """

    def __init__(
        self, path: Path, *, segment_bytes: int = SEGMENT_BYTES, buffer_bytes: int = BUFFER_BYTES
    ) -> None:
        super().__init__(path, FORMAT, repair=True, segment_bytes=segment_bytes, buffer_bytes=buffer_bytes)
        self._lock = DirectoryLock(path)

    def open(self, first: int = 1) -> Recovery:
        """Own the directory, and put the end of the last segment right.

        Damage in the segments before it is not looked for; readers skip and report it.

        Raises:
            StoreLocked: Another process owns it.
            StoreDamaged: It is of a newer format, or not a spool. It stays untouched.
            StoreFull: There is no space to keep aside what has to be cut. It stays untouched.
            StoreError: It cannot be made, read or written.
        """
        try:
            refuse_foreign(self.path)
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock.acquire()
        except OSError as error:
            raise self._failed("cannot be used", error) from error
        try:
            return super().open(first)
        except BaseException:
            self._lock.release()
            raise

    def close(self) -> None:
        """Flush, and give the directory up. Idempotent.

        Raises:
            StoreFull, StoreError: Not everything could be written. It is closed all the same.
        """
        try:
            super().close()
        finally:
            self._lock.release()


def refuse_foreign(directory: Path) -> None:
    """Check that *directory* is a spool or can become one, without touching it.

    Raises:
        StoreDamaged: It is not, or is of a newer format.
    """
    if not directory.exists():
        return
    if not directory.is_dir():
        raise StoreDamaged(f"{directory} is not a directory; the spool needs one of its own (HA_DIR)")
    segments = list_segments(directory, FORMAT.suffix)
    foreign = sorted(name for name in os.listdir(directory) if not _OURS.fullmatch(name))
    if foreign and not segments:
        raise StoreDamaged(
            f"{directory} holds files that are not a spool's (such as {foreign[0]!r}); it was left as it is. "
            "Set HA_DIR to another directory, or move the files away."
        )
    for segment in segments:
        try:
            with segment.open("rb") as file:
                read_mark(file, FORMAT)
        except NewerVersion as error:
            raise newer(segment, error) from None


def newer(segment: Path, error: NewerVersion) -> StoreDamaged:
    return StoreDamaged(
        f"{segment} has format {error.version}, and this version of scrapy_ha knows up to "
        f"{FORMAT.version}. It was left as it is. Use a newer scrapy_ha, or another directory (HA_DIR)."
    )
