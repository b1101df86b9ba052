"""Requests that cannot be stored wait here, in memory."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from scrapy import Request

    from scrapy_ha.scheduler.pages import Page


@dataclass(slots=True, eq=False)
class Unstored:
    """One waiting request."""

    request: Request
    slot: str
    key: bytes | None
    parent: Page | None


class UnstoredQueue:
    """By slot load, then priority, then order of arrival, as the frontier does it.

    Their keys are *seen* only in here until they are done: a crash must not leave a request
    seen that is lost.
    """

    def __init__(self) -> None:
        self.keys: set[bytes] = set()
        self._slots: dict[str, list[tuple[int, int, Unstored]]] = {}
        self._delayed: list[tuple[float, int, Unstored]] = []
        self._count = 0
        self._waiting = 0

    def __len__(self) -> int:
        return self._waiting

    @property
    def next_due(self) -> float:
        """Epoch seconds; infinite when nothing is delayed."""
        return self._delayed[0][0] if self._delayed else math.inf

    def push(self, entry: Unstored, due: float = 0.0) -> None:
        self._count += 1
        self._waiting += 1
        if entry.key is not None:
            self.keys.add(entry.key)
        if due:
            heappush(self._delayed, (due, self._count, entry))
        else:
            self._ready(entry, self._count)

    def pop(self, now: float, busy: Mapping[str, int], full: Collection[str]) -> Unstored | None:
        while self._delayed and self._delayed[0][0] <= now:
            _, count, entry = heappop(self._delayed)
            self._ready(entry, count)
        open_slots = [slot for slot in self._slots if slot not in full]
        if not open_slots:
            return None
        slot = min(open_slots, key=lambda name: busy.get(name, 0))
        heap = self._slots[slot]
        entry = heappop(heap)[2]
        if not heap:
            del self._slots[slot]
        self._waiting -= 1
        return entry

    def _ready(self, entry: Unstored, count: int) -> None:
        heappush(self._slots.setdefault(entry.slot, []), (-entry.request.priority, count, entry))
