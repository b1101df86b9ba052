"""Two small things that a link met a thousand times passes through."""

from __future__ import annotations

from typing import Any


class Tally:
    """Counts on their way to Scrapy's stats, whose ``inc_value`` costs as much as a look-up.

    They arrive there with :meth:`flush`, which the scheduler calls at the end of every few pages.
    """

    def __init__(self, stats: Any) -> None:
        self._stats = stats
        self._counts: dict[str, int] = {}

    def add(self, name: str) -> None:
        self._counts[name] = self._counts.get(name, 0) + 1

    def flush(self) -> None:
        if self._counts:
            for name, count in self._counts.items():
                self._stats.inc_value(name, count)
            self._counts.clear()


class RecentKeys:
    """Some of the keys added, the latest *size* at least twice over: a bounded set.

    Two generations: when the young one is full it becomes the old one.
    """

    def __init__(self, size: int = 65536) -> None:
        self._size = size
        self._young: set[bytes] = set()
        self._old: set[bytes] = set()

    def __contains__(self, key: bytes) -> bool:
        return key in self._young or key in self._old

    def add(self, key: bytes) -> None:
        if len(self._young) >= self._size:
            self._old, self._young = self._young, set()
        self._young.add(key)
