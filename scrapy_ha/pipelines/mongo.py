"""Items as documents in the local spool."""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from scrapy.exceptions import DropItem
from scrapy.utils import defer
from scrapy.utils.misc import load_object
from scrapy.utils.python import global_object_name
from twisted.internet.defer import Deferred

from scrapy_ha import settings as declared
from scrapy_ha import stats
from scrapy_ha.errors import HAError, SettingError, StoreError, StoreFull, Unserializable
from scrapy_ha.loop import Ticker, close_spider, in_thread, spawn
from scrapy_ha.pipelines.deadletters import ItemDeadLetters
from scrapy_ha.pipelines.document import KeySpec, canonical, identify, to_document
from scrapy_ha.pipelines.spool import DEAD_LETTERS, Spool
from scrapy_ha.run import current_page, run_of
from scrapy_ha.serialize import encode_value

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from scrapy import Request, Spider
    from scrapy.crawler import Crawler
    from typing_extensions import Self

logger = logging.getLogger(__name__)

_KINDS_LOGGED = 100
_REASON_LIMIT = 1000


class MongoPipeline:
    """Keeps every item in the local spool, one document per key (``HA_ITEM_KEY``).

    ``process_item`` returns the very same item, unchanged, once its document survives ``kill
    -9``. With :class:`scrapy_ha.scheduler.HAScheduler` the page counts as done only after that;
    with another scheduler and ``HA_FSYNC = "always"`` it returns once it survives a power cut.

    An item that cannot be stored (its key is missing, it holds an open file) is written to
    ``dead.jsonl`` in the spool's directory with the reason, counted, and goes on through the
    other pipelines like every other. When the spool itself fails (disk full), items are dropped,
    their pages do not count as done, and the spider is closed with reason ``disk_full`` or
    ``store_error``.

    A record of the spool has as key the :func:`~scrapy_ha.pipelines.document.canonical` bytes of
    the document's ``_id``, and as payload a map: ``id`` (the ``_id``), ``doc`` (the document, a
    stored value itself), ``type`` (the item's class), ``spider``, ``url`` (of the request;
    ``None`` if unknown), ``at`` (epoch seconds).

    Raises:
        SettingError: A setting has a value that is not allowed.
        StoreLocked, StoreDamaged, StoreError: On opening, see
            :class:`~scrapy_ha.pipelines.spool.Spool`.
    """

    def __init__(self, crawler: Crawler) -> None:
        settings = crawler.settings
        self._crawler = crawler
        self._stats: Any = crawler.stats
        self._run = run_of(crawler)
        self._key = _load_key(declared.read(settings, "HA_ITEM_KEY"))
        self._policy: str = declared.read(settings, "HA_FSYNC")
        self._ticker = Ticker(declared.read(settings, "HA_FSYNC_INTERVAL"), self._sync)
        self._mongo_wanted = bool(settings.get("MONGO_URI"))
        self._spool: Spool | None = None
        self._failure: StoreError | None = None
        self._items = 0
        self._kinds: set[str] = set()
        self._unsynced: list[Deferred[None]] = []
        self._syncing = False

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        return cls(crawler)

    # What Scrapy calls. Scrapy 2.13 passes the spider; later releases warn of those that need it.

    def open_spider(self, spider: Spider | None = None) -> None:
        assert self._crawler.spider is not None
        self._name = self._crawler.spider.name
        spool = Spool(declared.directory(self._crawler.settings, self._name) / "spool")
        try:
            recovery = spool.open()
        except HAError as error:
            logger.error("%s", error)
            raise
        self._spool = spool
        self._dead_letters = ItemDeadLetters(spool.path / DEAD_LETTERS)
        for name, value in (
            (stats.SPOOL_TORN_BYTES, recovery.torn_bytes),
            (stats.SPOOL_DAMAGED_BYTES, recovery.damaged_bytes),
        ):
            if value:
                self._stats.set_value(name, value)
        if self._mongo_wanted:
            logger.warning(
                "MONGO_URI is set, but writing to MongoDB comes in a later version of scrapy_ha: items are "
                "kept in the spool %s",
                spool.path,
            )
        self._run.durables.append(self)
        if self._policy == "interval":
            self._ticker.start()

    async def process_item(self, item: Any, spider: Spider | None = None) -> Any:
        page = current_page.get()
        try:
            if self._failure is None:
                self._store(item, page)
                if self._policy == "always" and not self._tracked(page):
                    await self._synced()
        except StoreError as error:
            self._fail(error, page)
        if self._failure is not None:
            self._stats.inc_value(stats.SPOOL_NOT_STORED)
            raise DropItem(f"Not stored: {self._failure}")
        return item

    def close_spider(self, spider: Spider | None = None) -> Awaitable[None]:
        closing = self._close()
        # Scrapy 2.13 waits for a Deferred only; later releases warn of one.
        return closing if hasattr(defer, "ensure_awaitable") else spawn(closing)

    async def _close(self) -> None:
        if self._spool is None:
            return
        await self._ticker.stop()
        try:
            self._spool.flush()
            if self._policy != "never":
                await in_thread(self.fsync)
        except StoreError as error:
            self._fail(error, None)
        with suppress(StoreError):  # reported just now
            self._spool.close()
        logger.info(
            "%d items were stored in the spool %s, which takes %d bytes now; to write them out: "
            "scrapy ha spool export FILE.jsonl %s",
            self._items,
            self._spool.path,
            self._spool.size,
            self._name,
        )

    # As a Durable

    def settle(self, page: Request) -> None:
        if self._failure is not None:
            raise self._failure
        self._opened.flush()

    def marks(self) -> Mapping[str, bytes]:
        return {}

    def fsync(self) -> None:
        self._opened.fsync()
        self._dead_letters.fsync()

    # Storing

    @property
    def _opened(self) -> Spool:
        assert self._spool is not None
        return self._spool

    def _store(self, item: Any, page: Request | None) -> None:
        try:
            document = to_document(item)
            identity = identify(item, document, self._key)
            record = {
                "id": identity,
                "doc": encode_value(document, "item"),
                "type": global_object_name(type(item)),
                "spider": self._name,
                "url": None if page is None else page.url,
                "at": self._run.clock.time(),
            }
            self._opened.append(canonical(identity), encode_value(record, "record"))
        except StoreError:
            raise
        except Unserializable as error:
            self._set_aside(item, page, error.kind, str(error))
        except Exception as error:  # whatever an item of the project raises when it is read
            self._set_aside(item, page, f"item:{type(error).__name__}", f"It cannot be read: {error!r}")
        else:
            self._opened.flush()
            self._items += 1
            self._stats.inc_value(stats.SPOOL_ITEMS)

    def _set_aside(self, item: Any, page: Request | None, kind: str, reason: str) -> None:
        record = {
            "at": self._run.clock.time(),
            "spider": self._name,
            "url": None if page is None else page.url,
            "type": global_object_name(type(item)),
            "kind": kind,
            "reason": reason[:_REASON_LIMIT],
        }
        self._dead_letters.add(record, item)
        self._stats.inc_value(stats.SPOOL_DEAD_LETTERS)
        if kind not in self._kinds and len(self._kinds) < _KINDS_LOGGED:
            self._kinds.add(kind)
            logger.error(
                "An item was not stored, but set aside in %s (said once per kind): %s",
                self._dead_letters.path,
                record["reason"],
            )

    def _tracked(self, page: Request | None) -> bool:
        """Whether the scheduler has us settle *page*, and reports when that fails."""
        return page is not None and self._run.tracks(page)

    def _fail(self, error: StoreError, page: Request | None) -> None:
        """Store nothing more, and close the spider. From now on no page counts as done."""
        if self._failure is not None:
            return
        self._failure = error
        reason = "disk_full" if isinstance(error, StoreFull) else "store_error"
        if not self._tracked(page):
            logger.error("Closing the spider (%s): %s", reason, error)
        close_spider(self._crawler, reason)

    async def _sync(self) -> None:
        try:
            await in_thread(self.fsync)
        except StoreError as error:
            self._fail(error, None)

    async def _synced(self) -> None:
        """Return once everything stored so far is fsynced; items that wait share one fsync."""
        done: Deferred[None] = Deferred()
        self._unsynced.append(done)
        if not self._syncing:
            self._syncing = True
            spawn(self._rounds())
        await defer.maybe_deferred_to_future(done)

    async def _rounds(self) -> None:
        while self._unsynced:
            waiting, self._unsynced = self._unsynced, []
            await self._sync()
            for done in waiting:
                done.callback(None)
        self._syncing = False


def _load_key(spec: KeySpec) -> KeySpec:
    """*spec* with the path of a callable (a text with a dot or a colon) replaced by the callable.

    Raises:
        SettingError: There is no callable at that path.
    """
    if not isinstance(spec, str) or not {".", ":"} & set(spec):
        return spec
    try:
        found = load_object(spec.replace(":", "."))
    except (ImportError, NameError, ValueError) as error:
        raise SettingError(
            f"HA_ITEM_KEY = {spec!r} is not allowed: it is taken for the path of a callable, and {error}. "
            f"For a field of that name write [{spec!r}]."
        ) from error
    if not callable(found):
        raise SettingError(f"HA_ITEM_KEY = {spec!r} is not allowed: what is there cannot be called")
    key: Callable[[Any], Any] = found
    return key
