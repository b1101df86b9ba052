"""One owner per directory, held by the kernel."""

from __future__ import annotations

import json
import os
import socket
import sys
from datetime import datetime, timezone
from typing import TYPE_CHECKING
from weakref import WeakSet

from scrapy_ha.errors import StoreError, StoreLocked

if TYPE_CHECKING:
    from pathlib import Path

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

_OWNER_LIMIT = 2000
"""Bytes of the lock file that are read."""
_COMMAND_LIMIT = 200


class DirectoryLock:
    """An exclusive lock on the directory *path*, which must exist when it is acquired.

    The kernel holds it: when the process ends in any way, ``kill -9`` included, it is free, and
    no stale lock can be left. The file ``lock`` in the directory only says who the owner is, as
    JSON: pid, host, since, command. It stays there after the release, empty.

    Two objects in one process exclude one another as well. On a network file system it is as good
    as that file system's ``flock``.
    """

    def __init__(self, path: Path) -> None:
        self.path = path / "lock"
        """The lock file."""
        self._handle: int | None = None

    def acquire(self) -> None:
        """Take the lock, without waiting.

        Raises:
            StoreLocked: Somebody else has it; the message names directory, pid and host.
            StoreError: The file cannot be made, or the file system does not know locks.
        """
        directory = self.path.parent
        try:
            # Not inherited over exec; for fork see below.
            handle = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise StoreError(f"{directory}: cannot be locked for one owner: {error}") from error
        try:
            _lock(handle)
        except (BlockingIOError, PermissionError):
            owner = _describe(_read(handle))
            os.close(handle)
            raise StoreLocked(
                f"{directory} is in use by another process: {owner}. Wait for its end, stop it, or give this "
                "crawl another directory (HA_DIR, or another HA_NAMESPACE)."
            ) from None
        except OSError as error:
            os.close(handle)
            raise StoreError(
                f"{directory}: its file system cannot lock files ({error}); use a directory on a local disk"
            ) from error
        self._handle = handle
        _held.add(self)
        _write(handle, _owner())

    def release(self) -> None:
        """Give the lock up. Idempotent."""
        if self._handle is not None:
            _write(self._handle, b"")
            os.close(self._handle)
            self._handle = None
        _held.discard(self)


_held: WeakSet[DirectoryLock] = WeakSet()


def _leave_to_parent() -> None:
    """A forked child, such as a worker of a process pool, would hold the locks beyond our end."""
    for lock in tuple(_held):
        if lock._handle is not None:
            os.close(lock._handle)
            lock._handle = None
    _held.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_to_parent)


if sys.platform == "win32":

    def _lock(handle: int) -> None:
        # Windows forbids others to read what is locked: lock a byte far behind the text.
        os.lseek(handle, 2**30, os.SEEK_SET)
        msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)

else:

    def _lock(handle: int) -> None:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _owner() -> bytes:
    # No further arguments: they may hold passwords (-s REDIS_URL=...).
    command = " ".join(sys.argv[:2]).encode("utf-8", "replace").decode()
    owner = {
        "pid": os.getpid(),
        "host": socket.gethostname(),
        "since": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "command": command[:_COMMAND_LIMIT],
    }
    return json.dumps(owner).encode()


def _read(handle: int) -> bytes:
    try:
        os.lseek(handle, 0, os.SEEK_SET)
        return os.read(handle, _OWNER_LIMIT)
    except OSError:
        return b""


def _write(handle: int, owner: bytes) -> None:
    """Best effort: the lock holds without it, for example on a full disk."""
    try:
        os.ftruncate(handle, 0)
        os.lseek(handle, 0, os.SEEK_SET)
        os.write(handle, owner)
    except OSError:
        pass


def _describe(data: bytes) -> str:
    """One line on the owner; whatever the file holds."""
    try:
        owner = json.loads(data)
        pid, host, since, command = (owner[name] for name in ("pid", "host", "since", "command"))
    except (ValueError, KeyError, TypeError, RecursionError):
        return "its lock file does not say whose (yet)"
    return f"pid {_plain(pid)} on host {_plain(host)}, since {_plain(since)} ({_plain(command)})"


def _plain(value: object) -> str:
    """*value* as text of one line and bounded length."""
    text = str(value)[:_COMMAND_LIMIT]
    return "".join(c if c.isprintable() else "?" for c in text)
