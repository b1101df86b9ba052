"""The file that a sub-command writes."""

from __future__ import annotations

import os
import stat
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from scrapy_ha.commands._sub import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def output(name: str) -> Iterator[BinaryIO]:
    """The file to write; a regular one gets its name when it is complete and on the device."""
    if name == "-":
        try:
            yield sys.stdout.buffer
            sys.stdout.buffer.flush()
        except BrokenPipeError:
            # What is still buffered has nowhere to go; the interpreter would complain at its end.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise
        return
    target = Path(os.path.realpath(name))
    if target.is_dir():
        raise UsageError(f"{name} is a directory; name a file")
    if target.exists() and not stat.S_ISREG(target.stat().st_mode):  # a pipe, a device
        with target.open("wb") as file:
            yield file
        return
    part = target.with_name(target.name + ".part")
    try:
        with part.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        part.replace(target)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
