"""Identities of what a page yields, for as long as the page may be delivered again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from scrapy_ha.frontier import _layout as layout
from scrapy_ha.typing import SEED

if TYPE_CHECKING:
    from scrapy_ha.leveldb.database import Database
    from scrapy_ha.typing import Entry


class Children:
    """Tells which children without a key an earlier delivery of their parent stored."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self._parents: set[int] = set()
        """Those that have identities on disk."""
        self._changed: dict[bytes, layout.Family] = {}

    def load(self, generation: int) -> None:
        """Find the parents that a crash left with identities."""
        first = layout.children_prefix(generation, SEED + 1)
        stop = layout.after(layout.children_of_generation(generation))
        with self._db.iterator(start=first, stop=stop, include_value=False) as iterator:
            self._parents.update(map(layout.parent_of, iterator))

    def is_new(self, entry: Entry, parent: int, token: int, generation: int) -> bool:
        """Count *entry* among the children of the delivery *token* of *parent*."""
        marker = layout.children_prefix(generation, parent) + entry.ordinal
        family = self._changed.get(marker)
        if family is None:
            stored = self._db.get(marker)
            family = layout.Family(token) if stored is None else layout.Family.unpack(stored)
            self._changed[marker] = family
            if parent != SEED:
                self._parents.add(parent)
        return family.meet(token)

    def write(self, batch: Any) -> None:
        """Put what was counted into *batch*."""
        for marker, family in self._changed.items():
            batch.put(marker, family.pack())
        self._changed.clear()

    def forget(self, batch: Any, parent: int, generation: int) -> None:
        """*parent* will not be delivered again."""
        if parent in self._parents:
            self._parents.discard(parent)
            prefix = layout.children_prefix(generation, parent)
            with self._db.iterator(prefix=prefix, include_value=False) as iterator:
                for marker in iterator:
                    batch.delete(marker)
