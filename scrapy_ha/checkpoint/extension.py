"""CheckpointExtension: the state of a crawl, kept while it runs."""

from __future__ import annotations

import logging
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import scrapy
from scrapy import signals
from scrapy.core.scheduler import Scheduler
from scrapy.exceptions import NotConfigured
from scrapy.utils.misc import load_object

from scrapy_ha import settings as declared
from scrapy_ha import stats as names
from scrapy_ha._version import __version__
from scrapy_ha.checkpoint.journal import Journal
from scrapy_ha.checkpoint.ledger import FINISHED, MARK, PART, Ledger, fold
from scrapy_ha.checkpoint.parts import CookiesPart, SpiderStatePart, StatsPart
from scrapy_ha.checkpoint.store import CheckpointStore
from scrapy_ha.errors import BadRecord, HAError, StoreFull, Unserializable
from scrapy_ha.loop import Ticker, close_spider, in_thread
from scrapy_ha.run import run_of
from scrapy_ha.serialize import decode_value, encode_value

if TYPE_CHECKING:
    from collections.abc import Mapping

    from scrapy.crawler import Crawler
    from typing_extensions import Self

    from scrapy_ha.typing import Part

logger = logging.getLogger(__name__)


LOG_BYTES = 64 << 20
"""The log since the last snapshot, from which on another one is made: a large ``spider.state`` that changes
is written whole each time."""


