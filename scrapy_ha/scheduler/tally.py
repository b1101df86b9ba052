"""Counts that a link met a thousand times passes through."""

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
