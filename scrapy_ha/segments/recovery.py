"""Putting a segment right after its writer died, or its disk did harm."""

from __future__ import annotations

import logging
import shutil
from dataclasses import dataclass, field
from pathlib import Path

from scrapy_ha.segments import files, format
from scrapy_ha.segments.files import free_name
from scrapy_ha.segments.format import Format, Frame, Gap

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class Recovery:
    """What was found in the last segment, and put right."""

    torn_bytes: int = 0
    """Cut from its end: a record whose writing was interrupted."""
    damaged_bytes: int = 0
    """In its midst."""
    aside: list[Path] = field(default_factory=list)
    """Files that keep the bytes concerned."""

    def add(self, other: Recovery) -> None:
        """Count what *other* found as well."""
        self.torn_bytes += other.torn_bytes
        self.damaged_bytes += other.damaged_bytes
        self.aside += other.aside


def recover(segment: Path, form: Format, recovery: Recovery, repair: bool) -> tuple[bytes, int] | None:
    """Make *segment* fit to be appended to.

    Args:
        repair: Have the whole records behind a damaged place go on; else all that stands behind the first
            one is taken out.

    Returns:
        Its mark and its size; ``None``: it holds no record and is no longer there.

    Raises:
        OSError: There is no space to keep something aside. The segment is as it was.
    """
    size = segment.stat().st_size
    with segment.open("rb", buffering=2**20) as file:
        gaps = [found for found in format.scan(file, size, form) if isinstance(found, Gap)]
        mark = format.read_mark(file, form)
    if any(not gap.tail for gap in gaps):
        recovery.damaged_bytes = sum(gap.end - gap.start for gap in gaps)
        if recovery.damaged_bytes == size:
            _quarantine(segment, recovery)
            return None
        mark, size = _repair(segment, form, size, recovery, repair)
    elif gaps:
        _cut(segment, form, gaps[0].start, size, recovery)
        size = gaps[0].start
    if mark is None:  # not even the header was written
        files.remove(segment)
        return None
    return mark, size


def _cut(segment: Path, form: Format, start: int, size: int, recovery: Recovery) -> None:
    aside = free_name(segment, "torn")
    try:
        with segment.open("rb") as file, files.create_file(aside, form.mode) as kept:
            file.seek(start)
            shutil.copyfileobj(file, kept)
        files.fsync(aside)
    except OSError:
        aside.unlink(missing_ok=True)
        raise
    files.truncate(segment, start)
    files.fsync(segment)
    recovery.torn_bytes = size - start
    recovery.aside.append(aside)
    logger.warning(
        "%s: the last %d bytes are not a whole record, its writing was interrupted. They were cut off and "
        "are kept as %s",
        segment,
        size - start,
        aside.name,
    )


def _quarantine(segment: Path, recovery: Recovery) -> None:
    aside = free_name(segment, "corrupt")
    files.replace(segment, aside)
    recovery.aside.append(aside)
    logger.error("%s is damaged: no record in it can be read. It is kept as %s", segment, aside.name)


def _repair(segment: Path, form: Format, size: int, recovery: Recovery, repair: bool) -> tuple[bytes, int]:
    """Put a segment with the whole records of *segment* in its place, in one step; its mark and size."""
    new = segment.with_name(segment.name + ".new")
    files.remove(new)  # of a process that died here
    aside = free_name(segment, "corrupt")
    mark = format.new_mark()
    records = 0
    try:
        with segment.open("rb", buffering=2**20) as file, files.create_file(new, form.mode) as repaired:
            repaired.write(form.header(mark))
            for found in format.scan(file, size, form):
                if isinstance(found, Frame):
                    repaired.write(format.frame(mark, found.key, found.payload, found.kind))
                    records += 1
                elif not repair:
                    break
        files.fsync(new)
        with segment.open("rb") as file, files.create_file(aside, form.mode) as kept:
            shutil.copyfileobj(file, kept)
        files.fsync(aside)
    except OSError:
        new.unlink(missing_ok=True)
        aside.unlink(missing_ok=True)
        raise
    files.replace(new, segment)
    files.fsync(segment.parent)
    recovery.aside.append(aside)
    logger.error(
        "%s is damaged: %d bytes in it are not whole records. The %d whole records %s go on; the file as it "
        "was found is kept as %s",
        segment,
        recovery.damaged_bytes,
        records,
        "around them" if repair else "before them",
        aside.name,
    )
    return mark, segment.stat().st_size
