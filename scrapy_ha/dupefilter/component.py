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
from scrapy_ha.errors import HAError, StoreFull
from scrapy_ha.fingerprint import Fingerprints
from scrapy_ha.lifecycle import watch
from scrapy_ha.loop import Ticker, close_spider, in_thread, spawn
from scrapy_ha.run import current_page, run_of
from scrapy_ha.seen.tier import BloomTier
from scrapy_ha.state import get_state, is_retry_of, set_state

if TYPE_CHECKING:
    from scrapy import Request, Spider
    from scrapy.crawler import Crawler
    from typing_extensions import Self

    from scrapy_ha.seen.store import SeenStore

logger = logging.getLogger(__name__)

SYNC_EVERY = 1.0
"""Seconds between two looks at what is to be fsynced, written anew or removed."""
GIVEN_UP_LIMIT = 100_000
"""Requests that were given up and are new to the next crawl, some 10 MB; more of them count as done."""


class BloomDupeFilter(BaseDupeFilter):
    """Knows the requests that were seen, exactly, over restarts, in little memory.

    ``DUPEFILTER_CLASS = "scrapy_ha.dupefilter.BloomDupeFilter"``, or through the add-on. A Bloom filter in
    memory says which requests are certainly new; all others are looked up in LevelDB, so no page is lost to
    a false positive.

    With :class:`~scrapy_ha.scheduler.HAScheduler` the frontier is the exact store: a request is seen and
    stored in one step, and this class only lends it the Bloom filter. With any other scheduler the store is
    in ``<HA_DIR>/seen``. A request is then seen at once, but for good only when the engine is done with it,
    or with the redirect or retry that took its place: one that was lost with its process is new to the next.
    What waits when the crawl ends in order is kept only where the queue is (``JOBDIR``, scrapy-redis).
    When the store fails the spider is closed (``store_error``, ``disk_full``); no request is dropped for it.

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
        self._keeps: bool = declared.read(settings, "HA_SEEN_KEEP")
        self._pending: set[bytes] = set()
        """Seen in this run, and not done."""
        self._redirects: dict[bytes, list[bytes]] = {}
        """Keys of the requests that took the place of a pending one, by its key: all are done at a time."""
        self._given_up: set[bytes] = set()
        self._working: dict[Request, bytes] = {}
        """Pages whose callback runs."""
        self._retried: set[Request] = set()
        """Of these, the ones whose callback asked for another attempt."""
        self._waiting = False
        """The scheduler had requests left when it was closed."""
        self._failed = False
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
        if declared.read(settings, "HA_SEEN_RESET") or (opened.finished and not self._keeps):
            store.begin_generation()
        elif opened.count:
            logger.info("%d URLs were seen in earlier runs (%s)", opened.count, store.path)
        warn_of_identity(opened.former_identity, self._fingerprints.identity)
        watching = watch(self._crawler)
        watching.began.append(self._began)
        watching.ended.append(self._ended)
        watching.closing.append(self._closing)
        self._crawler.signals.connect(self._spider_opened, signals.spider_opened)
        self._crawler.signals.connect(self._scheduled, signals.request_scheduled)

    def request_seen(self, request: Request) -> bool:
        assert self._store is not None
        key = self._fingerprints.key_of(request)
        if key is None:
            return False
        try:
            if key in self._pending or key in self._given_up or key in self._store:
                return True
        except HAError as error:
            self._fail(error)
            return False
        self._pending.add(key)
        state = get_state(request)
        former = state.get("seen")
        if type(former) is bytes and former != key:
            self._redirects.setdefault(former, []).append(key)
        else:
            set_state(request, {**state, "seen": key})
        return False

    def log(self, request: Request, spider: Spider) -> None:
        log_duplicate(request, spider, debug=self._debug, said=self._said)
        self._said = True
        self._stats.inc_value("dupefilter/filtered")
        former = get_state(request).get("seen")
        if type(former) is bytes and former in self._pending:  # it was redirected to what is known
            self._done(former)

    async def _spider_closed(self, reason: str) -> None:
        await self._close(reason)

    def close(self, reason: str) -> Any:
        return spawn(self._close(reason))

    def clear(self) -> None:
        """Forget what waits, as scrapy-redis's scheduler asks when it flushes its queue, and what is done
        as well, but with HA_SEEN_KEEP."""
        self._pending.clear()
        self._redirects.clear()
        if self._store is not None and not self._keeps:
            self._store.begin_generation()

    async def _close(self, reason: str) -> None:
        store, self._store = self._store, None
        if store is None:
            return
        await self._ticker.stop()
        try:
            if reason == "finished" and not self._waiting:
                store.finish()  # what is pending was lost, or is another worker's
            elif self._pending and _queue_is_kept(self._crawler):
                store.add_many(self._pending)
            self._report(store)
            if self._fsyncs:
                await in_thread(store.fsync)
        except HAError as error:
            logger.error("%s", error)
        finally:
            store.close()

    def _spider_opened(self) -> None:
        self._ticker.start()
        watch(self._crawler).attend()

    def _closing(self) -> None:
        self._waiting = watch(self._crawler).scheduler.has_pending_requests()

    # The life of a page

    def _scheduled(self, request: Request) -> None:
        """Tell the next attempt of a page from what merely came by its ``meta``, and is not that page."""
        page = current_page.get()
        key = None if page is None else self._working.get(page)
        state = get_state(request)
        if page is None or key is None or state.get("seen") != key:
            return
        if is_retry_of(request, page):
            self._retried.add(page)
        else:
            state = state.copy()  # it is the page's as well
            del state["seen"]
            set_state(request, state)

    def _began(self, request: Request) -> None:
        key = get_state(request).get("seen")
        if type(key) is bytes:
            self._working[request] = key

    def _ended(self, request: Request) -> None:
        """The engine is done with *request*. If no callback had it, another request has taken its place."""
        key = self._working.pop(request, None)
        if key is None:
            return
        if request in self._retried:
            self._retried.discard(request)
        elif "gave_up" in get_state(request) and len(self._given_up) < GIVEN_UP_LIMIT:
            self._given_up.update(self._take(key))
        else:
            self._done(key)

    def _take(self, key: bytes) -> list[bytes]:
        """*key* and those of its redirects, which are not pending any more."""
        keys = [key, *self._redirects.pop(key, ())]
        self._pending.difference_update(keys)
        return keys

    def _done(self, key: bytes) -> None:
        store = self._store
        if store is None:
            return
        try:
            # One that an earlier run has stored would fill the filter twice.
            known = key not in self._pending and key in store
            store.add_many(self._take(key)[known:])
            self._changed = True
        except HAError as error:
            self._fail(error)

    def _fail(self, error: HAError) -> None:
        if self._failed:
            return
        self._failed = True
        reason = "disk_full" if isinstance(error, StoreFull) else "store_error"
        logger.error("Closing the spider (%s): %s", reason, error)
        close_spider(self._crawler, reason)

    async def _tick(self) -> None:
        store = self._store
        if store is None:
            return
        try:
            if store.tier.wants_saving:
                await in_thread(store.tier.begin_save())
            if self._changed and self._fsyncs:
                self._changed = False
                await in_thread(store.fsync)
            await in_thread(store.maintain)
        except HAError as error:
            self._fail(error)
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