class CheckpointExtension:
    """Keeps the state of a crawl in a write-ahead log, so that it is there again after any death.

    ``EXTENSIONS = {"scrapy_ha.checkpoint.CheckpointExtension": 0}``, or through the add-on; in place of
    Scrapy's ``SpiderState``. It keeps ``spider.state``, the stats and, if asked to, the cookies, and whatever
    else takes part (:func:`scrapy_ha.checkpoint.register`). What changed is written every
    ``HA_CHECKPOINT_INTERVAL`` seconds, when the spider is idle, and when it closes.

    With Scrapy's own scheduler it also keeps the requests: what was pending or in flight when the process
    died is scheduled again by the next one, and nothing else; and what else waits for a page to be done
    (feeds, the spool, what is known of hosts) is as good as with
    :class:`~scrapy_ha.scheduler.HAScheduler`.

    Raises:
        StoreLocked, StoreDamaged, StoreError: The directory cannot be used; the crawl does not start.
    """

    def __init__(self, crawler: Crawler) -> None:
        settings, spider = crawler.settings, crawler.spider
        if spider is None or not declared.read(settings, "HA_CHECKPOINT_ENABLED"):
            raise NotConfigured
        self._crawler = crawler
        self._stats: Any = crawler.stats
        self._run = run_of(crawler)
        self._seconds: float = declared.read(settings, "HA_CHECKPOINT_SNAPSHOT_SECONDS")
        self._records: int = declared.read(settings, "HA_CHECKPOINT_RECORDS")
        self._fsyncs = declared.read(settings, "HA_FSYNC") != "never"
        self._keeps_seen: bool = declared.read(settings, "HA_SEEN_KEEP")
        directory = Path(declared.directory(settings, spider.name)) / "checkpoint"
        self.store = CheckpointStore(
            directory,
            crawl=declared.namespace(settings, spider.name),
            versions={"scrapy_ha": __version__, "scrapy": scrapy.__version__},
        )
        self._saved: dict[str, bytes] = {}
        """Of each part, what is in the log."""
        self._restored: set[int] = set()
        """Parts that have been restored, by identity."""
        self._failed = False
        self._dirty = False
        self._last_snapshot = self._counted_until = time.monotonic()
        self._ticker = Ticker(declared.read(settings, "HA_CHECKPOINT_INTERVAL"), self._tick)
        self._state = SpiderStatePart(spider)
        self._counts = StatsPart(crawler)
        try:
            self._open(load_object(settings["SCHEDULER"]))
        except HAError as error:
            logger.error("%s", error)
            raise
        self._run.parts += [self._state, self._counts]
        if declared.read(settings, "HA_CHECKPOINT_COOKIES"):
            self._run.parts.append(CookiesPart(crawler))
        self.restore(self._state)
        crawler.signals.connect(self._opened, signals.spider_opened)
        crawler.signals.connect(self._idle, signals.spider_idle)
        crawler.signals.connect(self._closed, signals.spider_closed)

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        return cls(crawler)

    # Opening

    def _open(self, scheduler: type) -> None:
        found = self.store.open()
        try:
            ledger = Ledger()
            ledger.read(self.store.read())
            for name, value in (
                (names.CHECKPOINT_TORN, found.recovery.torn_bytes),
                (names.CHECKPOINT_DAMAGED, found.recovery.damaged_bytes),
                (names.CHECKPOINT_BAD, ledger.bad),
            ):
                if value:
                    self._stats.set_value(name, value)
            self.ledger = ledger
            if not ledger.finished:
                self._saved = dict(ledger.parts)
            self._journal: Journal | None = None
            if getattr(scheduler, "keeps_requests", False):
                return
            self._run.resumed = ledger.begun and not ledger.finished
            self._run.marks = dict(ledger.marks)
            self._run.keep = self._keep
            wanted = declared.read(self._crawler.settings, "HA_CHECKPOINT_REQUESTS")
            # Scrapy's issubclass() asks for nothing but the methods of a scheduler.
            if wanted and Scheduler in scheduler.__mro__:
                lost = found.recovery.damaged_bytes > 0
                self._journal = Journal(self._crawler, self.store, ledger, self._fail, lost)
        except BaseException:
            self.store.close()
            raise

    def restore(self, part: Part) -> None:
        """Have *part* be what was saved of it; nothing happens when nothing was, or it was done before."""
        if id(part) in self._restored:
            return
        self._restored.add(id(part))
        saved = self._saved.get(part.name)
        if saved is None:
            return
        try:
            saved_as, data = decode_value(saved)
            if saved_as > part.version:
                raise BadRecord(f"version {saved_as} is newer than {part.version}")
            part.restore(data if saved_as == part.version else part.migrate(data, saved_as))
        except Exception as error:  # of any part, from any disk
            self._stats.inc_value(names.CHECKPOINT_BAD)
            logger.error("What was saved of %s cannot be used, so it begins afresh: %s", part.name, error)

    def _opened(self) -> None:
        for part in self._run.parts:
            self.restore(part)
        self._stats.inc_value(names.CHECKPOINT_RUNS)
        self._ticker.start()

    # Saving

    async def _tick(self) -> None:
        if self._failed:
            return
        if self._journal is not None:
            self._journal.look()
        try:
            self.save()
            due = time.monotonic() - self._last_snapshot >= self._seconds
            grown = self.store.since_snapshot >= self._records or self.store.bytes_since_snapshot > LOG_BYTES
            if grown or (due and self.store.since_snapshot):
                await self._snapshot()
            if self._fsyncs and self._dirty:
                self._dirty = False
                if self._journal is not None:  # else it is the scheduler's to do
                    await in_thread(self._run.fsync)
                await in_thread(self.store.fsync)
        except HAError as error:
            self._fail(error)

    def save(self) -> None:
        """Write what changed since the last time.

        Raises:
            StoreFull, StoreError: It cannot be written.
        """
        now = time.monotonic()
        self._stats.inc_value(names.CHECKPOINT_SECONDS, now - self._counted_until, start=0.0)
        self._counted_until = now
        for part in self._run.parts:
            try:
                data = part.save()
                packed = None if data is None else encode_value([part.version, data])
            except Unserializable as error:
                self._stats.inc_value(names.CHECKPOINT_BAD)
                logger.error("The state of %s cannot be kept: %s", part.name, error)
                continue
            if packed is not None and packed != self._saved.get(part.name):
                self.store.append(PART, part.name.encode(), packed)
                self._saved[part.name] = packed
        self.store.flush()
        self._dirty = True

    async def _snapshot(self) -> None:
        self._last_snapshot = time.monotonic()
        self._stats.inc_value(names.CHECKPOINT_RECORDS, self.store.since_snapshot)
        work = self.store.begin_snapshot()
        done = self._journal.settle_keys if self._journal is not None else _forget
        await in_thread(lambda: work.run(partial(fold, done=done, keep=self._keeps_seen)))
        if self._journal is not None:
            await self._journal.settled()
        self._stats.inc_value(names.CHECKPOINT_SNAPSHOTS)

    def _keep(self, marks: Mapping[str, bytes]) -> None:
        """Store *marks* (:attr:`Run.keep`)."""
        if self._failed or not self.store.log.is_open:
            return
        try:
            for name, value in marks.items():
                self.store.append(MARK, name.encode("utf-8", "surrogatepass"), value)
            self.store.flush()
            self._dirty = True
        except HAError as error:
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        if self._failed:
            return
        self._failed = True
        reason = "disk_full" if isinstance(error, StoreFull) else "store_error"
        expected = isinstance(error, HAError)
        logger.error("Closing the spider (%s): %s", reason, error, exc_info=None if expected else error)
        self._stats.set_value("ha/checkpoint/failure", reason)
        close_spider(self._crawler, reason)

    # The end

    def _idle(self) -> None:
        if not self._failed:
            try:
                self.save()
            except HAError as error:
                self._fail(error)

    async def _closed(self, reason: str) -> None:
        await self._ticker.stop()
        self._counts.set_own()
        try:
            if not self._failed:
                self.save()
                complete = self._journal is None or self._journal.is_complete
                if reason == "finished" and complete:
                    self.store.append(FINISHED, b"", b"")
                if self.store.since_snapshot >= self._records:
                    await self._snapshot()
            await in_thread(self.store.close)
        except HAError as error:
            logger.error("The checkpoint could not be closed in order: %s", error)
        finally:
            if self._journal is not None:
                self._journal.close(reason)


def _forget(keys: list[bytes]) -> None:
    pass
