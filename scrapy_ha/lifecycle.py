"""When a request is done, and whose output is being processed.

Scrapy has no signal for either. This is the one module that looks into private parts of its
engine; ``tests/unit/test_lifecycle.py`` fails loudly when a release moves them:

- ``engine._slot.inprogress``: the set of requests being worked on. A request leaves it when its
  callback or errback has run to the end, its child requests are scheduled and its items are
  through the pipelines; or when it was dropped, redirected, retried.
- ``engine._slot.closing``: set from the moment when the spider begins to close.
- ``engine._slot.nextcall``: asks the engine to look for the next request.
- ``engine._slot.scheduler``: the scheduler in use; public as ``engine.scheduler`` from Scrapy 2.19 on.
- ``engine._start``: the iterator of start items and requests.
- ``engine.scraper.call_spider_async`` and ``handle_spider_output_async``: run callbacks and
  errbacks, and process what they yield; ``_process_spidermw_output`` processes one thing, where
  there is no asyncio and the context is that of another page.
"""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator, Callable, Iterable
from functools import wraps
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from scrapy import Request

from scrapy_ha.run import current_page
from scrapy_ha.stats import SCHEDULER_BROKEN

if TYPE_CHECKING:
    from scrapy.crawler import Crawler


logger = logging.getLogger(__name__)

BROKEN_LIMIT = 10
"""Failures of the scheduler in one turn, after which the engine asks again in the next one."""


class _InProgress(set[Request]):
    """A set that says what leaves it."""

    def __init__(self, requests: Iterable[Request], left: Callable[[Request], None]) -> None:
        super().__init__(requests)
        self._left = left

    def remove(self, request: Request) -> None:
        super().remove(request)
        self._left(request)


class Watch:
    """What happens to the requests of one crawl, between engine, scheduler and scraper.

    Whoever wants to know puts a function into one of the lists. None of them may raise.
    """

    def __init__(self, crawler: Crawler) -> None:
        self.began: list[Callable[[Request], None]] = []
        """Called with a request when its callback or errback is about to run."""
        self.ended: list[Callable[[Request], None]] = []
        """Called with each request, scheduled or not, when the engine is done with it."""
        self.offered: list[Callable[[Request], bool]] = []
        """Called with each request that the scheduler is about to get. False: it does not get it."""
        self.enqueued: list[Callable[[Request, bool], None]] = []
        """Called after that, with whether the scheduler took it."""
        self.asked: list[Callable[[], bool]] = []
        """Called when the engine asks for a request. False: it gets none now."""
        self.admitted: list[Callable[[Request], bool]] = []
        """Called with each request that the scheduler hands out. False: the engine does not get it, and
        the scheduler is asked for another one."""
        self.closing: list[Callable[[], None]] = []
        """Called when no request is in progress any more and the scheduler is about to be closed, while
        it still takes requests."""
        self.closed: list[Callable[[str], None]] = []
        """Called after those, with the reason."""
        engine: Any = crawler.engine
        self._engine = engine
        slot = engine._slot
        slot.inprogress = _InProgress(slot.inprogress, self._left)
        _follow_pages(engine.scraper, self._begin)
        self._attends = False
        self._stats: Any = crawler.stats
        self.notes_stuck = False
        """Whether :attr:`stuck_since` is wanted."""
        self.stuck_since: float | None = None
        """Since when it has had requests, as it says, and handed out none; by the monotonic clock."""

    def wrap_start(self, wrap: Callable[[AsyncIterator[Any]], AsyncIterator[Any]]) -> None:
        """Put *wrap* around the iterator of start items and requests."""
        if self._engine._start is not None:
            self._engine._start = wrap(self._engine._start)

    def wake(self) -> None:
        """Have the engine ask the scheduler for requests soon."""
        slot = self._engine._slot
        if slot is not None and slot.closing is None:
            slot.nextcall.schedule()

    @property
    def scheduler(self) -> Any:
        """The one in use."""
        return self._engine._slot.scheduler

    def attend(self) -> None:
        """Stand between the engine and a scheduler that knows nothing of this package; idempotent.

        Call this when the scheduler is open. The lists from :attr:`offered` on are for this alone.
        """
        if self._attends:
            return
        self._attends = True
        scheduler = self._engine._slot.scheduler
        hand_out: Callable[[], Request | None] = scheduler.next_request
        take: Callable[[Request], bool] = scheduler.enqueue_request
        close: Callable[[str], Any] = getattr(scheduler, "close", lambda reason: None)

        def next_request() -> Request | None:
            # The engine may call from the context of a page; what it starts now is no part of that.
            current_page.set(None)
            if not all(may() for may in self.asked):
                return None
            broken = 0
            while broken < BROKEN_LIMIT:
                try:
                    request = hand_out()
                except Exception as error:  # a queue on disk that was cut short, for one
                    broken += 1
                    self._say_broken(error)
                    continue
                if request is None:
                    break
                self.stuck_since = None
                if all(admits(request) for admits in self.admitted):
                    return request
            if broken:
                self.wake()
            elif self.notes_stuck and self.stuck_since is None and scheduler.has_pending_requests():
                self.stuck_since = time.monotonic()
            return None

        def enqueue_request(request: Request) -> bool:
            if not all(takes(request) for takes in self.offered):
                return False
            taken = take(request)
            for know in self.enqueued:
                know(request, taken)
            return taken

        def close_scheduler(reason: str) -> Any:
            for know in self.closing:
                know()
            for know_reason in self.closed:
                know_reason(reason)
            return close(reason)

        scheduler.next_request = next_request
        scheduler.enqueue_request = enqueue_request
        scheduler.close = close_scheduler

    def _say_broken(self, error: Exception) -> None:
        self._stats.inc_value(SCHEDULER_BROKEN)
        if self._stats.get_value(SCHEDULER_BROKEN) == 1:
            logger.error("The scheduler failed to hand out a request (said once): %s", error, exc_info=error)

    def _begin(self, request: Request) -> None:
        for know in self.began:
            know(request)

    def _left(self, request: Request) -> None:
        for know in self.ended:
            know(request)


