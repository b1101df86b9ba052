"""What is in flight: pages, and how much of each slot they take."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from scrapy_ha.typing import SlotSet

if TYPE_CHECKING:
    from scrapy import Request

    from scrapy_ha.typing import Lease


@dataclass(slots=True, eq=False)
class Page:
    """A request that the engine works on."""

    request: Request
    slot: str
    id: int
    """The lease's, or a negative number for a request in memory."""
    lease: Lease | None = None
    """``None``: the request could not be stored, and lives in memory only."""
    parent: Page | None = None
    """Of a request in memory: the page that is not done before this one is."""
    key: bytes | None = None
    """Of a request in memory: the fingerprint to be marked seen when it is done."""
    loading: bool = True
    """It still counts against its slot."""
    moved: bool = False
    """The lease was settled in another way than by the page's end: it is a retry now."""
    record: bytes | None = None
    """It was given up; why."""
    ended: bool = False
    """The engine is done with it."""
    holds: int = 0
    """Children in memory that are not done."""
    members: list[Page] = field(default_factory=list)
    """Descendants in memory that are done, whose items are settled together with this page."""
    descendants: int = 0
    """Of a page that waits for what it yielded: all that it waited for so far."""

    def root(self) -> Page:
        """The page that waits for this one in the end; the page itself, if none does."""
        page = self
        while page.parent is not None:
            page = page.parent
        return page

    def adopt(self, child: Page) -> None:
        """*child* and its members are settled together with this page."""
        if len(self.members) < len(child.members):
            self.members, child.members = child.members, self.members
        self.members += child.members
        self.members.append(child)
        child.members = []


class Loads:
    """How many requests of each slot are on their way to or in the downloader.

    Args:
        capacity: How many a slot takes at once; ``None``: any number. A slot may take none, and is
            full with nothing in it.
    """

    def __init__(self, capacity: Callable[[str], int | None]) -> None:
        self._capacity = capacity
        self.busy: dict[str, int] = {}
        """Slots with anything in them."""
        self.full = SlotSet()

    def occupy(self, slot: str) -> None:
        self.busy[slot] = self.busy.get(slot, 0) + 1
        self.review(slot)

    def vacate(self, slot: str) -> None:
        load = self.busy[slot] - 1
        if load:
            self.busy[slot] = load
        else:
            del self.busy[slot]
        if slot in self.full:
            self.review(slot)

    def review(self, slot: str) -> None:
        """Find out anew whether *slot* is full: its capacity may be another now."""
        capacity = self._capacity(slot)
        if capacity is not None and self.busy.get(slot, 0) >= capacity:
            self.full.add(slot)
        else:
            self.full.discard(slot)
