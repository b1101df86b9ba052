"""Looks at the dead of a frontier without opening it: also while a crawl has it open."""

from __future__ import annotations

import struct
from contextlib import contextmanager
from typing import TYPE_CHECKING

from scrapy_ha.errors import StoreDamaged
from scrapy_ha.frontier import _layout as layout
from scrapy_ha.frontier.leveldb import dead_of
from scrapy_ha.leveldb.copy import copied, is_database
from scrapy_ha.seen.reader import SeenKeys

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from scrapy_ha.typing import Dead


def is_frontier(path: Path) -> bool:
    """Whether *path* looks like a frontier's directory."""
    return is_database(path)


@contextmanager
def read_seen(path: Path) -> Iterator[SeenKeys]:
    """What was seen according to the frontier in the directory *path*, as it is at this moment.

    Raises what :func:`read_dead` raises.
    """
    with copied(path, layout.KIND) as db:
        stored = db.get(layout.STATE_KEY)
        state = layout.State() if stored is None else layout.State.unpack(stored)
        identity = db.get(layout.IDENTITY_KEY) or b""
        yield SeenKeys(db, layout.seen_prefix(state.seen_generation), identity.decode(errors="replace"))


def read_dead(path: Path) -> Iterator[Dead]:
    """All that was given up in the frontier in the directory *path*, by id, as it is at this moment.

    Raises:
        StoreDamaged: It is no frontier, or is damaged, or of a newer format.
        StoreError: It cannot be read, or nowhere is space for a copy.
    """
    try:
        with copied(path, layout.KIND) as db:
            with db.iterator(prefix=b"r", include_value=False) as keys:
                returned = {layout.returned_id(key) for key in keys}
            with db.iterator(prefix=b"x") as items:
                for key, value in items:
                    yield dead_of(key, value, returned)
    except struct.error:
        raise StoreDamaged(f"{path} holds keys that are not a frontier's") from None
