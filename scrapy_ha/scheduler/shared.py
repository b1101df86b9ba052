"""Makes the frontier that many workers share, from a project's settings."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from scrapy.settings import BaseSettings
from scrapy.utils.misc import load_object
from scrapy_redis.connection import SETTINGS_PARAMS_MAP, get_redis_from_settings

from scrapy_ha import settings as declared
from scrapy_ha.errors import SettingError
from scrapy_ha.lifecycle import watch
from scrapy_ha.loop import has_asyncio
from scrapy_ha.scheduler.remote import RemoteFrontier, SharedFrontier
from scrapy_ha.scheduler.worker import WorkerIdentity

if TYPE_CHECKING:
    from pathlib import Path

    from scrapy.crawler import Crawler


FRONTIER = "scrapy_ha.frontier.redis.RedisFrontier"


class ServerClock:
    """The server's time, as this worker knows it: workers' own clocks differ."""

    def __init__(self, now: float) -> None:
        self._offset = now - time.monotonic()

    def time(self) -> float:
        return time.monotonic() + self._offset


class RedisWorker(RemoteFrontier):
    """A :class:`RemoteFrontier` over Redis, with the server's clock."""

    def __init__(
        self,
        frontier: SharedFrontier,
        clock: ServerClock,
        identity: WorkerIdentity,
        **options: Any,
    ) -> None:
        super().__init__(frontier, **options)
        self.clock = clock
        self._identity = identity

    async def close(self) -> None:
        try:
            await super().close()
        finally:
            await self._frontier.disconnect()
            self._identity.release()


def client_of(settings: BaseSettings) -> Any:
    """The asynchronous client that scrapy-redis's connection settings describe."""
    named = {name: settings[name] for name in SETTINGS_PARAMS_MAP if name != "REDIS_DECODE_RESPONSES"}
    params = {
        **settings.getdict("REDIS_PARAMS"),
        "redis_cls": "redis.asyncio.Redis",
        "decode_responses": False,
    }
    return get_redis_from_settings(BaseSettings({**named, "REDIS_PARAMS": params}))


async def connect(
    crawler: Crawler,
    options: dict[str, Any],
    directory: Path,
    capacity: Callable[[str], int | None],
    failed: Callable[[Exception], None],
) -> RedisWorker:
    """Raises ``SettingError`` without an asyncio loop, ``StoreError`` when the server cannot be reached."""
    settings = crawler.settings
    if not has_asyncio():
        raise SettingError(
            'HA_FRONTIER = "redis" needs an asyncio event loop: '
            'TWISTED_REACTOR = "twisted.internet.asyncioreactor.AsyncioSelectorReactor"'
        )
    identity = WorkerIdentity(directory)
    frontier: SharedFrontier = load_object(FRONTIER)(
        client_of(settings),
        declared.namespace(settings, getattr(crawler.spider, "name", "")),
        worker=identity.claim(),
        capacity=declared.read(settings, "HA_SEEN_CAPACITY"),
        **options,
    )
    try:
        clock = ServerClock(await frontier.connect())
    except BaseException:
        await frontier.disconnect()
        identity.release()
        raise
    prefetch = declared.read(settings, "HA_PREFETCH")
    stats: Any = crawler.stats
    return RedisWorker(
        frontier,
        clock,
        identity,
        ttl=declared.read(settings, "HA_LEASE_SECONDS"),
        prefetch=2 * settings.getint("CONCURRENT_REQUESTS") if prefetch is None else prefetch,
        capacity=capacity,
        wake=lambda: watch(crawler).wake(),
        failed=failed,
        refused=lambda number: stats.inc_value("ha/scheduler/fenced", number),
        patience=declared.read(settings, "HA_REDIS_OUTAGE_LIMIT"),
    )
