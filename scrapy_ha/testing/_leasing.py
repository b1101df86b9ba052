"""Contract: which request comes next, and whose it is meanwhile."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from scrapy_ha.testing._base import (
    ContractBase,
    ack,
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
    reclaim_all,
    replay,
)
from scrapy_ha.typing import Settlement

if TYPE_CHECKING:
    from scrapy_ha.testing._base import MakeFrontier
    from scrapy_ha.testing.clock import FakeClock

ORDERS = pytest.mark.parametrize("order", ["fifo", "lifo"])


class Leasing(ContractBase):
    @driven
    async def test_up_to_limit(self, make: MakeFrontier) -> None:
        """No more than asked for, and none twice."""
        frontier = await opened(make())
        await frontier.offer(entries("a", "b", "c", "d", "e"))
        first = await lease(frontier, 3)
        assert len(first) == 3
        assert await numbers(frontier) == (2, 0, 3, 0)
        second = await lease(frontier, 10)
        assert sorted(names(first) + names(second)) == ["a", "b", "c", "d", "e"]
        assert await lease(frontier, 10) == []

    @ORDERS
    def test_order_within_a_slot(self, order: str, make: MakeFrontier) -> None:
        """Higher priority first; among equals the first or the last to come, also over a crash."""
        self.drive(self._order(order, make))

    async def _order(self, order: str, make: MakeFrontier) -> None:
        frontier = await opened(make(order=order))
        priorities = [0, 5, -5, 0, 5, 1, -1, 0]
        batch = [entry(str(n), priority=priority) for n, priority in enumerate(priorities)]
        await frontier.offer(batch[:3])
        await frontier.offer(batch[3:])
        sign = 1 if order == "fifo" else -1
        expected = sorted(range(8), key=lambda n: (-priorities[n], sign * n))
        head = [await lease_one(frontier) for _ in range(3)]
        assert names(head) == [str(n) for n in expected[:3]]
        assert [one.priority for one in head] == [priorities[n] for n in expected[:3]]
        self.crash(frontier)
        frontier = await opened(make(order=order))
        assert names(await lease(frontier, 100)) == [str(n) for n in expected]

    @ORDERS
    def test_what_comes_back_keeps_its_place(self, order: str, make: MakeFrontier, clock: FakeClock) -> None:
        """Released, retried, reclaimed or replayed: it stands where its arrival put it."""
        self.drive(self._place(order, make, clock))

    async def _place(self, order: str, make: MakeFrontier, clock: FakeClock) -> None:
        frontier = await opened(make(order=order))
        await frontier.offer(entries(*"abcdefgh"))
        expected = list("abcdefgh") if order == "fifo" else list("hgfedcba")
        first = await lease(frontier, 6, ttl=10)
        await frontier.settle(
            [
                Settlement(first[4], release=True),
                Settlement(first[0], retry_at=clock.time()),
                Settlement(first[2], dead=b"x"),
            ]
        )
        await replay(frontier, first[2].id)
        clock.advance(10.5)
        assert await reclaim_all(frontier) == (3, 0)
        assert names(await lease(frontier, 100)) == expected

    @ORDERS
    def test_what_comes_later_does_not_break_the_order(self, order: str, make: MakeFrontier) -> None:
        """Long queues, of which a store may read only the head, take new requests anywhere."""
        self.drive(self._long_queue(order, make))

    async def _long_queue(self, order: str, make: MakeFrontier) -> None:
        frontier = await opened(make(order=order))
        arrived: list[tuple[int, int]] = []
        taken: list[tuple[int, int]] = []
        sign = 1 if order == "fifo" else -1
        for n in range(1200):
            arrived.append((n * 7919 % 13 - 6, n))
            await frontier.offer([entry(str(n), priority=arrived[-1][0])])
            if n % 3 == 2 and n > 400:
                arrived.sort(key=lambda one: (one[0], -sign * one[1]))
                taken.append(arrived.pop())
                one = await lease_one(frontier)
                assert names([one]) == [str(taken[-1][1])]
                if n % 2:
                    await frontier.settle([Settlement(one, release=True)])
                    arrived.append(taken.pop())
        arrived.sort(key=lambda one: (-one[0], sign * one[1]))
        assert names(await lease_all(frontier)) == [str(n) for _, n in arrived]

    @driven
    async def test_priorities_of_any_size(self, make: MakeFrontier) -> None:
        """Exact within 32 bits; beyond them at least on the right side of those."""
        frontier = await opened(make())
        exact = [2**31, 2**31 - 1, 1, 0, -1, 1 - 2**31, -(2**31)]
        await frontier.offer([entry(str(priority), priority=priority) for priority in exact])
        leases = await lease(frontier, 10)
        assert names(leases) == [str(priority) for priority in exact]
        assert [one.priority for one in leases] == exact
        await ack(frontier, *leases)
        huge = [-(2**100), 0, 2**100, -(2**40), 2**40]
        await frontier.offer([entry(str(priority), priority=priority) for priority in huge])
        order = [int(name) for name in names(await lease_all(frontier))]
        assert [(priority > 0) - (priority < 0) for priority in order] == [1, 1, 0, -1, -1]

    @driven
    async def test_the_least_busy_slot_first(self, make: MakeFrontier) -> None:
        """By what the caller says is in flight, plus what the call itself takes."""
        frontier = await opened(make())
        await frontier.offer([entry(f"{slot}{n}", slot) for n in range(9) for slot in "xyz"])
        first, *_ = await lease(frontier, 3, {"x": 1, "y": 1})
        assert first.slot == "z"
        await frontier.close()
        frontier = await opened(make())
        taken = Counter(one.slot for one in await lease(frontier, 9, {"x": 4, "y": 2}))
        assert taken == {"x": 1, "y": 3, "z": 5}

    @driven
    async def test_a_busy_slot_is_served_when_it_is_alone(self, make: MakeFrontier) -> None:
        """Only *full* keeps a slot out, however high its number; names without requests do no harm."""
        frontier = await opened(make())
        await frontier.offer(entries("a", "b", slot="x"))
        assert names(await lease(frontier, 1, {"x": 10**9, "other": 0})) == ["a"]
        assert await lease(frontier, 1, {}, {"x", "other"}) == []
        assert names(await lease(frontier, 1, {"x": 3}, {"other"})) == ["b"]

    @driven
    async def test_priority_does_not_reach_beyond_the_slot(self, make: MakeFrontier) -> None:
        """A host with important requests does not stop the others."""
        frontier = await opened(make())
        await frontier.offer([entry(f"x{n}", "x", priority=100) for n in range(5)] + entries("y0", slot="y"))
        assert sorted(names(await lease(frontier, 2))) == ["x0", "y0"]

    @driven
    async def test_equal_slots_take_turns(self, make: MakeFrontier) -> None:
        """Calls of one each go round all slots; so does a longer one."""
        frontier = await opened(make())
        slots = [f"host {n}" for n in range(20)]
        await frontier.offer([entry(f"{n}", slot) for slot in slots for n in range(6)])
        for _ in range(3):
            turn = [await lease_one(frontier) for _ in slots]
            assert sorted(one.slot for one in turn) == sorted(slots)
        for _ in range(3):
            turn = await lease(frontier, len(slots))
            assert sorted(one.slot for one in turn) == sorted(slots)
        assert await lease(frontier, 1) == []

    @driven
    async def test_many_slots_share(self, make: MakeFrontier) -> None:
        """One slot with thousands of requests takes no more than its share of a call."""
        frontier = await opened(make())
        await frontier.offer([entry(f"big {n}", "big") for n in range(2000)])
        await frontier.offer([entry(f"{n}", f"small {n}") for n in range(300)])
        taken = Counter(one.slot for one in await lease(frontier, 301))
        assert len(taken) == 301
        assert len(await lease_all(frontier)) == 1999

    @driven
    async def test_a_free_slot_is_found_among_many_full_ones(
        self, make: MakeFrontier, clock: FakeClock
    ) -> None:
        """A call comes back empty only if nothing is due in the other slots: also after a restart,
        and also when what is due comes from *delayed*."""
        frontier = await opened(make())
        slots = [f"{n:04}" for n in range(700)]
        await frontier.offer([entry(slot, slot) for slot in slots])
        await frontier.offer([entry("due", slot, due=clock.time() + 1 + n) for n, slot in enumerate(slots)])
        self.crash(frontier)
        frontier = await opened(make())
        for wanted in ("0699", "0000", "0350"):
            found = await lease(frontier, 1, full=[slot for slot in slots if slot != wanted])
            assert names(found) == [wanted]
            await ack(frontier, *found)
        clock.advance(1000)
        for wanted in ("0699", "0350"):
            found = await lease(frontier, 1, full=[slot for slot in slots if slot != wanted])
            assert [(one.slot, one.payload) for one in found] == [(wanted, b"due")]

    # Deliveries

    @driven
    async def test_ids_stay_and_tokens_grow(self, make: MakeFrontier, clock: FakeClock) -> None:
        """The id names the request over all deliveries; each has a higher token than the last."""
        frontier = await opened(make(max_deliveries=100))
        await frontier.offer(entries("x"))
        seen = []
        for way in ("release", "retry", "reclaim", "close", "crash", "end"):
            one = await lease_one(frontier, ttl=10)
            seen.append(one)
            if way == "release":
                await frontier.settle([Settlement(one, release=True)])
            elif way == "retry":
                await frontier.settle([Settlement(one, retry_at=clock.time())])
            elif way == "reclaim":
                clock.advance(10.5)
                await frontier.reclaim()
            elif way == "close":
                await frontier.close()
                frontier = await opened(make(max_deliveries=100))
            elif way == "crash":
                self.crash(frontier)
                frontier = await opened(make(max_deliveries=100))
        assert len({one.id for one in seen}) == 1
        tokens = [one.token for one in seen]
        assert tokens == sorted(set(tokens))
        # Only what did not end in order is counted, and a retry counts afresh.
        assert [one.deliveries for one in seen] == [1, 1, 1, 2, 2, 3]

    @driven
    async def test_ids_grow_in_order_of_arrival(self, make: MakeFrontier) -> None:
        """Over restarts as well: an id is never given twice."""
        frontier = await opened(make())
        await frontier.offer(entries("a", "b"))
        await ack(frontier, *(first := await lease(frontier, 2)))
        self.crash(frontier)
        frontier = await opened(make())
        await frontier.offer(entries("c", "d"))
        ids = [one.id for one in [*first, *await lease(frontier, 2)]]
        assert ids == sorted(set(ids))

    @driven
    async def test_a_lease_lasts_its_time(self, make: MakeFrontier, clock: FakeClock) -> None:
        """Before that nobody else gets it; after it the request is ready again, its delivery counted."""
        frontier = await opened(make())
        await frontier.offer(entries("x"))
        await lease_one(frontier, ttl=10)
        clock.advance(9.5)
        assert await frontier.reclaim() == (0, 0)
        assert await lease(frontier) == []
        clock.advance(1)
        assert await frontier.reclaim() == (1, 0)
        assert await numbers(frontier) == (1, 0, 0, 0)
        again = await lease_one(frontier, ttl=10)
        assert again.deliveries == 2
        assert await ack(frontier, again) == [True]

    @driven
    async def test_a_lease_without_end(self, make: MakeFrontier, clock: FakeClock) -> None:
        """With an infinite time only the end of its worker takes it away."""
        frontier = await opened(make())
        await frontier.offer(entries("x"))
        one = await lease_one(frontier)
        clock.advance(1e9)
        assert await frontier.reclaim() == (0, 0)
        assert await ack(frontier, one) == [True]

    @driven
    async def test_renewal(self, make: MakeFrontier, clock: FakeClock) -> None:
        """It counts from now, and tells which leases are no longer held."""
        frontier = await opened(make())
        await frontier.offer(entries("kept", "lost", "done"))
        kept, lost, done = await lease(frontier, 3, ttl=10)
        await ack(frontier, done)
        clock.advance(8)
        assert await frontier.renew([kept, done], 10) == [True, False]
        clock.advance(4)
        assert await frontier.reclaim() == (1, 0)
        assert await frontier.renew([lost, kept], 10) == [False, True]
        clock.advance(9.5)
        assert await frontier.reclaim() == (0, 0)
        assert await frontier.renew([kept], 1) == [True]
        clock.advance(1.5)
        assert await frontier.reclaim() == (1, 0)
        assert await frontier.renew([kept], 10) == [False]
        assert names(await lease_all(frontier)) == ["kept", "lost"]

    @driven
    async def test_an_expired_lease_counts_until_it_is_taken_away(
        self, make: MakeFrontier, clock: FakeClock
    ) -> None:
        """A worker that was merely slow loses nothing: its renewal and its settlement are in time."""
        frontier = await opened(make())
        await frontier.offer(entries("x", "y"))
        one, two = await lease(frontier, 2, ttl=10)
        clock.advance(100)
        assert await frontier.renew([one], 10) == [True]
        assert await ack(frontier, two) == [True]
        assert await frontier.reclaim() == (0, 0)

    @driven
    async def test_many_expire_at_once(self, make: MakeFrontier, clock: FakeClock) -> None:
        """Each call reclaims some until none is left."""
        frontier = await opened(make())
        await frontier.offer([entry(str(n)) for n in range(500)])
        await lease_all(frontier, ttl=10)
        clock.advance(10.5)
        assert await reclaim_all(frontier) == (500, 0)
        assert await numbers(frontier) == (500, 0, 0, 0)
        assert names(await lease_all(frontier)) == [str(n) for n in range(500)]

    @driven
    async def test_fencing(self, make: MakeFrontier, clock: FakeClock) -> None:
        """A lease that was taken away is refused in every way, whoever holds the request now (I4)."""
        frontier = await opened(make())
        await frontier.offer(keyed("x"))
        stale = await lease_one(frontier, ttl=10)
        clock.advance(10.5)
        await frontier.reclaim()
        for settlement in (
            Settlement(stale),
            Settlement(stale, retry_at=clock.time() + 5),
            Settlement(stale, dead=b"dead"),
            Settlement(stale, release=True),
        ):
            assert await frontier.settle([settlement]) == [False]
            assert await numbers(frontier) == (1, 0, 0, 0)
        current = await lease_one(frontier, ttl=10)
        assert await frontier.settle([Settlement(stale, payload=b"no", release=True)]) == [False]
        assert await frontier.renew([stale], 1000) == [False]
        assert await frontier.settle([Settlement(stale), Settlement(current)]) == [False, True]
        assert await ack(frontier, current) == [False]
        assert await numbers(frontier) == (0, 0, 0, 0)

    @driven
    async def test_poison_by_expiry(self, make: MakeFrontier, clock: FakeClock) -> None:
        """A request in flight at its last allowed delivery is dead when its lease is taken away."""
        frontier = await opened(make(max_deliveries=3))
        await frontier.offer([entry("bad", key=b"k", priority=2)])
        for delivery in (1, 2, 3):
            one = await lease_one(frontier, ttl=10)
            assert one.deliveries == delivery
            clock.advance(10.5)
            assert await frontier.reclaim() == ((1, 0) if delivery < 3 else (0, 1))
        assert await lease(frontier) == []
        assert await numbers(frontier) == (0, 0, 0, 1)
        (dead,) = await frontier.dead(10)
        assert (dead.id, dead.slot, dead.payload) == (one.id, "slot", b"bad")
        record = json.loads(dead.record)
        assert record["class"] == "poison"
        assert record["deliveries"] == 3
        assert record["time"] == clock.time()
        assert record["reason"]
        assert await ack(frontier, one) == [False]
        assert await frontier.offer(keyed("k")) == [False]

    @driven
    async def test_only_what_ends_badly_leads_to_poison(self, make: MakeFrontier, clock: FakeClock) -> None:
        """Any number of retries and releases is no poison."""
        frontier = await opened(make(max_deliveries=2))
        await frontier.offer(entries("x"))
        for _ in range(5):
            one = await lease_one(frontier)
            await frontier.settle([Settlement(one, release=True)])
        for _ in range(5):
            one = await lease_one(frontier)
            assert one.deliveries == 1
            await frontier.settle([Settlement(one, retry_at=clock.time())])
        for _ in range(5):
            await lease_one(frontier)
            await frontier.close()
            frontier = await opened(make(max_deliveries=2))
        await lease_one(frontier, ttl=10)
        clock.advance(10.5)
        assert await frontier.reclaim() == (1, 0)
        assert (await lease_one(frontier)).deliveries == 2
