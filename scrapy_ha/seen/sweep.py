"""Removes keys whose time is over, by and by."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from scrapy_ha.leveldb.database import Database

STEP = 10_000
"""Keys looked at in one step, some 10 ms."""
ROUNDS = 10
"""Rounds in the time that a key lives: so much longer at most it stays on disk."""


class Sweep:
    """Goes over the keys of *db*, again and again, and deletes those that were seen too long ago.

    Args:
        seconds: After which a key is new again.
        when: When a key was seen, epoch seconds, from its value.
    """

    def __init__(self, db: Database, seconds: float, when: Callable[[bytes], float]) -> None:
        self._db = db
        self._seconds = seconds
        self._when = when
        self._range = (b"", b"")
        self._at: bytes | None = None
        self._next = 0.0

    def step(self, start: bytes, stop: bytes, now: float) -> bool:
        """Do one step of a round from *start* to *stop*, unless it is too early for one; whether more is
        to be done. In any thread, but one at a time."""
        if self._range != (start, stop):
            self._range, self._at, self._next = (start, stop), None, 0.0
        if self._at is None:
            if now < self._next:
                return False
            self._at, self._next = start, now + self._seconds / ROUNDS
        self._at = self._db.sweep(
            self._at, stop, STEP, lambda value: self._when(value) + self._seconds <= now
        )
        return self._at is not None
