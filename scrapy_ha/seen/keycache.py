"""The keys met last, at the cost of a look-up in memory."""

from __future__ import annotations

from scrapy_ha.seen.bloom import KEY_BYTES

_EMPTY = bytes(KEY_BYTES)
"""What an empty place looks like; a key like this is not known."""


class KeyCache:
    """Some of the keys added, most of the latest *size*: exact, of fixed size.

    Keys lie side by side in one table, 20 bytes each, which is a fifth of what a ``set`` of them
    takes. A key belongs to one bucket of eight places, and pushes out one that is there when all
    are taken. What a crawl never fills is never touched, so takes no memory.

    Args:
        size: Places, a power of two.
    """

    WAYS = 8

    def __init__(self, size: int = 1 << 20) -> None:
        self._width = KEY_BYTES * self.WAYS
        self._mask = size // self.WAYS - 1
        self._table = bytearray(size * KEY_BYTES)
        self._find = self._table.find
        self._next = bytearray(size // self.WAYS)

    def __contains__(self, key: bytes) -> bool:
        start = (hash(key) & self._mask) * self._width
        at = self._find(key, start, start + self._width)
        return (
            at >= 0
            and not (at - start) % KEY_BYTES  # else found across two others, which says nothing
            and len(key) == KEY_BYTES
            and key != _EMPTY
        )

    def add(self, key: bytes) -> None:
        """Keep *key*, which is not there; it is not kept if it has another length."""
        if len(key) != KEY_BYTES:
            return
        bucket = hash(key) & self._mask
        way = self._next[bucket]
        self._next[bucket] = way + 1 if way < self.WAYS - 1 else 0
        at = bucket * self._width + way * KEY_BYTES
        self._table[at : at + KEY_BYTES] = key
