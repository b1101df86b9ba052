"""Looks at what was seen without opening its store: also while a crawl has it open."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from scrapy_ha.leveldb.copy import copied
from scrapy_ha.seen.store import KIND, State, prefix_of, read_state

if TYPE_CHECKING:
    from scrapy_ha.leveldb.database import Database


class SeenKeys:
    """The keys under *prefix* in *db*, each with the time when it was seen."""

    def __init__(self, db: Database, prefix: bytes, identity: str) -> None:
        self._db = db
        self._prefix = prefix
        self.identity = identity
        """What had made the keys."""

    def when(self, key: bytes) -> float | None:
        """Epoch seconds; ``None``: it was not seen."""
        value = self._db.get(self._prefix + key)
        try:
            return None if value is None else float(struct.unpack(">I", value)[0])
        except struct.error:
            return 0.0

    def count(self) -> int:
        """Reads them all."""
        with self._db.iterator(prefix=self._prefix, include_value=False) as keys:
            return sum(1 for _ in keys)


@contextmanager
def read_store(path: Path) -> Iterator[SeenKeys]:
    """What a :class:`~scrapy_ha.seen.store.SeenStore` in the directory *path* holds at this moment.

    Raises:
        StoreDamaged: It is none, or is damaged, or of a newer format.
        StoreError: It cannot be read, or nowhere is space for a copy.
    """
    with copied(path, KIND) as db:
        state = read_state(db) or State()
        yield SeenKeys(db, prefix_of(state.generation), state.identity)