_watches: WeakKeyDictionary[Crawler, Watch] = WeakKeyDictionary()


def watch(crawler: Crawler) -> Watch:
    """The :class:`Watch` of *crawler*, made on first use: when the scheduler is being opened, or later."""
    found = _watches.get(crawler)
    if found is None:
        found = _watches[crawler] = Watch(crawler)
    return found


def enqueue(crawler: Crawler, request: Request) -> bool:
    """Give *request* to the scheduler in use, past the engine; whether it was taken."""
    engine: Any = crawler.engine
    return bool(engine._slot.scheduler.enqueue_request(request))


def is_closing(crawler: Crawler) -> bool:
    """Whether the spider is closing or closed; Scrapy's signals say so only when it is over."""
    try:
        engine: Any = crawler.engine
    except RuntimeError:  # from Scrapy 2.18 on, when there is none yet
        return False
    if engine is None:
        return False
    return engine._slot is None or engine._slot.closing is not None


def _follow_pages(scraper: Any, began: Callable[[Request], None] = lambda request: None) -> None:
    """Set :data:`current_page` wherever *scraper* works on a page."""
    scraper.call_spider_async = _within_page(scraper.call_spider_async, began)
    scraper.handle_spider_output_async = _within_page(scraper.handle_spider_output_async)
    scraper._process_spidermw_output = _within_page_of_response(scraper._process_spidermw_output)


def _within_page(
    method: Callable[..., Any], began: Callable[[Request], None] = lambda request: None
) -> Callable[..., Any]:
    """*method*, whose second argument is a request, with :data:`current_page` set to that.

    Every page is processed in a context of its own, so the value needs no resetting there. The
    scheduler resets it where the engine starts a download from the context of a page.
    """

    @wraps(method)
    async def within(result: Any, request: Request, *args: Any, **kwargs: Any) -> Any:
        current_page.set(request)
        began(request)
        return await method(result, request, *args, **kwargs)

    return within


def _within_page_of_response(method: Callable[..., Any]) -> Callable[..., Any]:
    """The same for a *method* whose second argument is a response, or the failure in its place."""

    @wraps(method)
    def within(output: Any, response: Any, *args: Any, **kwargs: Any) -> Any:
        current_page.set(getattr(response, "request", None))
        return method(output, response, *args, **kwargs)

    return within
