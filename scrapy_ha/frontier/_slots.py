"""Which ready request comes next: the slots in memory, each with the head of its queue.

The queues themselves are on disk. In memory stand at most ``SLOT_LIMIT`` slots, and of each only
the first few entries, so memory does not grow with the number of requests or of hosts.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping

from scrapy_ha.frontier._layout import RANK_BYTES
from scrapy_ha.typing import SlotSet

SLOT_LIMIT = 10_000
"""Slots kept in memory. The others are found on disk as soon as there is room."""
HEAD = 64
"""Entries read ahead for one slot."""
BUFFER_BYTES = 8 * 2**20
"""Bytes read ahead in all, roughly: above it, slots read ahead one entry, and keep no new ones."""

Item = tuple[bytes, bytes]
"""Queue key and payload."""


class Slot:
    """Head of one slot's queue.

    Invariant: *items* holds every ready entry of the slot with a key up to *bound*, in
    descending order (so the next one is last); entries behind *bound* are on disk only, and
    there are some only if *more*.
    """

    __slots__ = ("bound", "items", "more", "name", "prefix")

    def __init__(self, prefix: bytes, name: str, more: bool) -> None:
        self.prefix = prefix
        self.name = name
        self.items: list[Item] = []
        self.bound = prefix
        self.more = more

    def insert(self, item: Item) -> None:
        """Put *item* in its place, whatever its key; for what is known not to be in *items*."""
        items = self.items
        key = item[0]
        at = len(items)
        while at and items[at - 1][0] < key:
            at -= 1
        items.insert(at, item)
        if key > self.bound:
            self.bound = key


class Slots:
    """All slots that have, or may have, ready requests.

    Invariant: each is either in *turns*, the next one in front, or set aside because it is in the
    :class:`~scrapy_ha.typing.SlotSet` that is followed. So those that are not to be served for long,
    however many, are met once and not with every request.

    Args:
        read: Reads up to *n* entries of one slot behind a key: ``read(prefix, bound, n)``.
    """

    def __init__(self, read: Callable[[bytes, bytes, int], list[Item]]) -> None:
        self._read = read
        self._slots: dict[bytes, Slot] = {}
        self._turns: OrderedDict[str, Slot] = OrderedDict()
        self._aside: dict[str, Slot] = {}
        self._followed: Collection[str] = ()
        self._left: list[str] = []
        self._bytes = 0

    def __contains__(self, prefix: bytes) -> bool:
        return prefix in self._slots

    def __len__(self) -> int:
        return len(self._slots)

    @property
    def room(self) -> int:
        """How many more slots fit in memory."""
        return SLOT_LIMIT - len(self._slots)

    def load(self, prefix: bytes, name: str, more: bool) -> Slot:
        """Keep a slot in memory; with *more* its entries are read from disk when needed."""
        slot = self._slots[prefix] = self._turns[name] = Slot(prefix, name, more)
        return slot

    def add(self, prefix: bytes, item: Item) -> None:
        """A new entry, already on disk, of a slot that is in memory."""
        slot = self._slots[prefix]
        items = slot.items
        if item[0] > slot.bound:
            if slot.more:
                return
            if len(items) >= HEAD or self._bytes > BUFFER_BYTES:
                slot.more = True
                return
            items.insert(0, item)
            slot.bound = item[0]
            self._bytes += len(item[1])
            return
        slot.insert(item)
        self._bytes += len(item[1])
        if len(items) > 2 * HEAD:
            self._bytes -= sum(len(payload) for _, payload in items[:HEAD])
            del items[:HEAD]
            slot.bound = items[0][0]
            slot.more = True

    def remove(self, key: bytes) -> None:
        """An entry is no longer ready; it may be on disk only, or gone already."""
        slot = self._slots.get(key[:-RANK_BYTES])
        if slot is None:
            return
        for at, item in enumerate(slot.items):
            if item[0] == key:
                self._bytes -= len(item[1])
                del slot.items[at]
                return

    def take(self, busy: Mapping[str, int], full: Collection[str]) -> tuple[str, Item] | None:
        """Take the next entry of the least busy slot that is not in *full*; ``None`` without one.

        Cost: constant when an idle slot is in front; else the number of busy slots. Of slots in
        *full*, if that is one and the same :class:`~scrapy_ha.typing.SlotSet`: those that are new there.
        """
        if full is not self._followed or self._left:
            self._bring_back(full)
        while True:
            best: Slot | None = None
            least = 0
            passed: list[Slot] = []
            for name, slot in self._turns.items():
                if name in full:
                    passed.append(slot)
                    continue
                load = busy.get(name, 0)
                if best is None or load < least:
                    best, least = slot, load
                    if not load:
                        break
            if passed and isinstance(full, SlotSet):
                for slot in passed:
                    self._aside[slot.name] = self._turns.pop(slot.name)
            if best is None:
                return None
            if best.items or (best.more and self._refill(best)):
                item = best.items.pop()
                self._bytes -= len(item[1])
                if best.items or best.more:
                    self._turns.move_to_end(best.name)
                else:
                    self._drop(best)
                return best.name, item
            self._drop(best)

    def _bring_back(self, full: Collection[str]) -> None:
        """Give their turn again, before all others, to slots that may be in *full* no more."""
        if full is self._followed:
            freed = self._left.copy()
            self._left.clear()
        else:
            freed = list(self._aside)
            self._followed = full
            self._left = full.follow() if isinstance(full, SlotSet) else []
        for name in freed:
            if name in self._aside:
                self._turns[name] = self._aside.pop(name)
                self._turns.move_to_end(name, last=False)

    def _refill(self, slot: Slot) -> bool:
        wanted = HEAD if self._bytes <= BUFFER_BYTES else 1
        found = self._read(slot.prefix, slot.bound, wanted)
        slot.more = len(found) == wanted
        if found:
            slot.bound = found[-1][0]
            found.reverse()
            slot.items = found
            self._bytes += sum(len(payload) for _, payload in found)
        return bool(found)

    def _drop(self, slot: Slot) -> None:
        del self._slots[slot.prefix]
        del self._turns[slot.name]
