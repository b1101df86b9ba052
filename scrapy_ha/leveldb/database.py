"""LevelDB in its directory, with its errors as ours."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import islice
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

from scrapy_ha._plyvel import plyvel
from scrapy_ha.errors import StoreDamaged, StoreError, StoreFull
from scrapy_ha.leveldb.directory import Directory, is_full, text_of

if TYPE_CHECKING:
    from scrapy_ha.leveldb.kind import Kind

_LOCKED = 100
"""Keys that are looked at again and deleted while other writes wait, half a millisecond."""


class Database:
    """Reads and atomic writes, until the first write that fails.

    After that it takes no more: LevelDB's log may end in half a record, which is harmless at its
    end and fatal with more behind it.
    """

    def __init__(self, path: Path, kind: Kind, crawl: str | None = None) -> None:
        self._directory = Directory(path, kind, crawl)
        self._failure: str | None = None
        self._lock = Lock()
        self._db: Any = None

    @property
    def is_open(self) -> bool:
        return self._db is not None

    @property
    def failed(self) -> bool:
        return self._failure is not None

    def open(self) -> None:
        self._db = self._directory.open()
        # Without this LevelDB believes what a table holds, whatever became of it.
        self._get = partial(self._db.get, verify_checksums=True)
        self.iterator = partial(self._db.iterator, verify_checksums=True)
        self.raw_iterator = partial(self._db.raw_iterator, verify_checksums=True)
        self.batch = self._db.write_batch

    def close(self) -> None:
        self._db = None
        self._directory.close()

    def get(self, key: bytes) -> bytes | None:
        try:
            value: bytes | None = self._get(key)
        except (plyvel.Error, OSError) as error:
            raise self._translation(error, "read", fatal=True) from error
        return value

    def keys(self, prefix: bytes) -> Iterator[bytes]:
        """All keys that start with *prefix*, without it."""
        some = self._db.prefixed_db(prefix)
        with (
            self.translated("read"),
            some.iterator(include_value=False, verify_checksums=True, fill_cache=False) as keys,
        ):
            yield from keys

    def write(self, batch: Any) -> None:
        """Write *batch* in one step: it survives ``kill -9``.

        Raises:
            StoreFull: There is no space. The store takes no more writes.
            StoreError: Any other failure, or an earlier one. The store takes no more writes.
        """
        with self._lock:
            self._write(batch)

    def fsync(self) -> None:
        """Make everything written survive a power cut. In any thread."""
        with self.translated("fsync", fatal=False):
            self._directory.fsync()

    def compact(self, start: bytes, stop: bytes) -> None:
        """Drop what was deleted between two keys. In any thread."""
        self._db.compact_range(start=start, stop=stop)

    def remove_some(self, start: bytes, stop: bytes, limit: int) -> bool:
        """Delete up to *limit* keys of a range, and compact it after the last; whether there were any.

        In any thread.
        """
        batch = self.batch()
        removed = 0
        with self.iterator(start=start, stop=stop, include_value=False) as iterator:
            for key in iterator:
                batch.delete(key)
                removed += 1
                if removed >= limit:
                    break
        if removed:
            self.write(batch)
            if removed < limit:
                self.compact(start, stop)
        return removed > 0

    def sweep(self, start: bytes, stop: bytes, limit: int, outdated: Callable[[bytes], bool]) -> bytes | None:
        """Look at up to *limit* keys of a range, and delete those of an *outdated* value.

        One that gets another value meanwhile stays. In any thread.

        Returns:
            The start of what is left to look at; ``None``: nothing is.
        """
        with self.translated("read"), self.iterator(start=start, stop=stop, fill_cache=False) as items:
            seen = list(islice(items, limit))
        keys = [key for key, value in seen if outdated(value)]
        for at in range(0, len(keys), _LOCKED):
            with self._lock:
                batch = self.batch()
                for key in keys[at : at + _LOCKED]:
                    value = self.get(key)
                    if value is not None and outdated(value):
                        batch.delete(key)
                self._write(batch)
        return seen[-1][0] + b"\0" if len(seen) == limit else None

    def damaged(self, why: str) -> StoreDamaged:
        return StoreDamaged(self._directory.damaged(why))

    def _write(self, batch: Any) -> None:
        if self._failure is not None:
            raise StoreError(self._failure)
        try:  # not the context manager below, which costs as much as a write
            batch.write()
        except (plyvel.Error, OSError) as error:
            raise self._translation(error, "write", fatal=True) from error

    @contextmanager
    def translated(self, doing: str, fatal: bool = True) -> Iterator[None]:
        """Turn LevelDB's errors into ours; *fatal* ones end all writing."""
        if self._failure is not None:
            raise StoreError(self._failure)
        try:
            yield
        except (plyvel.Error, OSError) as error:
            raise self._translation(error, doing, fatal) from error
        except (struct.error, UnicodeDecodeError, IndexError) as error:
            raise self.damaged(f"a record is not what it should be ({error})") from error

    def _translation(self, error: Exception, doing: str, fatal: bool) -> StoreError:
        said = text_of(error)
        if isinstance(error, plyvel.CorruptionError):
            return self.damaged(said)
        text = f"{self._directory.path}: {doing} failed: {said}"
        if fatal:
            self._failure = text
        if is_full(error):
            return StoreFull(f"{text}; free some space and start the crawl again, nothing is lost")
        return StoreError(text)
