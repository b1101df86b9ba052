"""What a log does to its files. Everything that changes the disk goes through here."""

from __future__ import annotations

import errno
import os
import time
from pathlib import Path
from typing import BinaryIO

FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
"""What the system says when there is no space."""
BINARY: int = getattr(os, "O_BINARY", 0)


def list_segments(directory: Path, suffix: str) -> list[Path]:
    """The segments in *directory*, in order."""
    return sorted(path for path in directory.glob(f"*{suffix}") if _is_number(path.stem))


def segment_path(directory: Path, number: int, suffix: str) -> Path:
    return directory / f"{number:08}{suffix}"


def segment_number(segment: Path) -> int:
    return int(segment.stem)


def _is_number(text: str) -> bool:
    return 8 <= len(text) <= 16 and text.isascii() and text.isdigit()


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


def create(path: Path, mode: int = 0o666) -> int:
    """Make *path* anew, to be appended to; its handle."""
    return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_TRUNC | BINARY, mode)


def create_file(path: Path, mode: int) -> BinaryIO:
    """Make *path*, which must not exist, with *mode* before the umask."""
    return open(path, "xb", opener=lambda name, flags: os.open(name, flags, mode))


def append_to(path: Path) -> int:
    """Open *path* to append to it; its handle."""
    return os.open(path, os.O_WRONLY | os.O_APPEND | BINARY)


def truncate(file: Path | int, size: int) -> None:
    """Cut a file, given by its path or its handle, to *size* bytes."""
    if isinstance(file, int):
        os.ftruncate(file, size)
    else:
        os.truncate(file, size)


def replace(old: Path, new: Path) -> None:
    """Have *new* be what *old* was, in one step."""
    old.replace(new)


def remove(path: Path) -> None:
    path.unlink(missing_ok=True)


def fsync_handle(handle: int) -> None:
    os.fsync(handle)


def close(handle: int) -> None:
    os.close(handle)
