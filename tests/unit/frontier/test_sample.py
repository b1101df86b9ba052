"""Which request of a sick host is its probe."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from scrapy_ha.frontier.leveldb import LevelDBFrontier
from scrapy_ha.loop import completed
from scrapy_ha.typing import Entry, Settlement


@pytest.mark.parametrize("order", ["fifo", "lifo"])
def test_any_of_the_highest_priority(tmp_path: Path, order: str) -> None:
    """Not always the first; each once, none lost, and none of a lower priority before its turn."""
    frontier = LevelDBFrontier(tmp_path, order=order)
    completed(frontier.open())
    names = [b"%d" % n for n in range(200)]
    completed(frontier.offer([Entry(name, "s") for name in names]))
    completed(frontier.offer([Entry(b"low", "s", priority=-1), Entry(b"other", "t", priority=-5)]))
    firsts: Counter[bytes] = Counter()
    for _ in range(30):
        (lease,) = completed(frontier.lease(1, {}, {"t"}, 60, True, {"s"}))
        firsts[lease.payload] += 1
        completed(frontier.settle([Settlement(lease, release=True)]))
    assert len(firsts) > 10
    assert set(firsts) <= set(names)
    taken = []
    while found := completed(frontier.lease(3, {}, {"t"}, 60, True, {"s"})):
        taken += [lease.payload for lease in found]
    assert sorted(taken[:200]) == sorted(names)
    assert taken[200:] == [b"low"]
    completed(frontier.close())
    again = LevelDBFrontier(tmp_path, order=order)
    completed(again.open())
    assert len(completed(again.lease(1000, {}, (), 60, True, {"s", "t"}))) == 202
    completed(again.close())
