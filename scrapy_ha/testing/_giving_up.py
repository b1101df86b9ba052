"""Contract: requests that are given up, their records, and what becomes of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scrapy_ha.deadletter import DeadLetter
from scrapy_ha.testing._base import (
    ContractBase,
    ack,
    bury,
    driven,
    entries,
    entry,
    expire_all,
    keyed,
    lease,
    lease_all,
    lease_one,
    numbers,
    opened,
    reclaim_all,
    replay,
)
from scrapy_ha.typing import Replay, Settlement

if TYPE_CHECKING:
    from scrapy_ha.testing._base import MakeFrontier
    from scrapy_ha.testing.clock import FakeClock
    from scrapy_ha.typing import Frontier


class GivingUp(ContractBase):
    @driven
    async def test_the_dead_are_listed_in_pages(self, make: MakeFrontier) -> None:
        """By id, each once, with slot, payload and record; over a crash too."""
        frontier = await opened(make())
        await frontier.offer([entry(f"{n}", f"s{n % 3}") for n in range(25)])
        leases = await lease_all(frontier)
        settlements = [
            Settlement(one, dead=b"\0record " + one.payload, payload=one.payload + b"!") for one in leases
        ]
        assert await frontier.settle(settlements) == [True] * 25
        self.crash(frontier)
        frontier = await opened(make())
        found = []
        after = 0
        while page := await frontier.dead(10, after):
            found += page
            after = page[-1].id
        assert [one.id for one in found] == sorted(one.id for one in leases)
        by_id = {one.id: one for one in leases}
        for dead in found:
            one = by_id[dead.id]
            assert (dead.slot, dead.payload, dead.pending) == (one.slot, one.payload + b"!", False)
            assert dead.record == b"\0record " + one.payload
        assert await numbers(frontier) == (0, 0, 0, 25)

    @driven
    async def test_an_empty_record_is_one(self, make: MakeFrontier) -> None:
        """``b""`` is not ``None``: the request is dead, not done."""
        frontier = await opened(make())
        await frontier.offer(entries("x", "y"))
        x, y = await lease(frontier, 2)
        await bury(frontier, x, record=b"")
        assert await frontier.bury(y, b"")
        assert [(one.payload, one.record) for one in await frontier.dead(5)] == [(b"x", b""), (b"y", b"")]

    # While the lease goes on

    @driven
    async def test_a_record_is_written_before_the_end(self, make: MakeFrontier) -> None:
        """It is there at once, and after a crash; the request is still leased, then delivered again."""
        frontier = await opened(make())
        await frontier.offer([entry("x", "s", key=b"k", priority=2)])
        one = await lease_one(frontier)
        assert await frontier.bury(one, b"first")
        assert await frontier.bury(one, b"why")
        assert await numbers(frontier) == (0, 0, 1, 0)
        for crashes in range(2):
            (dead,) = await frontier.dead(5)
            assert (dead.id, dead.slot, dead.payload) == (one.id, "s", b"x")
            assert (dead.record, dead.pending) == (b"why", True)
            assert await replay(frontier, one.id) == await frontier.purge([one.id]) == 0
            if not crashes:
                self.crash(frontier)
                frontier = await opened(make())
                assert await numbers(frontier) == (1, 0, 0, 0)
        assert await frontier.offer(keyed("k")) == [False]
        again = await lease_one(frontier)
        assert (again.id, again.payload, again.priority, again.deliveries) == (one.id, b"x", 2, 2)

    @driven
    async def test_a_record_is_final_with_the_end(self, make: MakeFrontier) -> None:
        """What comes with the settlement takes its place, once."""
        frontier = await opened(make())
        await frontier.offer(entries("x"))
        one = await lease_one(frontier)
        await frontier.bury(one, b"at first")
        await bury(frontier, one, record=b"in the end")
        for _ in range(2):
            (dead,) = await frontier.dead(5)
            assert (dead.record, dead.pending) == (b"in the end", False)
            assert await numbers(frontier) == (0, 0, 0, 1)
            self.crash(frontier)
            frontier = await opened(make())

    @driven
    async def test_success_removes_the_record(self, make: MakeFrontier, clock: FakeClock) -> None:
        """In the delivery that was given up or in a later one, retried and released in between."""
        frontier = await opened(make())
        await frontier.offer(entries("now", "later"))
        now, later = await lease(frontier, 2)
        for one in (now, later):
            assert await frontier.bury(one, b"why")
        await ack(frontier, now)
        await frontier.settle([Settlement(later, retry_at=clock.time() + 1)])
        assert [one.id for one in await frontier.dead(5)] == [later.id]
        clock.advance(1)
        await frontier.settle([Settlement(await lease_one(frontier), release=True)])
        self.crash(frontier)
        frontier = await opened(make())
        assert [(one.id, one.pending) for one in await frontier.dead(5)] == [(later.id, True)]
        await ack(frontier, await lease_one(frontier))
        assert await frontier.dead(5) == []
        self.crash(frontier)
        frontier = await opened(make())
        assert await frontier.dead(5) == []
        assert await numbers(frontier) == (0, 0, 0, 0)

    @driven
    async def test_only_the_holder_may_bury(self, make: MakeFrontier, clock: FakeClock) -> None:
        """A lease that was lost or has ended writes no record."""
        frontier = await opened(make())
        await frontier.offer(entries("lost", "done"))
        lost, done = await lease(frontier, 2, ttl=10)
        await ack(frontier, done)
        clock.advance(10.5)
        assert await reclaim_all(frontier) == (1, 0)
        assert not await frontier.bury(lost, b"why")
        assert not await frontier.bury(done, b"why")
        assert await frontier.dead(5) == []

    @driven
    async def test_poison_takes_the_place_of_a_record(self, make: MakeFrontier, clock: FakeClock) -> None:
        """What was given up and then killed its worker too often is dead for that."""
        frontier = await opened(make(max_deliveries=1))
        await frontier.offer(entries("x"))
        await frontier.bury(await lease_one(frontier), b"why")
        self.crash(frontier)
        frontier = make(max_deliveries=1)
        (poison,) = (await frontier.open()).poison
        assert await frontier.dead(5) == [poison]
        letter = DeadLetter.unpack(poison.record)
        assert (letter.cls, letter.deliveries, letter.time) == ("poison", 1, clock.time())
        assert letter.slot == "slot"
        assert await numbers(frontier) == (0, 0, 0, 1)

    # Replay

    @driven
    async def test_replay(self, make: MakeFrontier) -> None:
        """The request is ready again as it was, with no deliveries counted, and still seen."""
        frontier = await opened(make(max_deliveries=3))
        await frontier.offer([entry("x", "s", key=b"k", priority=9)])
        for _ in range(2):
            await lease_one(frontier)
            self.crash(frontier)
            frontier = await opened(make(max_deliveries=3))
        one = await lease_one(frontier)
        assert one.deliveries == 3
        await frontier.settle([Settlement(one, dead=b"why", payload=b"y")])
        assert await replay(frontier, one.id, one.id, 10**9, 0) == 1
        assert await numbers(frontier) == (1, 0, 0, 0)
        assert await frontier.offer(keyed("k")) == [False]
        self.crash(frontier)
        frontier = await opened(make(max_deliveries=3))
        again = await lease_one(frontier)
        assert (again.id, again.payload, again.slot, again.priority) == (one.id, b"y", "s", 9)
        assert again.deliveries == 1
        assert again.token > one.token

    @driven
    async def test_the_record_goes_when_the_replay_is_done(self, make: MakeFrontier) -> None:
        """Until then it stays, and a second replay changes nothing."""
        frontier = await opened(make())
        one = await self._dead(frontier)
        assert await frontier.replay([Replay(one, payload=b"fresh")]) == 1
        for _ in range(2):
            (dead,) = await frontier.dead(5)
            assert (dead.payload, dead.record, dead.pending) == (b"x", b"record", True)
            assert await frontier.replay([Replay(one, payload=b"again")]) == 0
            assert await frontier.purge([one]) == 0
            assert await numbers(frontier) == (1, 0, 0, 0)
            self.crash(frontier)
            frontier = await opened(make())
        again = await lease_one(frontier)
        assert (again.id, again.payload) == (one, b"fresh")
        assert await replay(frontier, one) == 0
        assert await lease(frontier) == []
        await ack(frontier, again)
        assert await frontier.dead(5) == []
        assert await replay(frontier, one) == 0
        assert await numbers(frontier) == (0, 0, 0, 0)

    @driven
    async def test_a_replay_that_fails(self, make: MakeFrontier) -> None:
        """Its new record takes the place of the old one, and it can be replayed again."""
        frontier = await opened(make())
        one = await self._dead(frontier)
        for turn in (b"1", b"2", b"3"):
            assert await frontier.replay([Replay(one, payload=turn)]) == 1
            await bury(frontier, await lease_one(frontier), record=b"record " + turn)
            (dead,) = await frontier.dead(5)
            assert (dead.payload, dead.record, dead.pending) == (turn, b"record " + turn, False)
            assert await numbers(frontier) == (0, 0, 0, 1)

    @driven
    async def test_replays_may_be_delayed(self, make: MakeFrontier, clock: FakeClock) -> None:
        """Each goes at its time and no sooner, over a crash too (I5)."""
        frontier = await opened(make())
        await frontier.offer(entries(*"abc"))
        leases = await lease(frontier, 3)
        await bury(frontier, *leases)
        start = clock.time()
        replays = [Replay(one.id, start + 2 * n) for n, one in enumerate(leases)]
        assert await frontier.replay(replays) == 3
        assert await frontier.next_due() in (start, start + 2)
        counts = await frontier.counts()
        assert (counts.pending, counts.dead) == (3, 0)
        for n, one in enumerate(leases):
            assert [again.id for again in await lease(frontier, 3)] == [one.id]
            if n == 0:
                self.crash(frontier)
                frontier = await opened(make())
                await ack(frontier, await lease_one(frontier))
            clock.advance(2)

    async def _dead(self, frontier: Frontier) -> int:
        """A request in the dead state; its id."""
        await frontier.offer(keyed("x"))
        one = await lease_one(frontier)
        await bury(frontier, one)
        return one.id

    # Forgetting

    @driven
    async def test_purge(self, make: MakeFrontier) -> None:
        """Only dead requests are forgotten; their keys stay seen."""
        frontier = await opened(make())
        await frontier.offer(keyed("dead", "also", "leased", "ready"))
        dead, also, leased = await lease(frontier, 3)
        await bury(frontier, dead, also)
        assert await frontier.purge([dead.id, dead.id, leased.id, 10**9, 0]) == 1
        assert await frontier.purge([dead.id]) == 0
        assert await replay(frontier, dead.id, leased.id) == 0
        assert [one.id for one in await frontier.dead(5)] == [also.id]
        assert await numbers(frontier) == (1, 0, 1, 1)
        assert await frontier.offer(keyed("dead")) == [False]
        self.crash(frontier)
        assert [one.id for one in await (await opened(make())).dead(5)] == [also.id]

    @driven
    async def test_no_limits(self, make: MakeFrontier, clock: FakeClock) -> None:
        """Without any, the dead are kept for ever."""
        frontier = await opened(make())
        await self._dead(frontier)
        clock.advance(10**9)
        assert await frontier.expire() == 0
        assert await numbers(frontier) == (0, 0, 0, 1)

    @driven
    async def test_limit_by_number(self, make: MakeFrontier, clock: FakeClock) -> None:
        """Those that were given up first go first, in whatever order they had arrived."""
        frontier = await opened(make(dead_limit=3))
        await frontier.offer(entries(*"abcdef"))
        leases = await lease(frontier, 6)
        by_death = [leases[n] for n in (4, 0, 5, 2, 1, 3)]
        for number, one in enumerate(by_death, 1):
            await bury(frontier, one)
            clock.advance(0.5)
            assert await expire_all(frontier) == (number > 3)
            kept = sorted(other.id for other in by_death[max(number - 3, 0) : number])
            assert [dead.id for dead in await frontier.dead(9)] == kept
        assert await numbers(frontier) == (0, 0, 0, 3)
        self.crash(frontier)
        frontier = await opened(make(dead_limit=1))
        assert await expire_all(frontier) == 2
        assert [dead.id for dead in await frontier.dead(9)] == [by_death[-1].id]

    @driven
    async def test_limit_by_age(self, make: MakeFrontier, clock: FakeClock) -> None:
        """From the time when it was given up; what is replayed meanwhile is not forgotten."""
        frontier = await opened(make(dead_seconds=100))
        await frontier.offer(entries(*"abc"))
        first, replayed, second = await lease(frontier, 3)
        await bury(frontier, first, replayed)
        clock.advance(50)
        await bury(frontier, second)
        await replay(frontier, replayed.id)
        clock.advance(49.5)
        assert await frontier.expire() == 0
        clock.advance(0.5)
        assert await expire_all(frontier) == 1
        assert [dead.id for dead in await frontier.dead(9)] == [replayed.id, second.id]
        self.crash(frontier)
        frontier = await opened(make(dead_seconds=100))
        again = await lease_one(frontier)
        await bury(frontier, again)
        clock.advance(50)
        assert await expire_all(frontier) == 1
        assert [dead.id for dead in await frontier.dead(9)] == [replayed.id]

    @driven
    async def test_many_beyond_the_limit(self, make: MakeFrontier) -> None:
        """In calls of bounded work, however many there are."""
        frontier = await opened(make(dead_limit=10))
        await frontier.offer([entry(f"{n}") for n in range(3000)])
        leases = await lease_all(frontier)
        await bury(frontier, *leases)
        assert await frontier.expire() <= 2990
        await expire_all(frontier)
        assert await numbers(frontier) == (0, 0, 0, 10)
        assert [dead.id for dead in await frontier.dead(99)] == sorted(one.id for one in leases)[-10:]
