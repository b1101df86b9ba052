"""Contract: how leases end, and what is stored in the same step."""

from __future__ import annotations

from typing import TYPE_CHECKING

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
)
from scrapy_ha.typing import Settlement

if TYPE_CHECKING:
    from scrapy_ha.testing._base import MakeFrontier
    from scrapy_ha.testing.clock import FakeClock


class Settling(ContractBase):
    @driven
    async def test_one_batch_for_every_way(self, make: MakeFrontier, clock: FakeClock) -> None:
        """Done, retried, given up and released, with children, seen keys and marks, in one call."""
        frontier = await opened(make())
        await frontier.offer(entries("done", "retried", "dead", "released", "kept"))
        done, retried, dead, released, _ = await lease(frontier, 5)
        assert (
            await frontier.settle(
                [
                    Settlement(done),
                    Settlement(retried, retry_at=clock.time() + 10),
                    Settlement(dead, dead=b"why"),
                    Settlement(released, release=True),
                ],
                children=[*keyed("child", "child"), entry("later", due=clock.time() + 5)],
                seen=[b"elsewhere"],
                marks={"feed:x": b"7"},
            )
            == [True] * 4
        )
        assert await numbers(frontier) == (2, 2, 1, 1)
        assert await frontier.offer(keyed("child", "elsewhere")) == [False, False]
        self.crash(frontier)
        frontier = make()
        found = await frontier.open()
        assert (found.reclaimed, found.marks) == (1, {"feed:x": b"7"})
        assert await numbers(frontier) == (3, 2, 0, 1)
        assert await frontier.offer(keyed("child", "elsewhere")) == [False, False]
        assert sorted(names(await lease_all(frontier))) == ["child", "kept", "released"]

    @driven
    async def test_a_lease_ends_once(self, make: MakeFrontier) -> None:
        """The second settlement is refused, in the same batch and in a later one."""
        frontier = await opened(make())
        await frontier.offer(entries("x", "y"))
        one, two = await lease(frontier, 2)
        assert await frontier.settle([Settlement(one), Settlement(one, release=True)]) == [True, False]
        assert await frontier.settle([Settlement(two, release=True), Settlement(two)]) == [True, False]
        assert await ack(frontier, one, two) == [False, False]
        assert await numbers(frontier) == (1, 0, 0, 0)

    @driven
    async def test_what_comes_with_a_refused_lease_is_stored(
        self, make: MakeFrontier, clock: FakeClock
    ) -> None:
        """Its children exist, whoever found them; so do seen keys and marks, and what else is settled."""
        frontier = await opened(make())
        await frontier.offer(entries("stale", "good"))
        stale, good = await lease(frontier, 2, ttl=10)
        await frontier.renew([good], 100)
        clock.advance(10.5)
        assert await frontier.reclaim() == (1, 0)
        verdicts = await frontier.settle(
            [Settlement(stale), Settlement(good)], keyed("child"), [b"seen"], {"m": b"1"}
        )
        assert verdicts == [False, True]
        assert await frontier.offer(keyed("child", "seen")) == [False, False]
        assert names(await lease(frontier, 5)) == ["stale", "child"]
        self.crash(frontier)
        assert (await make().open()).marks == {"m": b"1"}

    @driven
    async def test_children_without_settlements(self, make: MakeFrontier) -> None:
        """Each part of a settle call works alone."""
        frontier = await opened(make())
        assert await frontier.settle([], children=keyed("x", "x")) == []
        assert await frontier.settle([], seen=[b"y", b"y", b""]) == []
        assert await frontier.offer(keyed("x", "y", "")) == [False] * 3
        assert await numbers(frontier) == (1, 0, 0, 0)

    @driven
    async def test_seen_keys_store_nothing(self, make: MakeFrontier) -> None:
        """They may name what is stored already, or nothing that ever was."""
        frontier = await opened(make())
        await frontier.offer(keyed("x"))
        await frontier.settle([], seen=[b"x", b"z"])
        assert names(await lease_all(frontier)) == ["x"]

    @driven
    async def test_retry(self, make: MakeFrontier, clock: FakeClock) -> None:
        """It waits until then under its id, with the new payload and priority, counted afresh (I5)."""
        frontier = await opened(make())
        await frontier.offer([entry("first", "s", key=b"k", priority=1)])
        one = await lease_one(frontier)
        at = clock.time() + 30
        await frontier.settle([Settlement(one, payload=b"second", retry_at=at, priority=-3)])
        assert await numbers(frontier) == (0, 1, 0, 0)
        assert await frontier.next_due() == at
        assert await frontier.offer(keyed("k")) == [False]
        clock.advance(29.5)
        assert await lease(frontier) == []
        self.crash(frontier)
        frontier = await opened(make())
        assert await lease(frontier) == []
        clock.advance(0.5)
        again = await lease_one(frontier)
        assert (again.id, again.payload, again.slot, again.priority) == (one.id, b"second", "s", -3)
        assert again.deliveries == 1
        assert again.token > one.token

    @driven
    async def test_retry_keeps_what_is_not_given(self, make: MakeFrontier, clock: FakeClock) -> None:
        """Payload and priority stay, when the settlement has no new ones."""
        frontier = await opened(make())
        await frontier.offer([entry("x", priority=4)])
        await frontier.settle([Settlement(await lease_one(frontier), retry_at=clock.time() + 1)])
        clock.advance(1)
        again = await lease_one(frontier)
        assert (again.payload, again.priority) == (b"x", 4)

    @driven
    async def test_retry_at_a_time_that_has_passed(self, make: MakeFrontier, clock: FakeClock) -> None:
        """It can be leased at once."""
        frontier = await opened(make())
        await frontier.offer(entries("x", "y"))
        one, two = await lease(frontier, 2)
        await frontier.settle([Settlement(one, retry_at=clock.time()), Settlement(two, retry_at=0.0)])
        counts = await frontier.counts()
        assert counts.ready + counts.delayed == counts.pending == 2
        assert names(await lease(frontier, 5)) == ["x", "y"]
        assert await frontier.next_due() is None

    @driven
    async def test_retries_come_due_in_order(self, make: MakeFrontier, clock: FakeClock) -> None:
        """``next_due`` names the earliest, whatever came and went before."""
        frontier = await opened(make())
        await frontier.offer(entries(*"abc"))
        start = clock.time()
        for one, delay in zip(await lease(frontier, 3), (20, 10, 30), strict=True):
            await frontier.settle([Settlement(one, retry_at=start + delay)])
        for delay, name in ((10, "b"), (20, "a"), (30, "c")):
            assert await frontier.next_due() == start + delay
            assert await lease(frontier) == []
            clock.advance(10)
            assert names(await lease(frontier, 5)) == [name]
        assert await frontier.next_due() is None

    @driven
    async def test_release(self, make: MakeFrontier) -> None:
        """As if it had not been delivered; a new payload stays."""
        frontier = await opened(make(max_deliveries=2))
        await frontier.offer(entries("x"))
        await lease_one(frontier)
        self.crash(frontier)
        frontier = await opened(make(max_deliveries=2))
        for payload in (None, b"new", None):
            one = await lease_one(frontier)
            assert one.deliveries == 2
            assert await frontier.settle([Settlement(one, payload=payload, release=True)]) == [True]
        assert await numbers(frontier) == (1, 0, 0, 0)
        self.crash(frontier)
        frontier = make(max_deliveries=2)
        found = await frontier.open()
        assert (found.reclaimed, found.poisoned) == (0, 0)
        again = await lease_one(frontier)
        assert (again.payload, again.deliveries) == (b"new", 2)

    @driven
    async def test_marks_are_kept_by_name(self, make: MakeFrontier) -> None:
        """The latest value of each; names and values are any text and bytes, but an empty value is none;
        gone with the crawl."""
        frontier = await opened(make())
        await frontier.settle([], marks={"a": b"1", "b": b"1", "c": b"1", "": b"\0", "ü\0\udcff": b"\0\xff"})
        await frontier.settle([], marks={"b": b"2", "c": b"", "d": b""})
        await frontier.settle([], marks={})
        await frontier.settle([])
        expected = {"a": b"1", "b": b"2", "": b"\0", "ü\0\udcff": b"\0\xff"}
        self.crash(frontier)
        frontier = make()
        assert (await frontier.open()).marks == expected
        await frontier.close()
        frontier = make()
        found = await frontier.open()
        assert found.marks == expected
        assert found.resumed
        await frontier.finish()
        await frontier.close()
        assert (await make().open()).marks == {}
