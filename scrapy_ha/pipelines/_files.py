"""The files of a spool."""

from __future__ import annotations

import errno
import os
import re
import time
from pathlib import Path

from scrapy_ha.errors import StoreDamaged
from scrapy_ha.pipelines import _segment

DEAD_LETTERS = "dead.jsonl"
FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
"""What the system says when there is no space."""
BINARY: int = getattr(os, "O_BINARY", 0)

_SEGMENT = re.compile(r"(\d{8,16})\.spool")
_OURS = re.compile(rf"lock|{re.escape(DEAD_LETTERS)}|\d{{8,16}}\.spool(\.new|\.(corrupt|torn)-.*)?")


def segment_path(directory: Path, number: int) -> Path:
    return directory / f"{number:08}.spool"


def segment_number(segment: Path) -> int:
    return int(segment.stem)


def list_segments(directory: Path) -> list[Path]:
    """The segments in *directory*, in order."""
    names = [name for name in os.listdir(directory) if _SEGMENT.fullmatch(name)]
    return sorted((directory / name for name in names), key=segment_number)


def refuse_foreign(directory: Path) -> None:
    """Check that *directory* is a spool or can become one, without touching it.

    Raises:
        StoreDamaged: It is not, or is of a newer format.
    """
    if not directory.exists():
        return
    if not directory.is_dir():
        raise StoreDamaged(f"{directory} is not a directory; the spool needs one of its own (HA_DIR)")
    segments = list_segments(directory)
    foreign = sorted(name for name in os.listdir(directory) if not _OURS.fullmatch(name))
    if foreign and not segments:
        raise StoreDamaged(
            f"{directory} holds files that are not a spool's (such as {foreign[0]!r}); it was left as it is. "
            "Set HA_DIR to another directory, or move the files away."
        )
    for segment in segments:
        try:
            with segment.open("rb") as file:
                _segment.read_mark(file)
        except _segment.NewerVersion as error:
            raise newer(segment, error) from None


def newer(segment: Path, error: _segment.NewerVersion) -> StoreDamaged:
    return StoreDamaged(
        f"{segment} has format {error.version}, and this version of scrapy_ha knows up to "
        f"{_segment.VERSION}. It was left as it is. Use a newer scrapy_ha, or another directory (HA_DIR)."
    )


def free_name(segment: Path, what: str) -> Path:
    """A name that no file has, for what is kept aside of *segment*."""
    base = f"{segment.name}.{what}-{time.strftime('%Y%m%dT%H%M%S', time.gmtime())}"
    path, n = segment.with_name(base), 1
    while path.exists():
        n += 1
        path = segment.with_name(f"{base}-{n}")
    return path


def write(handle: int, data: bytes) -> None:
    """Write all of *data*, or raise."""
    view = memoryview(data)
    while view:
        view = view[os.write(handle, view) :]


def fsync(path: Path) -> None:
    """fsync a file, or a directory where that is possible."""
    if path.is_dir():
        if os.name == "nt":
            return
        handle = os.open(path, os.O_RDONLY)
    else:
        handle = os.open(path, os.O_RDWR)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
