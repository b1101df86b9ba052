"""Who a worker is: the same one again after it died, so that it finds what it held."""

from __future__ import annotations

import socket
from pathlib import Path
from uuid import uuid4

from scrapy_ha.errors import StoreError, StoreLocked
from scrapy_ha.lock import DirectoryLock

MOST = 1000
"""Workers of one crawl in one directory."""


class WorkerIdentity:
    """A name of its own for each process that works in *directory*, given again when its owner has ended.

    A name is a folder, ``workers/<n>``, with a lock that the kernel holds as long as its owner lives.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory / "workers"
        self._lock: DirectoryLock | None = None

    def claim(self) -> str:
        """Raises ``StoreError`` when the directory cannot be written to."""
        for number in range(1, MOST + 1):
            folder = self._directory / str(number)
            try:
                folder.mkdir(parents=True, exist_ok=True)
                lock = DirectoryLock(folder)
                lock.acquire()
                self._lock = lock
                file = folder / "name"
                if not file.exists():
                    file.write_text(f"{socket.gethostname()}:{number}:{uuid4().hex[:12]}", "utf-8")
                return file.read_text("utf-8")[:200]
            except StoreLocked:
                continue
            except (OSError, ValueError) as error:
                raise StoreError(f"{folder} cannot be used to name this worker: {error}") from error
        raise StoreError(f"{self._directory}: {MOST} workers are at work already")

    def release(self) -> None:
        """Idempotent."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None
