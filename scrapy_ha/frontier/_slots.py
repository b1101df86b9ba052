"""Which ready request comes next: the slots in memory, each with the head of its queue.

The queues themselves are on disk. In memory stand at most ``SLOT_LIMIT`` slots, and of each only
the first few entries, so memory does not grow with the number of requests or of hosts.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping

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

    __slots__ = ("bound", "items", "more", "prefix")

    def __init__(self, prefix: bytes, more: bool) -> None:
        self.prefix = prefix
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

    Args:
        read: Reads up to *n* entries of one slot behind a key: ``read(prefix, bound, n)``.
    """

    def __init__(self, read: Callable[[bytes, bytes, int], list[Item]]) -> None:
        self._read = read
        self._slots: OrderedDict[bytes, Slot] = OrderedDict()
        self._names: dict[bytes, str] = {}
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
        slot = self._slots[prefix] = Slot(prefix, more)
        self._names[prefix] = name
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

    def take(self, busy: Mapping[str, int], full: Collection[str]) -> tuple[str, Item] | None:
        """Take the next entry of the least busy slot that is not in *full*; ``None`` without one.

        Cost: constant when an idle slot is in front; else the number of busy slots.
        """
        while True:
            best: bytes | None = None
            least = 0
            names = self._names
            for prefix in self._slots:
                name = names[prefix]
                if name in full:
                    continue
                load = busy.get(name, 0)
                if best is None or load < least:
                    best, least = prefix, load
                    if not load:
                        break
            if best is None:
                return None
            slot = self._slots[best]
            if slot.items or (slot.more and self._refill(slot)):
                item = slot.items.pop()
                self._bytes -= len(item[1])
                name = names[best]
                if slot.items or slot.more:
                    self._slots.move_to_end(best)
                else:
                    self._drop(best)
                return name, item
            self._drop(best)

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

    def _drop(self, prefix: bytes) -> None:
        del self._slots[prefix]
        del self._names[prefix]
