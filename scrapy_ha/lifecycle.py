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

from collections.abc import AsyncIterator, Callable, Iterable
from functools import wraps
from typing import TYPE_CHECKING, Any

from scrapy import Request

from scrapy_ha.run import current_page

if TYPE_CHECKING:
    from scrapy.crawler import Crawler


class _InProgress(set[Request]):
    """A set that says what leaves it."""

    def __init__(self, requests: Iterable[Request], left: Callable[[Request], None]) -> None:
        super().__init__(requests)
        self._left = left

    def remove(self, request: Request) -> None:
        super().remove(request)
        self._left(request)


class Lifecycle:
    """Watches the engine of *crawler*. Make one while the scheduler is being opened.

    Args:
        ended: Called with each request, scheduled or not, when the engine is done with it.
        began: Called with a request when its callback or errback is about to run.

    Neither may raise.
    """

    def __init__(
        self,
        crawler: Crawler,
        ended: Callable[[Request], None],
        began: Callable[[Request], None] = lambda request: None,
    ) -> None:
        engine: Any = crawler.engine
        self._engine = engine
        slot = engine._slot
        slot.inprogress = _InProgress(slot.inprogress, ended)
        _follow_pages(engine.scraper, began)

    def wrap_start(self, wrap: Callable[[AsyncIterator[Any]], AsyncIterator[Any]]) -> None:
        """Put *wrap* around the iterator of start items and requests."""
        if self._engine._start is not None:
            self._engine._start = wrap(self._engine._start)

    def wake(self) -> None:
        """Have the engine ask the scheduler for requests soon."""
        slot = self._engine._slot
        if slot is not None and slot.closing is None:
            slot.nextcall.schedule()


def attend(crawler: Crawler, admit: Callable[[Request], bool], closing: Callable[[], None]) -> None:
    """Stand between the engine and a scheduler that knows nothing of this package.

    :data:`current_page` is kept as :class:`Lifecycle` keeps it. Call this once, when the scheduler
    is open; not together with a :class:`Lifecycle`.

    Args:
        admit: Called with each request that the scheduler hands out. False: the engine does not
            get it, and the scheduler is asked for another one.
        closing: Called when no request is in progress any more and the scheduler is about to be
            closed, while it still takes requests.

    Neither may raise.
    """
    engine: Any = crawler.engine
    scheduler = engine._slot.scheduler
    hand_out: Callable[[], Request | None] = scheduler.next_request
    close: Callable[[str], Any] = getattr(scheduler, "close", lambda reason: None)

    def next_request() -> Request | None:
        # The engine may call from the context of a page; what it starts now is no part of that.
        current_page.set(None)
        while (request := hand_out()) is not None:
            if admit(request):
                return request
        return None

    def close_scheduler(reason: str) -> Any:
        closing()
        return close(reason)

    scheduler.next_request = next_request
    scheduler.close = close_scheduler
    _follow_pages(engine.scraper)


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
