"""BloomDupeFilter: Scrapy's side of what was seen."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scrapy import signals
from scrapy.dupefilters import BaseDupeFilter
from scrapy.utils.misc import load_object

from scrapy_ha import settings as declared
from scrapy_ha.duplicates import log_duplicate, say_filling, seen_stats, warn_of_identity
from scrapy_ha.errors import HAError
from scrapy_ha.fingerprint import Fingerprints
from scrapy_ha.lifecycle import watch
from scrapy_ha.loop import Ticker, close_spider, in_thread, spawn
from scrapy_ha.run import run_of
from scrapy_ha.seen.tier import BloomTier
from scrapy_ha.state import get_state, set_state

if TYPE_CHECKING:
    from scrapy import Request, Spider
    from scrapy.crawler import Crawler
    from typing_extensions import Self

    from scrapy_ha.seen.store import SeenStore

logger = logging.getLogger(__name__)

SYNC_EVERY = 1.0
"""Seconds between two looks at what is to be fsynced, written anew or removed."""


class BloomDupeFilter(BaseDupeFilter):
    """Knows the requests that were seen, exactly, over restarts, in little memory.

    ``DUPEFILTER_CLASS = "scrapy_ha.dupefilter.BloomDupeFilter"``, or through the add-on. A Bloom filter in
    memory says which requests are certainly new; all others are looked up in LevelDB, so no page is lost to
    a false positive.

    With :class:`~scrapy_ha.scheduler.HAScheduler` the frontier is the exact store: a request is seen and
    stored in one step, and this class only lends it the Bloom filter. With any other scheduler the store is
    in ``<HA_DIR>/seen``. A request is then seen at once, but for good only when the engine is done with it:
    one that was lost with its process is new to the next. What waits when the crawl ends in order is kept
    only where the queue is (``JOBDIR``, scrapy-redis).

    ``Request.meta``: ``ha_seen_key`` is what the request is known by in place of its fingerprint;
    ``ha_seen = False`` is like ``dont_filter``, and is not remembered either.

    Raises:
        SettingError: A setting has a value that is not allowed, or the filter does not fit into memory.
    """

    def __init__(self, crawler: Crawler) -> None:
        settings = crawler.settings
        self._crawler = crawler
        self._stats: Any = crawler.stats
        self._debug = settings.getbool("DUPEFILTER_DEBUG")
        self._said = False
        self._fingerprints = Fingerprints(crawler.request_fingerprinter)
        self._pending: set[bytes] = set()
        """Seen in this run, and not done."""
        self._working: dict[Request, bytes] = {}
        self._ticker = Ticker(SYNC_EVERY, self._tick)
        self._fsyncs = declared.read(settings, "HA_FSYNC") != "never"
        self._changed = False
        self._store: SeenStore | None = None

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        return cls(crawler)

    @classmethod
    def from_spider(cls, spider: Spider) -> Self:
        """As scrapy-redis's scheduler makes it, which neither opens nor closes it."""
        self = cls(spider.crawler)
        self.open()
        spider.crawler.signals.connect(self._spider_closed, signals.spider_closed)
        return self

    @staticmethod
    def frontier_tier(crawler: Crawler, path: Path) -> BloomTier:
        """The Bloom filter for a frontier whose directory is *path*."""
        return BloomTier(path / "bloom", on_filling=say_filling, **_sizes(crawler))

    # What the scheduler calls

    def open(self) -> None:
        settings, spider = self._crawler.settings, self._spider()
        store_class: type[SeenStore] = load_object("scrapy_ha.seen.store.SeenStore")  # needs LevelDB
        store = store_class(
            declared.directory(settings, spider.name) / "seen",
            identity=self._fingerprints.identity,
            ttl=declared.read(settings, "HA_SEEN_TTL"),
            crawl=declared.namespace(settings, spider.name),
            on_filling=say_filling,
            **_sizes(self._crawler),
        )
        try:
            opened = store.open()
        except HAError as error:
            logger.error("%s", error)
            raise
        self._store = store
        if declared.read(settings, "HA_SEEN_RESET") or (
            opened.finished and not declared.read(settings, "HA_SEEN_KEEP")
        ):
            store.begin_generation()
        elif opened.count:
            logger.info("%d URLs were seen in earlier runs (%s)", opened.count, store.path)
        warn_of_identity(opened.former_identity, self._fingerprints.identity)
        watching = watch(self._crawler)
        watching.began.append(self._began)
        watching.ended.append(self._ended)
        self._crawler.signals.connect(self._ticker.start, signals.spider_opened)

    def request_seen(self, request: Request) -> bool:
        assert self._store is not None
        key = self._fingerprints.key_of(request)
        if key is None:
            return False
        if key in self._pending or key in self._store:
            return True
        self._pending.add(key)
        set_state(request, {**get_state(request), "seen": key})
        return False

    def log(self, request: Request, spider: Spider) -> None:
        log_duplicate(request, spider, debug=self._debug, said=self._said)
        self._said = True
        self._stats.inc_value("dupefilter/filtered")

    async def _spider_closed(self, reason: str) -> None:
        await self._close(reason)

    def close(self, reason: str) -> Any:
        return spawn(self._close(reason))

    def clear(self) -> None:
        """Forget everything, as scrapy-redis's scheduler asks when it flushes its queue."""
        self._pending.clear()
        if self._store is not None:
            self._store.begin_generation()

    async def _close(self, reason: str) -> None:
        store, self._store = self._store, None
        if store is None:
            return
        await self._ticker.stop()
        try:
            if self._pending and _queue_is_kept(self._crawler):
                store.add_many(self._pending)
            if reason == "finished" and not self._pending:
                store.finish()
            self._report(store)
            if self._fsyncs:
                await in_thread(store.fsync)
        except HAError as error:
            logger.error("%s", error)
        finally:
            store.close()

    # The life of a page

    def _began(self, request: Request) -> None:
        key = get_state(request).get("seen")
        if type(key) is bytes:
            self._working[request] = key

    def _ended(self, request: Request) -> None:
        """The engine is done with *request*. If no callback had it, another request has taken its place."""
        key = self._working.pop(request, None)
        if key is None or self._store is None:
            return
        self._pending.discard(key)
        try:
            if key not in self._store:
                self._store.add(key)
                self._changed = True
        except HAError as error:
            logger.error("Closing the spider (store_error): %s", error)
            close_spider(self._crawler, "store_error")

    async def _tick(self) -> None:
        store = self._store
        if store is None:
            return
        if store.tier.wants_saving:
            await in_thread(store.tier.begin_save())
        if self._changed and self._fsyncs:
            self._changed = False
            await in_thread(store.fsync)
        await in_thread(store.maintain)
        self._report(store)

    def _report(self, store: SeenStore) -> None:
        for name, value in seen_stats(store.tier).items():
            self._stats.set_value(name, value)

    def _spider(self) -> Spider:
        spider = self._crawler.spider
        assert spider is not None
        return spider


def _sizes(crawler: Crawler) -> dict[str, Any]:
    return {
        "capacity": declared.read(crawler.settings, "HA_SEEN_CAPACITY"),
        "error_rate": declared.read(crawler.settings, "HA_SEEN_ERROR_RATE"),
        "kind": declared.read(crawler.settings, "HA_SEEN_BLOOM"),
    }


def _queue_is_kept(crawler: Crawler) -> bool:
    """Whether what waits when the spider closes will be there the next time."""
    scheduler: Any = getattr(crawler.engine, "scheduler", None)
    return bool(
        crawler.settings.get("JOBDIR") or run_of(crawler).tracking or getattr(scheduler, "persist", False)
    )
