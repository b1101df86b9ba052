"""Uses of the public API as a typed project makes them. Checked by mypy, not run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from scrapy import Request
from scrapy.crawler import Crawler
from scrapy.settings import Settings

import scrapy_ha
from scrapy_ha.clock import SystemClock
from scrapy_ha.errors import BadRecord, HAError, SettingError, StoreError, StoreFull, Unserializable
from scrapy_ha.frontier.leveldb import LevelDBFrontier
from scrapy_ha.run import Run, run_of
from scrapy_ha.scheduler import HAScheduler
from scrapy_ha.settings import SETTINGS, Setting, check, directory, namespace, read
from scrapy_ha.state import State, get_state, set_state
from scrapy_ha.typing import Clock, Durable, Entry, Frontier, Lease, Settlement


def settings(values: Mapping[str, object]) -> Path:
    given = Settings(dict(values))
    check(given)
    declared: Setting = SETTINGS["HA_FSYNC"]
    policy: str = read(given, declared.name)
    return directory(given, namespace(given, policy))


def add_on(crawler: Crawler) -> scrapy_ha.Addon:
    addon: scrapy_ha.Addon = scrapy_ha.Addon.from_crawler(crawler)
    addon.update_settings(crawler.settings)
    return addon


def scheduler(crawler: Crawler, request: Request) -> Request | None:
    own: HAScheduler = HAScheduler.from_crawler(crawler)
    stored: bool = own.enqueue_request(request)
    return own.next_request() if stored and own.has_pending_requests() else None


class FixedClock:
    def time(self) -> float:
        return 0.0


CLOCKS: Sequence[Clock] = (SystemClock(), SystemClock(not_before=1.0), FixedClock())


class File:
    """A part of a project's own that an acknowledgement waits for."""

    def settle(self, page: Request) -> None: ...

    def marks(self) -> Mapping[str, bytes]:
        return {"file:position": b"0"}

    def fsync(self) -> None: ...


def durable(crawler: Crawler) -> bytes | None:
    run: Run = run_of(crawler)
    own: Durable = File()
    run.durables.append(own)
    return run.marks.get("file:position") if run.resumed else None


async def frontier(path: Path) -> list[bool]:
    store: Frontier = LevelDBFrontier(path, clock=FixedClock(), max_deliveries=3, order="lifo")
    opened = await store.open()
    assert not opened.resumed or opened.marks
    await store.offer([Entry(b"payload", "example.com", key=b"key", priority=1)])
    leases: list[Lease] = await store.lease(1, busy={"example.com": 1}, full=(), ttl=60.0)
    settled = await store.settle(
        [Settlement(lease, retry_at=1.0) for lease in leases],
        children=[Entry(b"child", "example.com")],
        seen=[b"key"],
        marks={"file:position": b"1"},
    )
    await store.close()
    return settled


def state(request: Request) -> int:
    own: State = get_state(request)
    own["attempts"] = {"server": 1}
    set_state(request, own)
    return own.get("deliveries", 0)


def reason(error: HAError) -> str:
    if isinstance(error, Unserializable):
        return error.kind
    if isinstance(error, (SettingError, BadRecord)):
        both: ValueError = error
        return str(both)
    return (
        "full"
        if isinstance(error, StoreFull)
        else type(error).__name__
        if isinstance(error, StoreError)
        else ""
    )
