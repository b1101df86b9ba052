"""The keys that a Bloom file lacks, written down as they come.

The file is mapped into memory, so noting a key costs no system call, and what was noted is the operating
system's: it survives ``kill -9``. Its space is reserved beforehand, as a mapped file on a full disk would
end the process.
"""

from __future__ import annotations

import json
import mmap
import os
from collections.abc import Iterator
from pathlib import Path

from scrapy_ha.crc import crc32c
from scrapy_ha.seen.bloom import KEY_BYTES

HEADER_BYTES = 512
ENTRY_BYTES = KEY_BYTES + 4
"""A key and its CRC-32C, big-endian."""


class Delta:
    """One such file, being written."""

    def __init__(self, path: Path, header: dict[str, object], entries: int) -> None:
        """Make the file, in place of any other.

        Raises:
            OSError: There is no space for it, or it cannot be made.
        """
        self.path = path
        size = HEADER_BYTES + entries * ENTRY_BYTES
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o666)
        try:
            _reserve(handle, size)
            self._map = mmap.mmap(handle, size)
        except BaseException:
            path.unlink(missing_ok=True)
            raise
        finally:
            os.close(handle)
        start = json.dumps(header).encode()
        self._map[: len(start)] = start
        self._at = HEADER_BYTES
        self._end = size

    @property
    def is_full(self) -> bool:
        return self._at >= self._end

    def note(self, key: bytes) -> None:
        """Only while not full."""
        end = self._at + ENTRY_BYTES
        self._map[self._at : end] = key + crc32c(key).to_bytes(4, "big")
        self._at = end

    def close(self) -> None:
        self._map.close()


def read_header(path: Path) -> dict[str, object]:
    """Raises ``ValueError`` or ``OSError`` for what is no such file."""
    with path.open("rb") as file:
        header = json.loads(file.read(HEADER_BYTES).rstrip(b"\0"))
    if not isinstance(header, dict):
        raise ValueError("no header")
    return header


def read_keys(path: Path) -> Iterator[bytes]:
    """The keys noted. Raises ``ValueError`` when one of them is not whole."""
    data = path.read_bytes()[HEADER_BYTES:]
    used = len(data.rstrip(b"\0"))
    for at in range(0, used, ENTRY_BYTES):
        key = data[at : at + KEY_BYTES]
        if data[at + KEY_BYTES : at + ENTRY_BYTES] != crc32c(key).to_bytes(4, "big"):
            raise ValueError(f"entry {at // ENTRY_BYTES} is not whole")
        yield key


def _reserve(handle: int, size: int) -> None:
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(handle, 0, size)
        return
    zeros = memoryview(bytes(size))
    while zeros:
        zeros = zeros[os.write(handle, zeros) :]
