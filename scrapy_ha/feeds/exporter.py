"""HAFeedExporter: Scrapy's feed exports, as part of what an acknowledgement waits for."""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scrapy.extensions.feedexport import FeedExporter, FileFeedStorage, StdoutFeedStorage
from scrapy.utils.misc import build_from_crawler

from scrapy_ha import settings as declared
from scrapy_ha.errors import BadRecord, StoreError
from scrapy_ha.feeds import formats
from scrapy_ha.feeds.files import FeedFile, FeedFiles, store_error
from scrapy_ha.feeds.journal import Journal
from scrapy_ha.feeds.marks import Mark
from scrapy_ha.feeds.snapshot import snapshot
from scrapy_ha.feeds.storage import LocalFeedStorage, on_top_of
from scrapy_ha.run import current_page, run_of

if TYPE_CHECKING:
    from scrapy import Request, Spider
    from scrapy.crawler import Crawler
    from scrapy.extensions.feedexport import FeedSlot
    from scrapy.http import Response

logger = logging.getLogger(__name__)

PART = "feeds:"
"""Marks are named ``feeds:<URI as in the settings>``; ``feeds:`` alone is the journal's."""

_USER = re.compile(r"(?<=://)[^/@]*@")
"""User and password of a URI, which are neither stored nor logged."""


