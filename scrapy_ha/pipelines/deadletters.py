"""What became of items that could not be stored."""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from scrapy_ha.errors import StoreError, StoreFull
from scrapy_ha.pipelines.jsonlines import to_json, to_line
from scrapy_ha.segments import files

ITEM_LIMIT = 2**16
"""Bytes of JSON that an item may take; of a larger one the beginning is kept, as text."""


class ItemDeadLetters:
    """A file of JSON lines, one per item, that is only appended to."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._unsynced = False

    def add(self, record: Mapping[str, Any], item: Any) -> None:
        """Append *record* and *item*, as far as JSON can hold it. Survives ``kill -9``.

        Raises:
            StoreFull, StoreError: It cannot be written.
        """
        line = to_line({**record, "item": _shown(item)})
        try:
            self._append(line)
        except OSError as error:
            kind = StoreFull if error.errno in files.FULL else StoreError
            raise kind(f"{self.path} cannot be written: {error.strerror}") from error
        self._unsynced = True

    def fsync(self) -> None:
        """Make everything added survive a power cut. Blocks; may run in another thread.

        Raises:
            StoreError: The device did not take it.
        """
        if self._unsynced:
            self._unsynced = False
            try:
                files.fsync(self.path)
            except OSError as error:
                self._unsynced = True
                raise StoreError(f"{self.path} cannot be fsynced: {error}") from error

    def _append(self, line: bytes) -> None:
        handle = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT | files.BINARY, 0o666)
        try:
            size = os.fstat(handle).st_size
            if size:
                os.lseek(handle, -1, os.SEEK_END)
                if os.read(handle, 1) != b"\n":  # the line before was cut by a kill
                    line = b"\n" + line
            try:
                files.write(handle, line)
            except OSError as error:
                if error.errno != errno.EIO:
                    os.ftruncate(handle, size)
                raise
        finally:
            os.close(handle)


def _shown(item: Any) -> Any:
    try:
        shown = to_json(item)
        if len(to_line(shown)) <= ITEM_LIMIT:
            return shown
    except Exception:
        pass
    try:
        return repr(item)[:ITEM_LIMIT]
    except Exception as error:
        return f"an item of {type(item).__name__}, whose repr raised {type(error).__name__}"
