"""What the parts of the frontier's contract suite have in common."""

from __future__ import annotations

import asyncio
import functools
import math
from collections.abc import Callable, Collection, Coroutine, Mapping
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Protocol, TypeVar

import pytest

from scrapy_ha.testing.clock import FakeClock
from scrapy_ha.typing import Entry, Lease, Replay, Settlement

if TYPE_CHECKING:
    from scrapy_ha.typing import Frontier

P = ParamSpec("P")
Suite = TypeVar("Suite", bound="ContractBase")


class MakeFrontier(Protocol):
    def __call__(
        self,
        worker: str = "a",
        order: str = "fifo",
        max_deliveries: int = 5,
        fresh: bool = False,
        dead_limit: int | None = None,
        dead_seconds: float | None = None,
        seen_seconds: float | None = None,
        keep_seen: bool = False,
    ) -> Frontier:
        """A frontier that is not open yet, over the store of this test, or over a *fresh* one
        which is this test's store from then on. The rest are the store's own options: how many
        requests in the dead state are kept, and for how long; for how long a key counts as seen, and
        whether those of a complete crawl count in the next one."""


class ContractBase:
    """Fixtures and hooks that a store provides.

    Attributes:
        shared: Whether several workers may have the store open at once. Tests that need it are
            skipped otherwise.
    """

    shared = False

    @pytest.fixture
    def clock(self) -> FakeClock:
        """The clock of all frontiers that :meth:`make` makes."""
        return FakeClock()

    @pytest.fixture
    def make(self, clock: FakeClock) -> MakeFrontier:
        """Makes frontiers over one store per test, and closes them at its end."""
        raise NotImplementedError

    def crash(self, frontier: Frontier) -> None:
        """What ``kill -9`` of its worker does to an open *frontier*: it ends without a farewell.

        The test does not use it any more. What *make* makes afterwards finds the store as it is.
        """
        raise NotImplementedError

    def drive(self, work: Coroutine[Any, Any, None]) -> None:
        """Run one test to its end. An embedded store should be driven without an event loop."""
        asyncio.run(work)

    def need_workers(self) -> None:
        """Skip the test when the store has one worker only."""
        if not self.shared:
            pytest.skip("the store has one worker at a time")


def driven(
    test: Callable[Concatenate[Suite, P], Coroutine[Any, Any, None]],
) -> Callable[Concatenate[Suite, P], None]:
    """Make an asynchronous test one that pytest can run."""

    @functools.wraps(test)
    def run(self: Suite, /, *args: P.args, **kwargs: P.kwargs) -> None:
        self.drive(test(self, *args, **kwargs))

    return run


def entry(name: str | bytes, slot: str = "slot", **fields: Any) -> Entry:
    """An Entry with *name* as its payload."""
    return Entry(name.encode() if isinstance(name, str) else name, slot, **fields)


def entries(*names: str, **fields: Any) -> list[Entry]:
    return [entry(name, **fields) for name in names]


def keyed(*names: str, **fields: Any) -> list[Entry]:
    """Entries whose payload and key are their name."""
    return [entry(name, key=name.encode(), **fields) for name in names]


async def opened(frontier: Frontier) -> Frontier:
    await frontier.open()
    return frontier


async def lease(
    frontier: Frontier,
    limit: int = 1,
    busy: Mapping[str, int] | None = None,
    full: Collection[str] = (),
    ttl: float = math.inf,
) -> list[Lease]:
    return await frontier.lease(limit, busy or {}, full, ttl)


async def lease_all(frontier: Frontier, ttl: float = math.inf) -> list[Lease]:
    """Lease until nothing is due."""
    leases: list[Lease] = []
    while found := await lease(frontier, 100, ttl=ttl):
        leases += found
    return leases


async def lease_one(frontier: Frontier, ttl: float = math.inf) -> Lease:
    (one,) = await lease(frontier, ttl=ttl)
    return one


async def ack(frontier: Frontier, *leases: Lease) -> list[bool]:
    return await frontier.settle([Settlement(one) for one in leases])


async def bury(frontier: Frontier, *leases: Lease, record: bytes = b"record") -> None:
    """Give *leases* up."""
    assert all(await frontier.settle([Settlement(one, dead=record) for one in leases]))


async def replay(frontier: Frontier, *ids: int, due: float = 0.0) -> int:
    return await frontier.replay([Replay(id_, due) for id_ in ids])


async def expire_all(frontier: Frontier) -> int:
    """Forget until nothing is beyond the limits; how many it came to."""
    total = 0
    while found := await frontier.expire():
        total += found
    return total


async def reclaim_all(frontier: Frontier) -> tuple[int, int]:
    """Reclaim until nothing is left to be; what it came to."""
    ready = dead = 0
    while (found := await frontier.reclaim()) != (0, 0):
        ready, dead = ready + found[0], dead + found[1]
    return ready, dead


async def numbers(frontier: Frontier) -> tuple[int, int, int, int]:
    """Ready, delayed, leased and dead. Due requests that are delayed still would blur it: see Counts."""
    counts = await frontier.counts()
    assert counts.pending == counts.ready + counts.delayed + counts.leased
    return counts.ready, counts.delayed, counts.leased, counts.dead


def names(leases: Collection[Lease]) -> list[str]:
    return [one.payload.decode() for one in leases]
