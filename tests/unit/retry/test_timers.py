"""What waits on the timers, for how long, and where it goes when the spider closes."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scrapy import Request, Spider, signals
from scrapy.core.scheduler import BaseScheduler
from scrapy.crawler import Crawler
from scrapy.exceptions import DontCloseSpider, IgnoreRequest
from scrapy.statscollectors import MemoryStatsCollector
from twisted.python.failure import Failure

from scrapy_ha.retry import timers as module
from scrapy_ha.retry.timers import Timers
from scrapy_ha.run import current_page, run_of
from scrapy_ha.state import META_KEY, get_state
from scrapy_ha.testing import FakeClock

URL = "http://a.test/page"
NOW = 1000.0


@pytest.fixture(autouse=True)
def _no_page() -> Iterator[None]:
    token = current_page.set(None)
    yield
    current_page.reset(token)


class Queue(BaseScheduler):
    """The least that Scrapy takes for a scheduler."""

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self.closed: str | None = None
        self.broken = False

    def enqueue_request(self, request: Request) -> bool:
        if self.broken:
            raise ConnectionError("gone")
        self.requests.append(request)
        return True

    def next_request(self) -> Request | None:
        return self.requests.pop(0) if self.requests else None

    def has_pending_requests(self) -> bool:
        return bool(self.requests)

    def close(self, reason: str) -> None:
        self.closed = reason


class Engine:
    """Schedules as Scrapy's engine does."""

    def __init__(self, crawler: Any, scheduler: Queue) -> None:
        self._crawler = crawler
        self._slot = SimpleNamespace(scheduler=scheduler, closing=None, inprogress=set())
        self.scraper = SimpleNamespace(
            call_spider_async=None, handle_spider_output_async=None, _process_spidermw_output=None
        )
        for name in vars(self.scraper):
            setattr(self.scraper, name, print)  # not called here

    def crawl(self, request: Request) -> None:
        results = self._crawler.signals.send_catch_log(
            signals.request_scheduled, request=request, spider=None, dont_log=IgnoreRequest
        )
        for _, result in results:
            if isinstance(result, Failure) and isinstance(result.value, IgnoreRequest):
                return
        self._slot.scheduler.enqueue_request(request)


class Alarm:
    """What the event loop was asked to do."""

    def __init__(self, clock: FakeClock) -> None:
        self.clock = clock
        self.at = math.inf
        self.function: Callable[[], object] | None = None
        self.sets = 0

    def __call__(self, seconds: float, function: Callable[[], object]) -> Any:
        assert self.function is None, "one alarm at a time"
        self.at, self.function = self.clock.time() + seconds, function
        self.sets += 1
        return self

    def cancel(self) -> None:
        self.at, self.function = math.inf, None

    def run_until(self, time: float) -> None:
        while self.function is not None and self.at <= time:
            self.clock.advance(max(self.at - self.clock.time(), 0.0))
            function, self.function = self.function, None
            function()
        self.clock.advance(time - self.clock.time())


class Bench:
    def __init__(self, ours: bool = False) -> None:
        self.crawler: Any = Crawler(Spider)
        self.crawler.stats = MemoryStatsCollector(self.crawler)
        self.queue = Queue()
        self.engine = self.crawler.engine = Engine(self.crawler, self.queue)
        self.clock = FakeClock(NOW)
        run = run_of(self.crawler)
        run.clock = self.clock
        if ours:
            run.keeps_times = lambda page: True
        self.alarm = Alarm(self.clock)
        self.asked: list[tuple[Request, Request]] = []
        self.timers = Timers(self.crawler, self.retried_by_callback, self.alarm)
        self.crawler.signals.send_catch_log(signals.spider_opened, spider=None)

    def retried_by_callback(self, retry: Request, page: Request) -> float:
        self.asked.append((retry, page))
        return self.clock.time() + 5.0

    def stat(self, name: str) -> int:
        value: int = self.crawler.stats.get_value(name, 0)
        return value

    def hand_out(self) -> Request | None:
        request: Request | None = self.engine._slot.scheduler.next_request()
        return request

    def close(self) -> None:
        self.engine._slot.closing = object()
        self.engine._slot.scheduler.close("enough")


@pytest.fixture
def bench() -> Bench:
    return Bench()


def retry(due: Any, **meta: Any) -> Request:
    return Request(URL, meta={META_KEY: {"due": due, "attempts": {"server": 1}}, **meta}, dont_filter=True)


# Waiting


def test_scheduled_when_due_and_not_before(bench: Bench) -> None:
    """With its history, without its due time; a copy that someone kept is left as it was."""
    request = retry(NOW + 10)
    kept = request.copy()
    bench.engine.crawl(request)
    bench.alarm.run_until(NOW + 9.99)
    assert not bench.queue.requests
    bench.alarm.run_until(NOW + 10.01)
    assert bench.queue.requests == [request]
    assert get_state(request) == {"attempts": {"server": 1}}
    assert get_state(kept)["due"] == NOW + 10
    assert (len(bench.timers), bench.stat("ha/retry/timed")) == (0, 1)


