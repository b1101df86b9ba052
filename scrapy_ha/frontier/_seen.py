"""Which keys the embedded frontier has seen."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from scrapy_ha.frontier import _layout as layout
from scrapy_ha.seen.sweep import Sweep

if TYPE_CHECKING:
    from scrapy_ha.leveldb.database import Database
    from scrapy_ha.seen.tier import BloomTier


class Seen:
    """The ``s`` keys of one generation, with a Bloom filter in front if there is one.

    Args:
        seconds: After which a key counts as new again; ``None``: never.
    """

    def __init__(self, db: Database, tier: BloomTier | None, seconds: float | None) -> None:
        self._db = db
        self._tier = tier
        self._seconds = seconds
        self._sweep = None if seconds is None else Sweep(db, seconds, layout.unpack_time)
        self._prefix = b""
        self._new: bytes | None = None
        """A key that was asked for and found new; nothing was written since."""
        self._saving: Callable[[], None] | None = None

    def open(self, generation: int, batch: Any) -> None:
        """Answer for *generation* from now on; *batch* is to be written before anything is added."""
        self._prefix = layout.seen_prefix(generation)
        if self._tier is None:  # whoever has one next must not trust what the last one wrote
            batch.delete(layout.TOKEN_KEY)
            return
        old = (self._db.get(layout.TOKEN_KEY) or b"").decode("ascii", "replace")
        new = os.urandom(16).hex()
        self._tier.open(f"{generation}:{old}", f"{generation}:{new}", self.keys)
        batch.put(layout.TOKEN_KEY, new.encode())

    def close(self) -> None:
        if self._tier is not None:
            self._tier.close()

    def knows(self, key: bytes, now: float) -> bool:
        known = self._knows(key, now)
        if not known:
            self._new = key
        return known

    def is_new(self, key: bytes, now: float) -> bool:
        """As ``not knows(key)``, which is not looked up again when it was just asked."""
        return key is self._new or not self._knows(key, now)

    def add(self, batch: Any, key: bytes, now: float) -> None:
        """Put into *batch* that *key* is seen."""
        # One that was outdated stands in the filter.
        if self._tier is not None and (self._seconds is None or key not in self._tier):
            self._tier.add(key)
        batch.put(self._prefix + key, layout.pack_time(now))

    def forget(self, batch: Any, keys: Iterable[bytes]) -> int:
        """Put into *batch* that *keys* are new again; how many were seen."""
        forgotten = 0
        for key in keys:
            if self._db.get(self._prefix + key) is not None:
                batch.delete(self._prefix + key)
                forgotten += 1
        return forgotten

    def when(self, key: bytes) -> float | None:
        """When *key* was seen, epoch seconds; ``None``: it was not, or too long ago."""
        value = self._db.get(self._prefix + key)
        return None if value is None else layout.unpack_time(value)

    def keys(self) -> Iterator[bytes]:
        return self._db.keys(self._prefix)

    def written(self) -> None:
        """Something was written."""
        self._new = None
        if self._tier is not None and self._tier.wants_saving:
            self._saving = self._tier.begin_save()

    def maintain(self, now: float) -> None:
        """Write the filter, and remove some keys that are outdated, if it is time to. In any thread."""
        saving, self._saving = self._saving, None
        if saving is not None:
            saving()
        if self._sweep is not None:
            self._sweep.step(self._prefix, layout.after(self._prefix), now)

    def _knows(self, key: bytes, now: float) -> bool:
        tier = self._tier
        if tier is not None and not tier.perhaps(key):
            return False
        value = self._db.get(self._prefix + key)
        known = value is not None and (
            self._seconds is None or layout.unpack_time(value) + self._seconds > now
        )
        if tier is not None:
            tier.settle(value is not None)
        return known
