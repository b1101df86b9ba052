"""Ready requests: which slots are in memory, what is leased of them, what is on disk only."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from scrapy_ha.frontier import _layout as layout
from scrapy_ha.frontier._slots import Item, Slots

if TYPE_CHECKING:
    from random import Random

    from scrapy_ha.leveldb.database import Database

LOAD_LIMIT = 64
"""Slots looked up on disk at a time."""


class Ready:
    """Hands out ready requests, each once, however few of the slots are in memory.

    Invariant: a queue key that was taken stays in *taken* until it is put back or forgotten;
    keys there are passed over whenever a slot is read from disk.
    """

    def __init__(self, db: Database) -> None:
        self._db = db
        self.slots = Slots(self._read)
        self._taken: set[bytes] = set()
        self._unloaded = True
        """There may be slots that are on disk only."""
        self._scan_from = b"q"
        self._scan_missed = False

    def put(self, queue_key: bytes, payload: bytes) -> None:
        """A request that is on disk is ready: a new one, or one that was taken."""
        self._taken.discard(queue_key)
        prefix = queue_key[: -layout.RANK_BYTES]
        slots = self.slots
        if prefix not in slots:
            if not slots.room:
                self._unloaded = self._scan_missed = True
                return
            slots.load(prefix, layout.slot_of(queue_key), more=self._unloaded)
        slots.add(prefix, (queue_key, payload))

    def take(self, busy: Mapping[str, int], full: Collection[str]) -> tuple[str, Item] | None:
        """The next request by slot load, as :meth:`Slots.take`."""
        found = self.slots.take(busy, full)
        if found is not None:
            self._taken.add(found[1][0])
        return found

    def swap(self, item: Item, random: Random) -> Item:
        """Another ready entry of the same slot and priority in the place of *item*, which was taken."""
        group = item[0][: -layout.ORDER_BYTES]
        with self._db.raw_iterator() as iterator:
            iterator.seek(layout.after(group))
            iterator.prev() if iterator.valid() else iterator.seek_to_last()
            last = iterator.key()
            low, high = (int.from_bytes(key[-layout.ORDER_BYTES :], "big") for key in (item[0], last))
            iterator.seek(group + random.randint(low, max(low, high)).to_bytes(layout.ORDER_BYTES, "big"))
            for _ in range(LOAD_LIMIT):
                if not iterator.valid() or not iterator.key().startswith(group):
                    break
                key = iterator.key()
                if key not in self._taken:
                    found = key, iterator.value()
                    self.slots.remove(key)
                    self._taken.add(key)
                    self.put(*item)
                    return found
                iterator.next()
        return item

    def forget(self, queue_key: bytes) -> None:
        """A request that was taken is no longer on disk."""
        self._taken.discard(queue_key)

    def load_more(self) -> bool:
        """Bring some slots that are on disk only into memory; whether there may be any."""
        if not self._unloaded or not self.slots.room:
            return False
        with self._db.raw_iterator() as iterator:
            for _ in range(min(LOAD_LIMIT, self.slots.room)):
                iterator.seek(self._scan_from)  # from slot to slot, over all that is in between
                if not iterator.valid() or not iterator.key().startswith(b"q"):
                    self._unloaded, self._scan_missed = self._scan_missed, False
                    self._scan_from = b"q"
                    break
                prefix = layout.prefix_of(iterator.key())
                self._scan_from = layout.after(prefix)
                if prefix not in self.slots:
                    self.slots.load(prefix, layout.slot_of(prefix), more=True)
        return True

    def _read(self, prefix: bytes, bound: bytes, limit: int) -> list[Item]:
        """Up to *limit* ready entries of one slot behind *bound*."""
        found: list[Item] = []
        with self._db.iterator(start=bound, include_start=False, stop=layout.after(prefix)) as iterator:
            for item in iterator:
                if item[0] not in self._taken:
                    found.append(item)
                    if len(found) == limit:
                        break
        return found