def test_in_the_order_of_their_times(bench: Bench) -> None:
    """Whatever the order in which they came; with the same time, in that."""
    requests = {due: retry(NOW + due) for due in (7, 3, 9, 1)}
    for request in requests.values():
        bench.engine.crawl(request)
    twin = retry(NOW + 3)
    bench.engine.crawl(twin)
    bench.alarm.run_until(NOW + 20)
    assert bench.queue.requests == [requests[1], requests[3], twin, requests[7], requests[9]]


def test_one_alarm_for_all(bench: Bench) -> None:
    """A later request sets none, an earlier one sets it anew."""
    for due in (5, 6, 7, 2, 8):
        bench.engine.crawl(retry(NOW + due))
    assert bench.alarm.sets == 2
    assert bench.alarm.at == pytest.approx(NOW + 2, abs=0.01)


def test_many_at_once_leave_the_loop_room(bench: Bench) -> None:
    """So many in a turn, the others in the next ones."""
    for _ in range(3 * module.BATCH):
        bench.engine.crawl(retry(NOW + 1))
    bench.clock.advance(2)
    function, bench.alarm.function = bench.alarm.function, None
    assert function is not None
    function()
    assert len(bench.queue.requests) == module.BATCH
    bench.alarm.run_until(NOW + 3)
    assert len(bench.queue.requests) == 3 * module.BATCH


def test_a_time_that_is_past_is_no_wait(bench: Bench) -> None:
    """Nor is none at all."""
    requests = [retry(NOW), retry(1.0), Request(URL)]
    for request in requests:
        bench.engine.crawl(request)
    assert bench.queue.requests == requests
    assert not any("due" in get_state(request) for request in requests)


@given(
    st.none()
    | st.booleans()
    | st.integers(max_value=int(NOW))
    | st.floats(max_value=NOW)
    | st.sampled_from([math.nan, math.inf, -math.inf])
    | st.text()
    | st.lists(st.integers())
)
def test_nonsense_is_no_time(due: Any) -> None:
    """What anyone may have stored there; the request goes at once."""
    bench = Bench()
    request = retry(due)
    bench.engine.crawl(request)
    assert bench.queue.requests == [request]
    bench.queue.requests[:] = [retry(due)]
    assert bench.hand_out() is not None


@pytest.mark.parametrize("state", [None, 5, "due", ["due"], {"due": {}}, {}])
def test_nonsense_is_no_state(bench: Bench, state: Any) -> None:
    """Likewise."""
    request = Request(URL, meta={META_KEY: state})
    bench.engine.crawl(request)
    assert bench.hand_out() is request


# The spider stays open


def test_spider_stays_open_while_something_waits(bench: Bench) -> None:
    """And no longer."""

    def idle() -> list[Any]:
        results = bench.crawler.signals.send_catch_log(signals.spider_idle, dont_log=DontCloseSpider)
        return [result.value for _, result in results if isinstance(result, Failure)]

    assert idle() == []
    bench.engine.crawl(retry(NOW + 1))
    (raised,) = idle()
    assert isinstance(raised, DontCloseSpider)
    bench.alarm.run_until(NOW + 2)
    assert idle() == []


# Whose retries wait


def test_takes_what_the_scheduler_handed_out(bench: Bench) -> None:
    """That very request: neither a copy of it nor one that passed the scheduler by."""
    request = Request(URL)
    bench.engine.crawl(request)
    assert not bench.timers.takes(request)
    assert bench.hand_out() is request
    assert bench.timers.takes(request)
    assert not bench.timers.takes(request.copy())