class HAFeedExporter(FeedExporter):
    """In place of Scrapy's own: feeds in local files hold every item exactly once, over any kills.

    What a page gives is held in memory until the page is done, and then written. How long each
    file is by then is stored in one step with the page's acknowledgement. A resumed crawl cuts
    the files back to that and goes on in them, also where it would overwrite, in the same batch
    and under the same name. All formats of Scrapy's are covered, and their files are whole
    whenever a page has ended. A feed that is not covered is named in a warning at the start; on
    a resumed crawl a local file of it is renamed before a new one is begun.

    With a scheduler that does not acknowledge pages everything is as in Scrapy.
    """

    def __init__(self, crawler: Crawler) -> None:
        super().__init__(crawler)
        self._run = run_of(crawler)
        self._hold_limit: int = declared.read(crawler.settings, "HA_FEEDS_HOLD_LIMIT")
        self._held: dict[Request, list[Any]] = {}
        self._warned_of_limit = False
        self._files = FeedFiles()
        for scheme, storage in self.storages.items():
            if isinstance(storage, type) and issubclass(storage, FileFeedStorage):
                self.storages[scheme] = on_top_of(storage, self._files, self.exporters)
        self._run.durables.append(self)
        self._run.has_feeds = True

    # Signals

    def open_spider(self, spider: Spider) -> None:
        super().open_spider(spider)
        if not self._run.tracking:
            return
        self._files.active = True
        self._files.resumed = self._run.resumed
        directory = declared.directory(self.settings, spider.name)
        try:
            self._begin(Journal(Path(directory) / "feeds.journal"))
        except OSError as error:
            # A signal handler cannot end the crawl. The first page that ends does.
            self._files.fail(store_error(error, error.filename or str(directory)))
            raise
        except StoreError as error:
            self._files.fail(error)
            raise

    def item_scraped(self, item: Any, spider: Spider, response: Response | None = None) -> None:
        page = self._page(response)
        if page is None:
            self._export(item, spider)
            return
        held = self._held.setdefault(page, [])
        held.append(snapshot(item))
        if len(held) >= self._hold_limit:
            self._warn_of_limit(page)
            items = held.copy()
            held.clear()
            self._export_all(items, page)

    async def close_spider(self, spider: Spider) -> None:
        if self._held:
            logger.info("%d pages did not end; the next run fetches them again", len(self._held))
            self._held.clear()
        await super().close_spider(spider)

    # Durable

    def settle(self, page: Request) -> None:
        items = self._held.pop(page, None)
        if items:
            self._export_all(items, page)
            for slot in self.slots:
                if isinstance(slot.storage, StdoutFeedStorage) and slot.file is not None:
                    with contextlib.suppress(OSError):
                        slot.file.flush()
        self._files.settle()

    def marks(self) -> dict[str, bytes]:
        self._files.settle()
        marks = {_key(slot): _mark_of(slot).dump() for slot in self.slots}
        if self._files.journal is not None:
            marks[PART] = str(self._files.journal.size).encode()
        return marks

    def fsync(self) -> None:
        self._files.fsync()

    # Exporting

    def _page(self, response: Response | None) -> Request | None:
        """The page that an item belongs to, if it will be settled."""
        for page in (current_page.get(), getattr(response, "request", None)):
            if page is not None and self._run.tracks(page):
                return page
        return None

    def _export_all(self, items: Iterable[Any], page: Request) -> None:
        spider = self.crawler.spider
        assert spider is not None
        for item in items:
            try:
                self._export(item, spider)
            except StoreError:
                raise
            except Exception:
                # As in Scrapy, where a signal handler's errors are logged: the crawl goes on.
                logger.exception("An item of %s could not be exported", page, extra={"spider": spider})

    def _export(self, item: Any, spider: Spider) -> None:
        if self._files.error is not None:
            raise self._files.error
        slots: list[Any] = self.slots
        try:
            super().item_scraped(item, spider)
        except StoreError as error:
            self._files.fail(error)
            raise
        for slot in slots:
            if isinstance(slot.file, FeedFile) and not slot.file.closing:
                slot.file.closing = formats.closing(slot.exporter)

    def _warn_of_limit(self, page: Request) -> None:
        if self._warned_of_limit:
            return
        self._warned_of_limit = True
        logger.warning(
            "%s gave %d items, and no more are held (HA_FEEDS_HOLD_LIMIT): they are written before the page "
            "is done, and come twice if the process is killed before. Further pages like it are not named.",
            page,
            self._hold_limit,
        )

    # Going on

    def _begin(self, journal: Journal) -> None:
        begun: frozenset[str] = frozenset()
        templates = {slot.uri_template: _key(slot) for slot in self.slots}
        if self._run.resumed:
            stands = self._run.marks.get(PART, b"")
            begun = journal.undo(int(stands) if stands.isdigit() else 0)
        else:
            journal.begin(templates.values())
        self._files.journal = journal
        for slot in self.slots:
            gap = _gap(slot)
            if gap is not None:
                logger.warning(
                    "The feed %s is not covered: %s. After a kill it lacks items or holds some twice.",
                    _USER.sub("", slot.uri),
                    gap,
                )
            if self._run.resumed:
                self._resume(slot, gap is None, begun)

    def _resume(self, slot: FeedSlot, covered: bool, begun: frozenset[str]) -> None:
        mark = self._mark(_key(slot))
        storage: Any = slot.storage
        if mark is None:
            # Known from the beginning, and without a mark: no page was acknowledged yet.
            if covered:
                storage.keep = _key(slot) not in begun
            return
        if not covered and not slot.feed_options["batch_item_count"]:
            return
        user = _USER.search(slot.uri)
        slot.uri = mark.uri if user is None else mark.uri.replace("://", f"://{user[0]}", 1)
        slot.batch_id = mark.batch_id
        storage = build_from_crawler(type(storage), self.crawler, slot.uri, feed_options=slot.feed_options)
        slot.storage = storage
        if covered and mark.position is not None and storage.go_on(mark.position, mark.last):
            self._go_on(slot, mark)

    def _go_on(self, slot: Any, mark: Mark) -> None:
        slot.itemcount = mark.items
        slot.start_exporting()
        configured = formats.fields(slot.exporter)
        if configured and mark.fields and configured != mark.fields:
            logger.warning(
                "The feed %s keeps the columns that it has; those in the settings differ", slot.uri
            )
        slot.file.unmute()
        formats.go_on(slot.exporter, mark.items, mark.fields)
        slot.file.closing = formats.closing(slot.exporter)
        slot.file.write_out()

    def _mark(self, key: str) -> Mark | None:
        stored = self._run.marks.get(key)
        if stored is None:
            return None
        try:
            return Mark.load(stored)
        except BadRecord as error:
            logger.error("%s: %s", key, error)
            return None


def _gap(slot: FeedSlot) -> str | None:
    """Why a feed cannot be continued; ``None`` if it can."""
    if isinstance(slot.storage, LocalFeedStorage):
        return slot.storage.gap()
    if isinstance(slot.storage, StdoutFeedStorage):
        return "standard output cannot be taken back"
    return f"{type(slot.storage).__name__} gets a file only when it is complete"


def _key(slot: FeedSlot) -> str:
    return PART + _USER.sub("", slot.uri_template)


def _mark_of(slot: FeedSlot) -> Mark:
    file: Any = slot.file
    mark = Mark(_USER.sub("", slot.uri), slot.batch_id, slot.itemcount)
    if not isinstance(file, FeedFile):
        return mark
    return Mark(mark.uri, mark.batch_id, mark.items, file.position, file.last, formats.fields(slot.exporter))
