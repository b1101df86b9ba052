"""When a request is done, and whose output is being processed.

Scrapy has no signal for either. This is the one module that looks into private parts of its
engine; ``tests/unit/test_lifecycle.py`` fails loudly when a release moves them:

- ``engine._slot.inprogress``: the set of requests being worked on. A request leaves it when its
  callback or errback has run to the end, its child requests are scheduled and its items are
  through the pipelines; or when it was dropped, redirected, retried.
- ``engine._slot.closing``: set from the moment when the spider begins to close.
- ``engine._slot.nextcall``: asks the engine to look for the next request.
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
        scraper = engine.scraper
        scraper.call_spider_async = _within_page(scraper.call_spider_async, began)
        scraper.handle_spider_output_async = _within_page(scraper.handle_spider_output_async)
        scraper._process_spidermw_output = _within_page_of_response(scraper._process_spidermw_output)

    def wrap_start(self, wrap: Callable[[AsyncIterator[Any]], AsyncIterator[Any]]) -> None:
        """Put *wrap* around the iterator of start items and requests."""
        if self._engine._start is not None:
            self._engine._start = wrap(self._engine._start)

    def wake(self) -> None:
        """Have the engine ask the scheduler for requests soon."""
        slot = self._engine._slot
        if slot is not None and slot.closing is None:
            slot.nextcall.schedule()


def is_closing(crawler: Crawler) -> bool:
    """Whether the spider is closing or closed; Scrapy's signals say so only when it is over."""
    slot: Any = getattr(crawler.engine, "_slot", None)
    return slot is None or slot.closing is not None


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
