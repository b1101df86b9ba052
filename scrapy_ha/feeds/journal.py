"""Which files a crawl opened, and how long they were before.

A mark says how far a file was written when the last page was acknowledged. What it cannot say is
that a file was opened after that: the first one before any page was acknowledged, or the next
batches of a page that gave many items. That is noted here before the file is opened, so that a
resumed run can undo it.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Collection
from pathlib import Path
from typing import Any


class Journal:
    """A small file next to the frontier, one JSON object a line.

    The first line names the feeds that the crawl began with. A line cut by a kill, and lines that
    are none, count as absent: what they would have announced had not been done yet.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.size = 0
        """Bytes so far. Stored with each acknowledgement: what was noted up to there stands."""

    def begin(self, feeds: Collection[str]) -> None:
        """A fresh crawl, with these feeds."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_bytes(b"")
        self.size = 0
        self._append({"feeds": sorted(feeds)})

    def note(self, path: str, overwrite: bool) -> None:
        """The file *path* is about to be opened. It is made if it does not exist.

        Raises:
            OSError: It cannot be made, or this cannot be noted.
        """
        made = not os.path.exists(path)
        with open(path, "ab"):
            pass
        found = os.stat(path)
        length = 0 if overwrite else found.st_size
        self._append({"path": os.path.abspath(path), "inode": found.st_ino, "length": length, "made": made})

    def undo(self, stands: int) -> frozenset[str]:
        """Undo what was noted beyond *stands* bytes, and forget it; the feeds that the crawl began with.

        A file is only touched when it is the one that was opened, not another of that name.
        """
        try:
            noted = self.path.read_bytes()
        except FileNotFoundError:
            return frozenset()
        first, newline, _ = noted.partition(b"\n")
        self.size = min(max(stands, len(first) + len(newline)), len(noted))
        for line in reversed(noted[self.size :].splitlines()):
            record = _parse(line)
            if {"path", "inode", "length", "made"} <= record.keys():
                _restore(**record)
        os.truncate(self.path, self.size)
        feeds = _parse(first).get("feeds")
        return frozenset(feed for feed in feeds if type(feed) is str) if type(feeds) is list else frozenset()

    def _append(self, record: dict[str, Any]) -> None:
        line = json.dumps(record).encode() + b"\n"
        with open(self.path, "ab", buffering=0) as file:
            try:
                complete = file.write(line) == len(line)
            except OSError:
                file.truncate(self.size)
                raise
            if not complete:
                file.truncate(self.size)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path))
        self.size += len(line)


def _parse(line: bytes) -> dict[str, Any]:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return record if type(record) is dict else {}


def _restore(path: Any, inode: Any, length: Any, made: Any) -> None:
    if type(path) is not str or type(length) is not int or length < 0:
        return
    try:
        found = os.stat(path)
    except OSError:
        return
    if found.st_ino != inode:
        return
    if made is True and length == 0:
        os.remove(path)
    elif found.st_size > length:
        os.truncate(path, length)
