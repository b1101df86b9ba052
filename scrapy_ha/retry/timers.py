"""Where retries wait when the crawl's scheduler keeps no times: on timers, outside the engine."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable
from heapq import heappop, heappush
from itertools import count
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from scrapy import Request, signals
from scrapy.exceptions import DontCloseSpider, IgnoreRequest

from scrapy_ha import stats as names
from scrapy_ha.lifecycle import enqueue, is_closing, watch
from scrapy_ha.loop import Timer, call_later
from scrapy_ha.run import current_page, run_of
from scrapy_ha.state import State, get_state, is_retry_of, set_state, start_clean

if TYPE_CHECKING:
    from scrapy import Spider
    from scrapy.crawler import Crawler

logger = logging.getLogger(__name__)

LIMIT = 50_000
"""Requests on the timers from which on :meth:`Timers.takes` says no. There may come to be a few more, up to
``CONCURRENT_REQUESTS`` and what callbacks and the scheduler bring. It bounds memory."""
BATCH = 100
"""Requests sent in one turn of the event loop."""


class Timers:
    """Keeps requests off the engine until they are due, for schedulers other than ours.

    A retry that carries a due time (``due`` of its :class:`~scrapy_ha.state.State`) goes the way of
    any retry: a downloader middleware returns it, or a callback yields it. When the engine is about
    to schedule it, it is put on the timers instead, and scheduled when it is due. So the request
    that failed ends as ever: silently, with neither callback nor errback, and the retry takes up
    no concurrency while it waits. ``request_scheduled`` is sent both times.

    The spider stays open for what waits. When it closes, the scheduler gets what waits, due times
    included: one that keeps requests (``JOBDIR``, scrapy-redis) hands them out in a later run, or on
    another worker, and there they wait for the rest of their time. ``kill -9`` loses what waits, as
    it loses what is in flight.

    With :class:`~scrapy_ha.scheduler.HAScheduler`, which keeps due times itself, nothing waits here.
    With either, a retry that a callback or errback asks for (``get_retry_request``) gets a due time.

    Args:
        retried_by_callback: Called with a retry that a callback asked for and with the page that it
            ran on; gives the retry its state and returns when it is due, epoch seconds.
        later: Calls a function after so many seconds.
    """

    def __init__(
        self,
        crawler: Crawler,
        retried_by_callback: Callable[[Request, Request], float],
        later: Callable[[float, Callable[[], object]], Timer] = call_later,
    ) -> None:
        self._crawler = crawler
        self._run = run_of(crawler)
        self._stats: Any = crawler.stats
        self._retried_by_callback = retried_by_callback
        self._later = later
        self._attends = False
        self._handed_out: WeakSet[Request] = WeakSet()
        self._waiting: list[tuple[float, int, Request]] = []
        self._order = count()
        self._timer: Timer | None = None
        self._timer_at = math.inf
        self._said_full = False
        self._run.retried = self._retried
        crawler.signals.connect(self._opened, signals.spider_opened)
        crawler.signals.connect(self._scheduled, signals.request_scheduled)
        crawler.signals.connect(self._idle, signals.spider_idle)

    def __len__(self) -> int:
        return len(self._waiting)

    def handed_out(self, request: Request) -> bool:
        """Whether the engine got *request* from the scheduler, where that is not ours."""
        return request in self._handed_out

    def takes(self, request: Request) -> bool:
        """Whether a retry of *request* may wait here: its ``due`` will be kept to.

        Not when the engine did not get it from the scheduler (``robots.txt``, media,
        ``engine.download_async``), nor when too many wait, which is counted and said once.
        """
        if not self.handed_out(request):
            return False
        if len(self._waiting) < LIMIT:
            return True
        self._stats.inc_value(names.TIMERS_FULL)
        if not self._said_full:
            self._said_full = True
            logger.warning(
                "%d retries are waiting for their time; further ones wait in the downloader, as one of "
                "CONCURRENT_REQUESTS each. SCHEDULER = 'scrapy_ha.scheduler.HAScheduler' has no such limit",
                len(self._waiting),
            )
        return False

    def put(self, request: Request, due: float) -> None:
        """Have the engine schedule *request* at *due*, epoch seconds, or soon when that is past."""
        set_state(request, {**get_state(request), "due": due})
        if self._run.hold(request):
            heappush(self._waiting, (due, next(self._order), request))
            self._arm()

    def dump(self) -> list[Request]:
        """What waits, in the order in which it is due; each carries its due time."""
        return [request for _, _, request in sorted(self._waiting)]

    def restore(self, requests: Iterable[Request]) -> None:
        """Have *requests*, such as :meth:`dump` gave, wait again for the times that they carry."""
        for request in requests:
            self.put(request, _due(request))

    # Signals

    def _opened(self) -> None:
        if self._run.keeping_times:  # then its scheduler asks; a signal for each link costs too much
            self._crawler.signals.disconnect(self._scheduled, signals.request_scheduled)
        else:
            watching = watch(self._crawler)
            # Before any other: who comes after it may rely on the engine's getting what it sees.
            watching.admitted.insert(0, self._admit)
            watching.closing.append(self._hand_over)
            watching.attend()
            self._attends = True

    def _scheduled(self, request: Request, spider: Spider) -> None:
        page = current_page.get()
        if page is not None:
            if is_retry_of(request, page):
                self._retried(request, page)
            elif self._attends and not _due(request):
                start_clean(request, page)
        if self._attends and self._waits(request):
            raise IgnoreRequest("scheduled when it is due")

    def _retried(self, request: Request, page: Request) -> None:
        if not _due(request):  # otherwise it is the retry middleware's
            due = self._retried_by_callback(request, page)
            set_state(request, {**get_state(request), "due": due})

    def _idle(self) -> None:
        if self._waiting:
            raise DontCloseSpider

    # The scheduler

    def _admit(self, request: Request) -> bool:
        """Whether the engine gets *request* now, which an earlier run or another worker may have stored."""
        if self._waits(request):
            return False
        self._handed_out.add(request)
        return True

    def _hand_over(self) -> None:
        """Give the scheduler what waits."""
        waiting, self._waiting = self.dump(), []
        self._arm()
        if not waiting:
            return
        failures = []
        for request in waiting:
            try:
                enqueue(self._crawler, request)
            except Exception as error:
                failures.append(error)
        self._stats.inc_value(names.HANDED_OVER, len(waiting) - len(failures))
        logger.info("%d retries were waiting for their time and went to the scheduler", len(waiting))
        if failures:
            logger.error(
                "%d of them were lost, as the scheduler refused them: %s",
                len(failures),
                failures[0],
                exc_info=failures[0],
            )

    # Time

    def _waits(self, request: Request) -> bool:
        """Put *request* on the timers if it is not due yet; otherwise take off its due time."""
        due = _due(request)
        if due > self._run.clock.time():
            self._stats.inc_value(names.TIMED)
            self.put(request, due)
            return True
        _forget_due(request)
        return False

    def _arm(self) -> None:
        at = self._waiting[0][0] if self._waiting else math.inf
        if at == self._timer_at:
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._timer_at = at
        if self._waiting:
            self._timer = self._later(max(at - self._run.clock.time(), 0.0) + 0.001, self._fire)

    def _fire(self) -> None:
        self._timer, self._timer_at = None, math.inf
        # A timer runs in the context of where it was set, which may have been a page's.
        current_page.set(None)
        if is_closing(self._crawler):
            return  # it will all go to the scheduler
        engine: Any = self._crawler.engine
        now = self._run.clock.time()
        for _ in range(BATCH):
            if not self._waiting or self._waiting[0][0] > now:
                break
            _, _, request = heappop(self._waiting)
            _forget_due(request)
            engine.crawl(request)
        self._arm()


def _due(request: Request) -> float:
    """When *request* is due; 0 for at once. Anyone may have written it, so anything may stand there."""
    due = get_state(request).get("due", 0.0)
    return float(due) if isinstance(due, (int, float)) and math.isfinite(due) else 0.0


def _forget_due(request: Request) -> None:
    # A new dict, as copies of the request share the old one.
    state: State = {**get_state(request)}
    if "due" in state:
        del state["due"]
        set_state(request, state)
