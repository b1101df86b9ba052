"""Contract: what is offered is stored once, whatever it looks like."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import pytest

from scrapy_ha.testing._base import (
    ContractBase,
    ack,
    bury,
    driven,
    entries,
    entry,
    keyed,
    lease,
    lease_all,
    lease_one,
    names,
    numbers,
    opened,
    replay,
)
from scrapy_ha.typing import SEED, Entry, Frontier, Lease, Settlement

if TYPE_CHECKING:
    from scrapy_ha.testing._base import MakeFrontier
    from scrapy_ha.testing.clock import FakeClock

HOSTILE_NAMES = [
    "",
    "\0",
    "a\0b",
    "a",
    "a\0",
    "ÿ",
    "\xff\xff",
    "\udcff",
    "\U0010ffff",
    "пример.испытание",
    "例え.jp:8080",
    "{tag}",
    "a:b/c%d\n",
    "x" * 1000,
]
HOSTILE_BYTES = [b"", b"\0", b"\0\0", b"a", b"a\0", b"a\0b", b"\xff", b"\xff" * 20, b"\xfe\xff", b"x" * 1000]


class Offering(ContractBase):
    @driven
    async def test_it_is_a_frontier(self, make: MakeFrontier) -> None:
        """The store has every method of the protocol."""
        assert isinstance(make(), Frontier)

    @driven
    async def test_a_new_store_is_empty(self, make: MakeFrontier) -> None:
        """Nothing is resumed, nothing waits, nothing is due."""
        frontier = make()
        found = await frontier.open()
        assert (found.resumed, found.seeded, found.reclaimed, found.poisoned) == (False, False, 0, 0)
        assert found.marks == {}
        assert await numbers(frontier) == (0, 0, 0, 0)
        assert await lease(frontier, 10) == []
        assert await frontier.next_due() is None
        assert await frontier.dead(10) == []
        assert await frontier.reclaim() == (0, 0)

    @driven
    async def test_empty_batches_change_nothing(self, make: MakeFrontier) -> None:
        """Every batched call takes an empty batch."""
        frontier = await opened(make())
        await frontier.offer(entries("one"))
        assert await frontier.offer([]) == []
        assert await lease(frontier, 0) == []
        assert await frontier.settle([]) == []
        assert await frontier.renew([], 10.0) == []
        assert await frontier.replay([]) == 0
        assert await frontier.purge([]) == 0
        assert await frontier.dead(0) == []
        assert await numbers(frontier) == (1, 0, 0, 0)

    @driven
    async def test_what_is_offered_is_leased(self, make: MakeFrontier) -> None:
        """A lease carries the entry as it was offered, and names it."""
        frontier = await opened(make())
        assert await frontier.offer([entry(b"\0payload\xff", slot="example.org", priority=7)]) == [True]
        one = await lease_one(frontier)
        assert (one.payload, one.slot, one.priority) == (b"\0payload\xff", "example.org", 7)
        assert one.deliveries == 1
        assert one.id >= 1
        assert await numbers(frontier) == (0, 0, 1, 0)
        assert await ack(frontier, one) == [True]
        assert await numbers(frontier) == (0, 0, 0, 0)

    @driven
    async def test_a_key_is_accepted_once(self, make: MakeFrontier) -> None:
        """In one batch, in the next, while it waits, in flight and when it is done."""
        frontier = await opened(make())
        assert await frontier.offer(keyed("x", "y", "x")) == [True, True, False]
        assert await frontier.offer(keyed("y", "z")) == [False, True]
        leases = await lease_all(frontier)
        assert sorted(names(leases)) == ["x", "y", "z"]
        assert await frontier.offer(keyed("x", "y", "z")) == [False] * 3
        await ack(frontier, *leases)
        assert await frontier.offer(keyed("x", "y", "z")) == [False] * 3
        assert await lease_all(frontier) == []

    @driven
    async def test_a_key_is_the_same_in_any_slot(self, make: MakeFrontier) -> None:
        """Slot, priority, due time and payload do not make it another request."""
        frontier = await opened(make())
        await frontier.offer([entry("one", "s", key=b"k")])
        assert await frontier.offer([entry("two", "t", key=b"k", priority=5, due=1e12)]) == [False]
        assert await numbers(frontier) == (1, 0, 0, 0)

    @driven
    async def test_without_a_key_nothing_is_a_duplicate(self, make: MakeFrontier) -> None:
        """Not even with the same payload, in one batch or another."""
        frontier = await opened(make())
        assert await frontier.offer(entries("x", "x")) == [True, True]
        assert await frontier.offer(entries("x")) == [True]
        leases = await lease_all(frontier)
        assert names(leases) == ["x", "x", "x"]
        assert len({one.id for one in leases}) == 3

    @driven
    async def test_knows_is_never_wrong(self, make: MakeFrontier) -> None:
        """``True`` only for what was offered or marked seen, ``False`` only for what was not."""
        frontier = await opened(make())
        assert frontier.knows(b"x") in (False, None)
        await frontier.offer(keyed("x"))
        await frontier.settle([], children=keyed("y"), seen=[b"z"])
        for key in (b"x", b"y", b"z"):
            assert frontier.knows(key) in (True, None)
        for key in (b"", b"xx", b"w"):
            assert frontier.knows(key) in (False, None)
        await ack(frontier, *await lease_all(frontier))
        assert frontier.knows(b"x") in (True, None)
        await frontier.close()
        again = await opened(make())
        assert again.knows(b"x") in (True, None)
        assert again.knows(b"w") in (False, None)

    @driven
    async def test_keys_are_any_bytes(self, make: MakeFrontier) -> None:
        """None is taken for another one, or for the start of one."""
        frontier = await opened(make())
        for key in HOSTILE_BYTES:
            assert frontier.knows(key) in (False, None)
            assert await frontier.offer([entry("x", key=key)]) == [True], key
            assert await frontier.offer([entry("x", key=key)]) == [False], key
        assert await numbers(frontier) == (len(HOSTILE_BYTES), 0, 0, 0)

    @driven
    async def test_payloads_are_any_bytes(self, make: MakeFrontier) -> None:
        """Also none at all and a megabyte, in every state and over a crash."""
        frontier = await opened(make())
        payloads = [*HOSTILE_BYTES, bytes(range(256)) * 4096]
        await frontier.offer([entry(payload) for payload in payloads])
        await frontier.offer([entry(payload, due=1e11) for payload in payloads])
        self.crash(frontier)
        frontier = await opened(make())
        leases = await lease_all(frontier)
        assert [one.payload for one in leases] == payloads
        await bury(frontier, *leases)
        self.crash(frontier)
        frontier = await opened(make())
        assert [one.payload for one in await frontier.dead(100)] == payloads
        assert await numbers(frontier) == (0, len(payloads), 0, len(payloads))

    @driven
    async def test_slots_have_any_name(self, make: MakeFrontier, clock: FakeClock) -> None:
        """Each keeps its own queue and its name, when ready, delayed, dead, and over a crash."""
        frontier = await opened(make())
        await frontier.offer([entry("r", slot) for slot in HOSTILE_NAMES])
        await frontier.offer([entry("d", slot, due=clock.time() + 10) for slot in HOSTILE_NAMES])
        leases = await lease(frontier, len(HOSTILE_NAMES))
        assert sorted(one.slot for one in leases) == sorted(HOSTILE_NAMES)
        await bury(frontier, *leases)
        assert sorted(one.slot for one in await frontier.dead(100)) == sorted(HOSTILE_NAMES)
        self.crash(frontier)
        clock.advance(10)
        frontier = await opened(make())
        for slot in HOSTILE_NAMES:
            others = set(HOSTILE_NAMES) - {slot}
            assert [one.slot for one in await lease(frontier, 5, full=others)] == [slot]

    @driven
    async def test_a_slot_name_of_any_length(self, make: MakeFrontier) -> None:
        """A hostile link may have a host name of 100,000 characters: it is taken like another."""
        frontier = await opened(make())
        slots = ["x" * 70_000 + end for end in "ab"]
        await frontier.offer([entry(slot[-1], slot) for slot in slots])
        leases = await lease(frontier, 5, full=[slots[0]])
        assert [(one.payload, one.slot) for one in leases] == [(b"b", slots[1])]
        await ack(frontier, *leases)
        assert [one.slot for one in await lease(frontier, 5)] == [slots[0]]

    @driven
    async def test_thousands_in_one_batch(self, make: MakeFrontier) -> None:
        """One call stores them all, and none is lost or doubled on its way through."""
        frontier = await opened(make())
        count = 3000
        batch = [entry(str(n), f"slot {n % 37}", key=b"%d" % n) for n in range(count)]
        assert await frontier.offer(batch) == [True] * count
        assert await frontier.offer(batch) == [False] * count
        leases = await lease_all(frontier)
        assert sorted(map(int, names(leases))) == list(range(count))
        assert await ack(frontier, *leases) == [True] * count
        assert await numbers(frontier) == (0, 0, 0, 0)

    @driven
    async def test_not_leased_before_it_is_due(self, make: MakeFrontier, clock: FakeClock) -> None:
        """It is delayed until then, and ready at that very time (I5)."""
        frontier = await opened(make())
        now = clock.time()
        await frontier.offer([entry("later", key=b"k", due=now + 10), entry("sooner", due=now + 5)])
        assert await numbers(frontier) == (0, 2, 0, 0)
        assert await frontier.next_due() == now + 5
        assert await frontier.offer(keyed("k")) == [False]
        clock.advance(4.5)
        assert await lease(frontier, 5) == []
        clock.advance(0.5)
        assert names(await lease(frontier, 5)) == ["sooner"]
        assert await frontier.next_due() == now + 10
        clock.advance(5)
        assert names(await lease(frontier, 5)) == ["later"]
        assert await frontier.next_due() is None
        assert await numbers(frontier) == (0, 0, 2, 0)

    @driven
    async def test_a_due_time_is_not_rounded_down(self, make: MakeFrontier, clock: FakeClock) -> None:
        """Not by the smallest step; nor does rounding up delay it by more than a millisecond."""
        frontier = await opened(make())
        await frontier.offer([entry("x", due=math.nextafter(clock.time(), math.inf))])
        assert await lease(frontier) == []
        clock.advance(0.001)
        assert names(await lease(frontier)) == ["x"]

    @driven
    async def test_a_due_time_in_the_past_is_at_once(self, make: MakeFrontier, clock: FakeClock) -> None:
        """So is the present."""
        frontier = await opened(make())
        now = clock.time()
        await frontier.offer([entry("x", due=now), entry("y", due=now - 1), entry("z", due=-1e300)])
        assert await numbers(frontier) == (3, 0, 0, 0)
        assert names(await lease_all(frontier)) == ["x", "y", "z"]

    @driven
    async def test_delayed_over_a_crash(self, make: MakeFrontier, clock: FakeClock) -> None:
        """The due time outlives the worker."""
        frontier = await opened(make())
        due = clock.time() + 3600
        await frontier.offer([entry("x", due=due), entry("never", due=1e300)])
        self.crash(frontier)
        frontier = await opened(make())
        assert await numbers(frontier) == (0, 2, 0, 0)
        assert await frontier.next_due() == due
        assert await lease(frontier) == []
        clock.advance(3600)
        assert names(await lease(frontier, 5)) == ["x"]

    @driven
    async def test_a_due_request_takes_its_place_by_priority(
        self, make: MakeFrontier, clock: FakeClock
    ) -> None:
        """Once due it counts like any other: by priority, then by arrival."""
        frontier = await opened(make())
        due = clock.time() + 10
        await frontier.offer([entry("early", due=due), entry("high", due=due, priority=1)])
        await frontier.offer(entries("plain"))
        clock.advance(10)
        assert names(await lease(frontier, 5)) == ["high", "early", "plain"]

    @driven
    async def test_thousands_due_at_once(self, make: MakeFrontier, clock: FakeClock) -> None:
        """All of them become ready, whatever the bound on the work of one call."""
        frontier = await opened(make())
        due = clock.time() + 10
        await frontier.offer([entry(str(n), f"s{n % 3}", due=due + n % 5) for n in range(1000)])
        clock.advance(15)
        assert sorted(map(int, names(await lease_all(frontier)))) == list(range(1000))

    # Children without a key

    @driven
    async def test_children_are_stored_once_over_deliveries(self, make: MakeFrontier) -> None:
        """When a page is delivered again after a crash, what it yielded is known by its ordinal."""
        frontier = await opened(make())
        await frontier.offer(entries("page"))
        page = await lease_one(frontier)
        assert await frontier.offer([_child(page.id, b"1"), _child(page.id, b"2")]) == [True, True]
        self.crash(frontier)
        frontier = await opened(make())
        again = await _lease_named(frontier, "page")
        assert again.id == page.id
        offered = [_child(again.id, ordinal) for ordinal in (b"3", b"2", b"1")]
        assert await frontier.offer(offered) == [True, False, False]
        self.crash(frontier)
        frontier = await opened(make())
        await _lease_named(frontier, "page")
        assert await frontier.offer(offered) == [False] * 3
        assert await frontier.settle([], children=offered) == []
        assert len(await lease_all(frontier)) == 3 + 3

    @driven
    async def test_children_with_one_ordinal_are_counted(self, make: MakeFrontier) -> None:
        """In each delivery afresh: only those beyond the number that is stored are new."""
        frontier = await opened(make())
        await frontier.offer(entries("page"))
        page = await lease_one(frontier)
        twin = _child(page.id, b"same")
        assert await frontier.offer([twin, twin]) == [True, True]
        assert await frontier.offer([twin]) == [True]
        self.crash(frontier)
        frontier = await opened(make())
        await _lease_named(frontier, "page")
        assert await frontier.offer([twin, twin]) == [False, False]
        assert await frontier.offer([twin, twin]) == [False, True]

    @pytest.mark.parametrize("way", ["retry", "release", "reclaim", "close"])
    def test_children_are_known_until_the_page_is_done(
        self, way: str, make: MakeFrontier, clock: FakeClock
    ) -> None:
        """Also when it comes back in another way than after a crash."""
        self.drive(self._children_known(way, make, clock))

    async def _children_known(self, way: str, make: MakeFrontier, clock: FakeClock) -> None:
        frontier = await opened(make())
        await frontier.offer(entries("page"))
        page = await lease_one(frontier, ttl=10)
        child = _child(page.id, b"1")
        assert await frontier.offer([child]) == [True]
        if way == "retry":
            await frontier.settle([Settlement(page, retry_at=clock.time())])
        elif way == "release":
            await frontier.settle([Settlement(page, release=True)])
        elif way == "reclaim":
            clock.advance(10.5)
            assert await frontier.reclaim() == (1, 0)
        else:
            await frontier.close()
            frontier = await opened(make())
        await _lease_named(frontier, "page")
        assert await frontier.offer([child]) == [False]

    @driven
    async def test_children_are_forgotten_when_the_page_is_done(self, make: MakeFrontier) -> None:
        """Those in the same call belong to it still; what claims to be its child later is new."""
        frontier = await opened(make())
        await frontier.offer(entries("page"))
        page = await lease_one(frontier)
        child = _child(page.id, b"1")
        assert await frontier.offer([child]) == [True]
        self.crash(frontier)
        frontier = await opened(make())
        page = await _lease_named(frontier, "page")
        assert await frontier.settle([Settlement(page)], children=[child]) == [True]
        assert await numbers(frontier) == (1, 0, 0, 0)
        assert await frontier.offer([child]) == [True]

    @driven
    async def test_children_are_forgotten_when_the_page_is_given_up(
        self, make: MakeFrontier, clock: FakeClock
    ) -> None:
        """All of them, whichever delivery stored them: a replay of the page yields them again."""
        frontier = await opened(make())
        await frontier.offer(entries("page"))
        page = await lease_one(frontier)
        first, second = _child(page.id, b"1"), _child(page.id, b"2")
        assert await frontier.offer([first]) == [True]
        await frontier.settle([Settlement(page, retry_at=clock.time())])
        self.crash(frontier)
        frontier = await opened(make())
        page = await _lease_named(frontier, "page")
        assert await frontier.offer([second, first]) == [True, False]
        await bury(frontier, page)
        assert await replay(frontier, page.id) == 1
        await _lease_named(frontier, "page")
        assert await frontier.offer([first, second, first]) == [True, True, True]

    @driven
    async def test_children_of_different_pages_are_different(self, make: MakeFrontier) -> None:
        """An ordinal counts for one parent; ordinals are any bytes."""
        frontier = await opened(make())
        await frontier.offer(entries("one", "two"))
        one, two = await lease(frontier, 2)
        for ordinal in HOSTILE_BYTES:
            children = [_child(one.id, ordinal), _child(two.id, ordinal), _child(SEED, ordinal)]
            assert await frontier.offer(children) == [True] * 3
        self.crash(frontier)
        frontier = await opened(make())
        await lease_all(frontier)
        for ordinal in HOSTILE_BYTES:
            children = [_child(one.id, ordinal), _child(two.id, ordinal), _child(SEED, ordinal)]
            assert await frontier.offer(children) == [False] * 3

    @driven
    async def test_a_child_with_a_key_is_known_by_it(self, make: MakeFrontier) -> None:
        """Its ordinal does not count, then and later."""
        frontier = await opened(make())
        await frontier.offer(entries("page"))
        page = await lease_one(frontier)
        children = [_child(page.id, b"1", key) for key in (b"k", b"l", b"k", None, None)]
        assert await frontier.offer(children) == [True, True, False, True, True]

    @driven
    async def test_children_of_a_lost_lease_keep_their_identity(
        self, make: MakeFrontier, clock: FakeClock
    ) -> None:
        """A worker that lost its lease does not know it yet: what it yields is not stored twice."""
        frontier = await opened(make())
        await frontier.offer(entries("page"))
        page = await lease_one(frontier, ttl=10)
        clock.advance(10.5)
        assert await frontier.reclaim() == (1, 0)
        child = _child(page.id, b"1")
        assert await frontier.offer([child]) == [True]
        await _lease_named(frontier, "page")
        assert await frontier.offer([child]) == [False]

    @driven
    async def test_start_requests_are_stored_once_until_seeding_is_done(self, make: MakeFrontier) -> None:
        """When a crash interrupts seeding, it goes on without storing anything twice."""
        frontier = await opened(make())
        seeds = [_child(SEED, b"a"), _child(SEED, b"b"), _child(SEED, b"a")]
        assert await frontier.offer(seeds[:2]) == [True, True]
        await ack(frontier, *await lease_all(frontier))
        self.crash(frontier)
        frontier = make()
        found = await frontier.open()
        assert (found.resumed, found.seeded) == (True, False)
        assert await frontier.offer(seeds) == [False, False, True]
        await frontier.settle([], seeded=True)
        self.crash(frontier)
        frontier = make()
        found = await frontier.open()
        assert (found.resumed, found.seeded) == (True, True)
        assert await frontier.offer(seeds) == [True, True, True]
        assert await numbers(frontier) == (4, 0, 0, 0)


def _child(parent: int, ordinal: bytes, key: bytes | None = None) -> Entry:
    return entry(b"child " + ordinal, "children", key=key, parent=parent, ordinal=ordinal)


async def _lease_named(frontier: Frontier, name: str) -> Lease:
    """Lease the request with this payload, from a slot of its own."""
    (one,) = await lease(frontier, 1, full=["children"])
    assert one.payload == name.encode()
    return one
