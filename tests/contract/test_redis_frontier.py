"""The shared frontier passes the suite that every frontier passes, over a real server."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import uuid4

import pytest
from functional.redis_server import running_redis
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test
from redis.asyncio import Redis

from scrapy_ha.frontier.redis import RedisFrontier
from scrapy_ha.testing import FakeClock, FrontierContract, FrontierMachine, MakeFrontier
from scrapy_ha.testing.machine import DEAD_LIMIT, DEAD_SECONDS

if TYPE_CHECKING:
    from scrapy_ha.typing import Frontier

T = TypeVar("T")


@pytest.fixture(scope="module")
def redis_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with running_redis(tmp_path_factory.mktemp("redis")) as url:
        yield url


class TestRedisFrontier(FrontierContract):
    shared = True

    @pytest.fixture
    def make(self, clock: FakeClock, redis_url: str) -> MakeFrontier:
        name = str(uuid4())
        self.clients: list[Redis] = []

        def make(worker: str = "a", fresh: bool = False, **options: Any) -> Frontier:
            nonlocal name
            if fresh:
                name = str(uuid4())
            self.clients.append(Redis.from_url(redis_url))
            return RedisFrontier(self.clients[-1], name, worker=worker, clock=clock, **options)

        return make

    def crash(self, frontier: Frontier) -> None:
        """Nothing: an object that is not used any more has no farewell."""

    def drive(self, work: Coroutine[Any, Any, None]) -> None:
        """Clients belong to the event loop of their test."""

        async def run() -> None:
            try:
                await work
            finally:
                for client in self.clients:
                    await client.aclose()

        asyncio.run(run())


class RedisMachine(FrontierMachine):
    """Several workers, their calls in any order."""

    shared = True
    url = ""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.name = str(uuid4())
        self.clients: list[Redis] = []

    def drive(self, work: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(work)

    def make_frontier(self, worker: str, order: str, max_deliveries: int) -> Frontier:
        self.clients.append(Redis.from_url(self.url))
        return RedisFrontier(
            self.clients[-1],
            self.name,
            worker=worker,
            clock=self.clock,
            max_deliveries=max_deliveries,
            order=order,
            dead_limit=DEAD_LIMIT,
            dead_seconds=DEAD_SECONDS,
        )

    def crash(self, frontier: Frontier) -> None:
        """Nothing: an object that is not used any more has no farewell."""

    def teardown(self) -> None:
        try:
            super().teardown()
        finally:
            for client in self.clients:
                self.drive(client.aclose())
            self.loop.close()


@pytest.mark.timeout(600)
def test_any_sequence_of_calls(redis_url: str) -> None:
    RedisMachine.url = redis_url
    run_state_machine_as_test(
        RedisMachine, settings=settings(settings.get_profile("contract"), max_examples=60)
    )
