"""A checkpoint's store in tests: records, a fold, sudden death, and a disk that fails."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from scrapy_ha.checkpoint.store import CheckpointStore
from scrapy_ha.checkpoint.wal import Record
from scrapy_ha.segments import files

SET, DELETE = 1, 2


def record(n: int) -> Record:
    return Record(SET, b"k%d" % n, b"v%d" % n * (n % 7))


def fold(read: Callable[[], Iterable[Record]]) -> Iterator[Record]:
    """For a snapshot: the latest value of each key that was not deleted."""
    yield from latest(read())


def latest(records: Iterable[Record]) -> Iterator[Record]:
    values: dict[bytes, Record] = {}
    for one in records:
        if one.kind == SET:
            values[one.key] = one
        else:
            values.pop(one.key, None)
    yield from values.values()


def state(records: Iterable[Record]) -> dict[bytes, bytes]:
    return {one.key: one.payload for one in latest(records)}


def fill(store: CheckpointStore, numbers: Iterable[int]) -> None:
    for n in numbers:
        one = record(n)
        store.append(one.kind, one.key, one.payload)
    store.flush()


def opened(path: Path, **arguments: Any) -> CheckpointStore:
    store = CheckpointStore(path, **arguments)
    store.open()
    return store


def die(store: CheckpointStore) -> None:
    """What ``kill -9`` leaves: what was flushed is there, nothing is tidied up."""
    if store.log.is_open:
        os.close(store.log._handle)
        store.log._handle = -1
        store.log._frames = []
    store._lock.release()


def content(path: Path) -> list[Record]:
    store = opened(path)
    found = list(store.read())
    die(store)
    return found


class Crash(BaseException):
    """The process is gone at this call."""


CALLS = [
    "append_to", "close", "create", "fsync", "fsync_handle", "remove", "replace", "truncate", "write",
]  # fmt: skip


class Faults:
    """Lets the *n*-th call to the disk fail."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, n: int, how: str) -> None:
        self.calls = 0
        self.names: list[str] = []
        self.n = n
        self.how = how
        for name in CALLS:
            monkeypatch.setattr(files, name, self.wrapped(name, getattr(files, name)))

    def wrapped(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(*arguments: Any) -> Any:
            if self.calls == self.n:
                self.calls += 1
                self.names.append(name)
                if self.how == "full":
                    if name == "write":
                        os.write(arguments[0], arguments[1][: len(arguments[1]) // 2])
                    if name in {"close", "remove"}:
                        return call(*arguments)
                    raise OSError(errno.ENOSPC, "No space left on device")
                if self.how == "half" and name == "write":
                    os.write(arguments[0], arguments[1][: len(arguments[1]) // 2])
                elif self.how == "after":
                    call(*arguments)
                raise Crash
            self.calls += 1
            return call(*arguments)

        return wrapper