def test_takes_no_more_than_fit(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Said once, counted each time; what became due makes room."""
    monkeypatch.setattr(module, "LIMIT", 2)
    bench.engine.crawl(Request(URL))
    request = bench.hand_out()
    assert request is not None
    for _ in range(2):
        assert bench.timers.takes(request)
        bench.engine.crawl(retry(NOW + 1))
    with caplog.at_level(logging.WARNING):
        assert not bench.timers.takes(request)
        assert not bench.timers.takes(request)
    assert len(caplog.records) == 1
    assert bench.stat("ha/retry/timers_full") == 2
    bench.alarm.run_until(NOW + 2)
    assert bench.timers.takes(request)


# What outlives the run


def test_closing_hands_over_what_waits(bench: Bench) -> None:
    """To the scheduler while it is open, earliest first, each with its time."""
    bench.engine.crawl(retry(NOW + 9))
    bench.engine.crawl(retry(NOW + 5))
    bench.close()
    assert [get_state(request)["due"] for request in bench.queue.requests] == [NOW + 5, NOW + 9]
    assert bench.queue.closed == "enough"
    assert bench.alarm.function is None
    assert bench.stat("ha/retry/handed_over") == 2


def test_nothing_is_sent_while_the_spider_closes(bench: Bench) -> None:
    """What becomes due meanwhile goes to the scheduler too."""
    bench.engine.crawl(retry(NOW + 1))
    bench.engine._slot.closing = object()
    bench.alarm.run_until(NOW + 2)
    assert not bench.queue.requests
    bench.close()
    assert len(bench.queue.requests) == 1


def test_a_scheduler_that_refuses_is_closed_all_the_same(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    """What is lost is said and not counted as handed over."""
    bench.engine.crawl(retry(NOW + 1))
    bench.queue.broken = True
    bench.close()
    assert bench.queue.closed == "enough"
    assert "1 of them were lost, as the scheduler refused them: gone" in caplog.text
    assert bench.stat("ha/retry/handed_over") == 0


def test_a_scheduler_without_close(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scrapy does not ask for one; what waits is handed over nonetheless."""
    monkeypatch.delattr(Queue, "close")
    monkeypatch.delattr(BaseScheduler, "close")
    bench = Bench()
    bench.engine.crawl(retry(NOW + 1))
    bench.close()
    assert len(bench.queue.requests) == 1


def test_stored_times_are_kept(bench: Bench) -> None:
    """What an earlier run or another worker stored waits for the rest; the next one goes ahead."""
    early, due, plain = retry(NOW + 5), retry(NOW - 5), Request(URL)
    bench.queue.requests = [early, due, plain]
    assert bench.hand_out() is due
    assert bench.hand_out() is plain
    assert bench.hand_out() is None
    assert len(bench.timers) == 1
    bench.alarm.run_until(NOW + 6)
    assert bench.hand_out() is early
    assert bench.timers.takes(early)


def test_dump_and_restore(bench: Bench) -> None:
    """Another process goes on with the same requests and times."""
    for due in (9, 5, 7):
        bench.engine.crawl(retry(NOW + due, n=due))
    dumped = bench.timers.dump()
    assert [request.meta["n"] for request in dumped] == [5, 7, 9]
    assert len(bench.timers) == 3
    other = Bench()
    other.timers.restore([*dumped, Request(URL, meta={"n": 0})])
    other.alarm.run_until(NOW + 7.5)
    assert [request.meta["n"] for request in other.queue.requests] == [0, 5, 7]
    assert len(other.timers) == 1


# Callbacks


def asked_for(page: Request, **meta: Any) -> Request:
    """What ``get_retry_request(page)`` gives."""
    again = page.copy()
    again.meta["retry_times"] = page.meta.get("retry_times", 0) + 1
    again.meta.update(meta)
    again.dont_filter = True
    return again


@pytest.mark.parametrize("times", [None, 1])
def test_a_callbacks_retry_waits(bench: Bench, times: int | None) -> None:
    """For as long as the middleware says."""
    page = Request(URL, meta={} if times is None else {"retry_times": times})
    current_page.set(page)
    again = asked_for(page)
    bench.engine.crawl(again)
    assert bench.asked == [(again, page)]
    assert not bench.queue.requests
    bench.alarm.run_until(NOW + 4.9)
    assert not bench.queue.requests
    bench.alarm.run_until(NOW + 5.1)
    assert bench.queue.requests == [again]
    assert len(bench.asked) == 1, "what the timer sends is not taken for a child of the page"


@pytest.mark.parametrize(
    "child",
    [
        Request(URL, meta={"retry_times": 1}),
        Request(URL, dont_filter=True),
        Request(URL + "/other", meta={"retry_times": 1}, dont_filter=True),
        Request(URL, method="POST", meta={"retry_times": 1}, dont_filter=True),
        Request(URL, meta={"retry_times": "many"}, dont_filter=True),
    ],
)
def test_other_children_do_not_wait(bench: Bench, child: Request) -> None:
    """A retry bypasses the duplicate filter, is counted, and is of the same page."""
    current_page.set(Request(URL))
    bench.engine.crawl(child)
    assert bench.queue.requests == [child]
    assert not bench.asked


def test_children_start_clean(bench: Bench) -> None:
    """What came along with ``meta=response.meta`` is the page's: history and retry counter."""
    page = Request(URL, meta={META_KEY: {"attempts": {"server": 2}}, "retry_times": 2, "mine": 1})
    current_page.set(page)
    child = Request(URL + "/child", meta=dict(page.meta))
    bench.engine.crawl(child)
    assert child.meta == {"mine": 1}
    assert page.meta["retry_times"] == 2


def test_retries_keep_their_history_outside_callbacks(bench: Bench) -> None:
    """As those that a downloader middleware returns; so do redirects."""
    request = retry(0.0, retry_times=1)
    bench.engine.crawl(request)
    assert get_state(request)["attempts"] == {"server": 1}
    assert request.meta["retry_times"] == 1


# With our scheduler


def test_our_scheduler_keeps_the_times_itself() -> None:
    """It gets requests at once, due times included; those of callbacks as well."""
    bench = Bench(ours=True)
    request = retry(NOW + 5)
    bench.engine.crawl(request)
    page = Request(URL)
    current_page.set(page)
    again = asked_for(page)
    run_of(bench.crawler).retried(again, page)
    bench.engine.crawl(again)
    assert bench.queue.requests == [request, again]
    assert [get_state(one)["due"] for one in bench.queue.requests] == [NOW + 5, NOW + 5]
    assert bench.asked == [(again, page)]
    assert bench.hand_out() is request
    assert not bench.timers.takes(request)
    assert bench.alarm.function is None
