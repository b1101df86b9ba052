"""Contract: crashes, closing, the end of a crawl, and several workers."""

from __future__ import annotations

import asyncio
import json
import math
from typing import TYPE_CHECKING

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
from scrapy_ha.typing import SEED, SUSPECT_PATIENCE, UNEXPOSED_FACTOR, Settlement

if TYPE_CHECKING:
    from scrapy_ha.testing._base import MakeFrontier
    from scrapy_ha.testing.clock import FakeClock


class Recovering(ContractBase):
    @driven
    async def test_a_crash_loses_and_doubles_nothing(self, make: MakeFrontier, clock: FakeClock) -> None:
        """Each request is in the state it was in, and in no other; in flight becomes ready (I1, I2)."""
        frontier = await opened(make())
        await frontier.offer(keyed("done", "dead", "retried", "released", "flying", "ready"))
        await frontier.offer(keyed("delayed", due=clock.time() + 10))
        done, dead, retried, released, flying = await lease(frontier, 5)
        await ack(frontier, done)
        await bury(frontier, dead)
        await frontier.settle([Settlement(retried, retry_at=clock.time() + 20)])
        await frontier.settle([Settlement(released, release=True)])
        for crashes in range(3):
            self.crash(frontier)
            frontier = make()
            found = await frontier.open()
            assert found.resumed
            assert (found.reclaimed, found.poisoned) == (0 if crashes else 1, 0)
            assert await numbers(frontier) == (3, 2, 0, 1)
        everything = keyed("done", "dead", "retried", "released", "flying", "ready", "delayed")
        assert await frontier.offer(everything) == [False] * 7
        assert await ack(frontier, flying) == [False]
        ready = await lease(frontier, 10)
        assert [(one.payload, one.deliveries) for one in ready] == [
            (b"released", 1),
            (b"flying", 2),
            (b"ready", 1),
        ]
        clock.advance(20)
        assert names(await lease(frontier, 10)) == ["retried", "delayed"]

    @driven
    async def test_seen_and_stored_together_over_crashes(self, make: MakeFrontier) -> None:
        """After a crash at any point a key is seen exactly if its request is stored or done (I2)."""
        frontier = await opened(make())
        leased: list[str] = []
        for n in range(30):
            batch = keyed(f"{n}", f"{n} too", slot=f"{n % 4}")
            if n % 3:
                await frontier.offer(batch)
            else:
                found = await lease(frontier, 2)
                leased += names(found)
                await frontier.settle([Settlement(one) for one in found], children=batch)
            self.crash(frontier)
            frontier = await opened(make())
            assert await frontier.offer(batch) == [False, False]
        leased += names(await lease_all(frontier))
        assert sorted(leased) == sorted(name for n in range(30) for name in (f"{n}", f"{n} too"))

    @driven
    async def test_open_takes_back_what_was_in_flight(self, make: MakeFrontier) -> None:
        """At once, however long the leases would have lasted, and reports how many."""
        frontier = await opened(make())
        await frontier.offer([entry(str(n)) for n in range(300)])
        flying = await lease_all(frontier)
        await ack(frontier, *flying[::3])
        self.crash(frontier)
        frontier = make()
        assert (await frontier.open()).reclaimed == 200
        assert await numbers(frontier) == (200, 0, 0, 0)
        again = await lease_all(frontier)
        assert [one.payload for one in again] == [one.payload for n, one in enumerate(flying) if n % 3]
        assert {one.deliveries for one in again} == {2}

    @driven
    async def test_an_unexposed_delivery_is_not_counted(self, make: MakeFrontier) -> None:
        """A worker that ends while a request is on its way was not killed by it; only very many such
        ends are poison."""
        frontier = await opened(make(max_deliveries=2))
        await frontier.offer(entries("slow"))
        for ends in range(2 * UNEXPOSED_FACTOR):
            (one,) = await frontier.lease(1, {}, (), math.inf, exposed=False)
            assert one.deliveries == 1, ends
            self.crash(frontier)
            frontier = make(max_deliveries=2)
            found = await frontier.open()
        assert (found.reclaimed, found.poisoned) == (0, 1)
        assert [dead.payload for dead in found.poison] == [b"slow"]
        assert await numbers(frontier) == (0, 0, 0, 1)

    @driven
    async def test_exposure_comes_and_goes(self, make: MakeFrontier) -> None:
        """Only what is being worked on when the worker ends is counted."""
        frontier = await opened(make(max_deliveries=2))
        await frontier.offer(entries("worked on", "waits"))
        for deaths in range(2):
            for one in await frontier.lease(2, {}, (), math.inf, exposed=False):
                assert await frontier.expose([one], True) == [True]
                if one.payload == b"waits":
                    assert await frontier.expose([one], False) == [True]
            self.crash(frontier)
            frontier = make(max_deliveries=2)
            found = await frontier.open()
            assert (found.reclaimed, found.poisoned) == ((1, 1) if deaths else (2, 0))
        assert await frontier.expose([one], True) == [False]
        assert names(await lease(frontier, 2)) == ["waits"]

    @driven
    async def test_suspects_are_delivered_alone(self, make: MakeFrontier) -> None:
        """What was in flight at two deaths comes one at a time, so that the one that kills is found;
        what was not under suspicion comes beside it."""
        frontier = await opened(make())
        await frontier.offer(entries("one", "two", "three"))
        for _ in range(2):
            assert len(await lease(frontier, 3)) == 3
            self.crash(frontier)
            frontier = await opened(make())
        await frontier.offer([entry("fresh", "another slot")])
        assert sorted(names(await lease(frontier, 9))) == ["fresh", "one"]
        assert await lease(frontier, 9) == []
        assert await numbers(frontier) == (2, 0, 2, 0)
        self.crash(frontier)
        frontier = await opened(make())
        suspects = []
        while found := [one for one in await lease(frontier, 9) if one.payload != b"fresh"]:
            suspects += found
            await ack(frontier, *found)
        assert [(one.payload, one.deliveries) for one in suspects] == [
            (b"one", 4),
            (b"two", 3),
            (b"three", 3),
        ]

    @driven
    async def test_a_suspect_does_not_hold_the_others_back_for_ever(
        self, make: MakeFrontier, clock: FakeClock
    ) -> None:
        """It may be waiting for one of them."""
        frontier = await opened(make())
        await frontier.offer(entries("one", "two", "three"))
        for _ in range(2):
            assert len(await lease(frontier, 3)) == 3
            self.crash(frontier)
            frontier = await opened(make())
        (first,) = await lease(frontier, 9)
        clock.advance(SUSPECT_PATIENCE - 1)
        assert await lease(frontier, 9) == []
        clock.advance(1)
        assert names(await lease(frontier, 9)) == ["two"]
        await ack(frontier, first)
        assert await lease(frontier, 9) == []
        clock.advance(SUSPECT_PATIENCE)
        assert names(await lease(frontier, 9)) == ["three"]

    @driven
    async def test_suspects_of_all_workers_are_delivered_alone(self, make: MakeFrontier) -> None:
        """While one worker has a suspect, no other worker gets one."""
        self.need_workers()
        first = await opened(make("a"))
        await first.offer(entries("one", "two"))
        for _ in range(2):
            assert len(await lease(first, 2)) == 2
            self.crash(first)
            first = await opened(make("a"))
        second = await opened(make("b"))
        (one,) = await lease(first, 2)
        assert await lease(second, 2) == []
        await ack(first, one)
        assert len(await lease(second, 2)) == 1

    @driven
    async def test_poison_by_crashes(self, make: MakeFrontier, clock: FakeClock) -> None:
        """A page that kills its worker is dead after so many times; what flew along with it once is not."""
        frontier = await opened(make(max_deliveries=3))
        await frontier.offer(entries("killer", "neighbour"))
        for crash in (1, 2, 3):
            killer = await lease_one(frontier)
            if crash == 2:
                await lease_one(frontier)
            self.crash(frontier)
            frontier = make(max_deliveries=3)
            found = await frontier.open()
            assert (found.reclaimed, found.poisoned) == {1: (1, 0), 2: (2, 0), 3: (0, 1)}[crash]
        assert await numbers(frontier) == (1, 0, 0, 1)
        (dead,) = await frontier.dead(5)
        assert (dead.id, dead.payload) == (killer.id, b"killer")
        record = json.loads(dead.record)
        assert (record["class"], record["deliveries"], record["time"]) == ("poison", 3, clock.time())
        assert [(one.payload, one.deliveries) for one in await lease_all(frontier)] == [(b"neighbour", 2)]
        assert await replay(frontier, killer.id) == 1
        assert (await lease_one(frontier)).deliveries == 1

    @driven
    async def test_close_releases_what_is_held(self, make: MakeFrontier, clock: FakeClock) -> None:
        """Uncounted, so that any number of restarts in order is no poison."""
        frontier = await opened(make(max_deliveries=1))
        await frontier.offer(entries("a", "b"))
        await lease(frontier, 1)
        await lease(frontier, 1, ttl=1)
        clock.advance(5)
        await frontier.close()
        frontier = make(max_deliveries=1)
        found = await frontier.open()
        assert found.resumed
        assert (found.reclaimed, found.poisoned) == (0, 0)
        assert [(one.payload, one.deliveries) for one in await lease_all(frontier)] == [(b"a", 1), (b"b", 1)]

    @driven
    async def test_close_may_be_called_again(self, make: MakeFrontier) -> None:
        """And without opening first; the second call changes nothing."""
        await make().close()
        frontier = await opened(make())
        await frontier.offer(entries("x"))
        await lease_one(frontier)
        await frontier.close()
        await frontier.close()
        again = await opened(make())
        await frontier.close()
        assert await numbers(again) == (1, 0, 0, 0)

    @driven
    async def test_housekeeping_changes_nothing(self, make: MakeFrontier, clock: FakeClock) -> None:
        """``sync`` and ``maintain`` may be called at any time."""
        frontier = await opened(make())
        await frontier.offer([*keyed(*"abcd"), entry("later", due=clock.time() + 10)])
        one, two, _ = await lease(frontier, 3)
        await frontier.offer([entry("child", parent=one.id, ordinal=b"1")])
        await bury(frontier, two)
        for _ in range(3):
            await frontier.sync()
            await frontier.maintain()
            assert await numbers(frontier) == (2, 1, 2, 1)
        assert await frontier.offer(keyed(*"abcd")) == [False] * 4
        self.crash(frontier)
        frontier = await opened(make())
        await frontier.maintain()
        await frontier.sync()
        assert await numbers(frontier) == (4, 1, 0, 1)
        assert names(await lease(frontier, 10)) == ["a", "c", "d", "child"]
        assert await frontier.offer([entry("child", parent=one.id, ordinal=b"1")]) == [False]

    # The end of a crawl

    @driven
    async def test_a_finished_crawl_starts_afresh(self, make: MakeFrontier) -> None:
        """Keys, seeding and marks of the last crawl are gone, its dead stay and can be replayed."""
        frontier = await opened(make())
        await frontier.offer(keyed("x", "dead"))
        await frontier.settle([], seeded=True)
        done, dead = await lease(frontier, 2)
        await bury(frontier, dead)
        await frontier.settle([Settlement(done)], seen=[b"y"], marks={"m": b"1"})
        await frontier.finish()
        await frontier.close()
        frontier = make()
        found = await frontier.open()
        assert (found.resumed, found.seeded, found.marks) == (False, False, {})
        for key in (b"x", b"y", b"dead"):
            assert frontier.knows(key) in (False, None)
        assert [one.id for one in await frontier.dead(5)] == [dead.id]
        await frontier.maintain()
        assert await frontier.offer(keyed("x", "y", "dead")) == [True] * 3
        leases = await lease_all(frontier)
        assert min(one.id for one in leases) > dead.id
        assert await replay(frontier, dead.id) == 1
        assert (await lease_one(frontier)).id == dead.id

    @driven
    async def test_keys_are_kept_for_the_next_crawl(self, make: MakeFrontier) -> None:
        """Where the store is told so; all else of a complete crawl is gone as ever."""
        frontier = await opened(make(keep_seen=True))
        await frontier.offer(keyed("1"))
        await frontier.settle([Settlement(await lease_one(frontier))], seeded=True, marks={"m": b"1"})
        await frontier.finish()
        await frontier.close()
        again = make(keep_seen=True)
        found = await again.open()
        assert (found.resumed, found.seeded, found.marks) == (False, False, {})
        assert await again.offer(keyed("1", "2")) == [False, True]

    @driven
    async def test_keys_expire(self, make: MakeFrontier, clock: FakeClock) -> None:
        """D10: a key is new again when its time is over, and seen again when it was stored anew."""
        frontier = await opened(make(seen_seconds=10))
        assert await frontier.offer(keyed("1")) == [True]
        clock.advance(9)
        assert await frontier.offer(keyed("1")) == [False]
        assert frontier.knows(b"1") in {True, None}
        clock.advance(2)
        assert frontier.knows(b"1") in {False, None}
        assert await frontier.offer(keyed("1", "1")) == [True, False]

    @driven
    async def test_keys_are_forgotten(self, make: MakeFrontier) -> None:
        """Those named, and no others; also when the crawl goes on after a crash."""
        frontier = await opened(make())
        await frontier.offer(keyed("1", "2"))
        assert await frontier.forget([b"1", b"3"]) == 1
        self.crash(frontier)
        again = await opened(make())
        assert await again.offer(keyed("1", "2")) == [True, False]

    @driven
    async def test_a_crash_after_finish(self, make: MakeFrontier) -> None:
        """Finishing is as durable as the rest."""
        frontier = await opened(make())
        await frontier.offer(keyed("x"))
        await ack(frontier, *await lease_all(frontier))
        await frontier.finish()
        self.crash(frontier)
        frontier = make()
        assert not (await frontier.open()).resumed
        assert await frontier.offer(keyed("x")) == [True]

    @driven
    async def test_a_fresh_crawl_can_be_interrupted(self, make: MakeFrontier) -> None:
        """Only ``finish`` starts afresh: what was begun after it is resumed, an empty start is not."""
        frontier = await opened(make())
        await frontier.offer(keyed("x"))
        await ack(frontier, *await lease_all(frontier))
        await frontier.finish()
        await frontier.close()
        for _ in range(2):
            frontier = make()
            assert not (await frontier.open()).resumed
            self.crash(frontier)
        frontier = await opened(make())
        await frontier.offer(keyed("x"))
        self.crash(frontier)
        frontier = make()
        assert (await frontier.open()).resumed
        assert await frontier.offer(keyed("x")) == [False]

    @driven
    async def test_an_unfinished_crawl_is_resumed_though_nothing_waits(self, make: MakeFrontier) -> None:
        """What is done stays done, until someone says that the crawl is complete."""
        for offered in (keyed("x"), entries("x"), entries("x", parent=SEED)):
            frontier = await opened(make(fresh=True))
            await frontier.offer(offered)
            await ack(frontier, await lease_one(frontier))
            self.crash(frontier)
            frontier = make()
            assert (await frontier.open()).resumed, offered
            await frontier.close()
            frontier = make()
            assert (await frontier.open()).resumed, offered
            await frontier.close()

    @driven
    async def test_seeding_over_crashes(self, make: MakeFrontier) -> None:
        """That seeding is complete is remembered, even if nothing came of it."""
        frontier = await opened(make())
        await frontier.settle([], seeded=True)
        self.crash(frontier)
        found = await make().open()
        assert (found.resumed, found.seeded) == (True, True)

    @driven
    async def test_what_is_pending_after_finish_is_not_lost(self, make: MakeFrontier) -> None:
        """A crawl with requests, replayed or late, is not complete: the next open resumes it (I1, I6)."""
        for late in ("ready", "flying", "delayed", "replayed"):
            frontier = await opened(make(fresh=True))
            await frontier.offer(keyed("done", "dead"))
            done, dead = await lease(frontier, 2)
            await bury(frontier, dead)
            await ack(frontier, done)
            if late == "replayed":
                await frontier.finish()
                await replay(frontier, dead.id)
            else:
                await frontier.offer([entry("late", key=b"late", due=1e11 if late == "delayed" else 0)])
                if late == "flying":
                    await lease_one(frontier)
                await frontier.finish()
            self.crash(frontier)
            frontier = make()
            assert (await frontier.open()).resumed, late
            assert (await frontier.counts()).pending == 1
            assert await frontier.offer(keyed("done")) == [False], late
            await frontier.close()

    # Several workers

    @driven
    async def test_two_workers_never_hold_the_same(self, make: MakeFrontier) -> None:
        """Their calls may interleave in any way: each request goes to one of them (I4)."""
        self.need_workers()
        a, b = await opened(make("a")), await opened(make("b"))
        await a.offer([entry(str(n), f"s{n % 5}") for n in range(200)])
        taken = await asyncio.gather(*(lease(worker, 7) for _ in range(15) for worker in (a, b)))
        leases = [one for batch in taken for one in batch]
        assert len({one.id for one in leases}) == len(leases) == 200
        assert len({one.token for one in leases}) == 200
        assert await numbers(a) == await numbers(b) == (0, 0, 200, 0)

    @driven
    async def test_two_workers_offer_the_same(self, make: MakeFrontier) -> None:
        """One of them is told that it is new; neither ``knows`` what is not so."""
        self.need_workers()
        a, b = await opened(make("a")), await opened(make("b"))
        batch = keyed(*"abcdefghij")
        first, second = await asyncio.gather(a.offer(batch), b.offer(list(reversed(batch))))
        assert [x != y for x, y in zip(first, reversed(second), strict=True)] == [True] * 10
        for one in batch:
            assert one.key is not None
            assert a.knows(one.key) in (True, None)
            assert b.knows(one.key) in (True, None)
        await a.settle([], seen=[b"z"])
        assert b.knows(b"z") in (True, None)
        assert len(await lease_all(b)) == 10

    @driven
    async def test_a_dead_workers_leases_go_to_the_others(self, make: MakeFrontier, clock: FakeClock) -> None:
        """When they expire; opening takes back only what the worker of that name held."""
        self.need_workers()
        a, b = await opened(make("a")), await opened(make("b"))
        await a.offer(entries("x", "y", "z"))
        stale = await lease(a, 1, ttl=10)
        (other,) = await lease(b, 1, ttl=100)
        self.crash(a)
        assert await lease(b, 5, full=["slot"]) == []
        clock.advance(10.5)
        assert await b.reclaim() == (1, 0)
        again = await lease_one(b, ttl=100)
        assert (again.payload, again.deliveries) == (stale[0].payload, 2)
        a = make("a")
        assert (await a.open()).reclaimed == 0
        assert await ack(a, *stale) == [False]
        assert await ack(b, other, again) == [True, True]
        assert names(await lease_all(a)) == ["z"]

    @driven
    async def test_a_zombie_changes_nothing(self, make: MakeFrontier, clock: FakeClock) -> None:
        """A worker that stood still and comes back is refused; its children are stored once."""
        self.need_workers()
        a, b = await opened(make("a")), await opened(make("b"))
        await a.offer(entries("page"))
        old = await lease_one(a, ttl=10)
        clock.advance(10.5)
        assert await b.reclaim() == (1, 0)
        new = await lease_one(b, ttl=100)
        child = entry("child", "children", parent=old.id, ordinal=b"1")
        assert await b.offer([child]) == [True]
        assert await a.settle([Settlement(old, retry_at=clock.time() + 5)], children=[child]) == [False]
        assert await a.renew([old], 100) == [False]
        await a.close()
        assert await numbers(b) == (1, 0, 1, 0)
        assert await ack(b, new) == [True]
        assert names(await lease_all(b)) == ["child"]

    @driven
    async def test_an_old_incarnation_takes_nothing_from_the_new(self, make: MakeFrontier) -> None:
        """Two processes under one name: the later one owns what the earlier one held."""
        self.need_workers()
        old = await opened(make("a"))
        await old.offer(entries("x", "y"))
        stale, _ = await lease(old, 2)
        new = make("a")
        assert (await new.open()).reclaimed == 2
        leases = await lease(new, 5)
        assert names(leases) == ["x", "y"]
        assert await ack(old, stale) == [False]
        await old.close()
        assert await numbers(new) == (0, 0, 2, 0)
        assert await ack(new, *leases) == [True, True]

    @driven
    async def test_marks_belong_to_a_worker(self, make: MakeFrontier) -> None:
        """They are positions in its own files."""
        self.need_workers()
        a, b = await opened(make("a")), await opened(make("b"))
        await a.settle([], marks={"feed": b"a"})
        await b.settle([], marks={"feed": b"b"})
        self.crash(a)
        self.crash(b)
        assert (await make("a").open()).marks == {"feed": b"a"}
        assert (await make("b").open()).marks == {"feed": b"b"}
        assert (await make("c").open()).marks == {}

    @driven
    async def test_another_worker_goes_on_seeding(self, make: MakeFrontier) -> None:
        """When the one that had begun is dead, nothing that it stored is stored twice."""
        self.need_workers()
        a, b = await opened(make("a")), await opened(make("b"))
        seeds = [entry(name, parent=SEED, ordinal=name.encode()) for name in ("s", "t", "s")]
        assert await a.offer(seeds[:2]) == [True, True]
        self.crash(a)
        assert await b.offer(seeds) == [False, False, True]
        await b.settle([], seeded=True)
        found = await make("a").open()
        assert (found.resumed, found.seeded) == (True, True)

    @driven
    async def test_a_late_finish_does_not_end_the_next_crawl(self, make: MakeFrontier) -> None:
        """A worker that says late that its crawl is complete means that one."""
        self.need_workers()
        a, b = await opened(make("a")), await opened(make("b"))
        await a.offer(keyed("x"))
        await ack(a, await lease_one(a))
        await a.finish()
        await a.close()
        a = make("a")
        assert not (await a.open()).resumed
        await a.offer(keyed("x"))
        await ack(a, await lease_one(a))
        await b.finish()
        await b.close()
        self.crash(a)
        a = make("a")
        assert (await a.open()).resumed
        assert await a.offer(keyed("x")) == [False]
