"""What the middleware decides, and what it leaves with the request."""

from __future__ import annotations

import asyncio
import logging
import math
from random import Random
from typing import Any

import pytest
from scrapy import Request, Spider, signals
from scrapy.crawler import Crawler
from scrapy.exceptions import IgnoreRequest, NotConfigured
from scrapy.http import Response
from scrapy.statscollectors import MemoryStatsCollector
from twisted.internet.error import ConnectionLost
from twisted.internet.error import ConnectionRefusedError as TxConnectionRefusedError

from scrapy_ha.errors import SettingError
from scrapy_ha.loop import completed
from scrapy_ha.retry import ClassifiedRetryMiddleware
from scrapy_ha.run import run_of
from scrapy_ha.state import META_KEY, get_state
from scrapy_ha.testing import FakeClock

URL = "http://a.test/page"
DATE = {"Date": "Sun, 05 May 2024 12:00:00 GMT"}


class Bench:
    """A middleware whose requests our scheduler keeps track of, unless *tracked* is False."""

    def __init__(self, tracked: bool = True, **settings: Any) -> None:
        self.crawler: Any = Crawler(Spider, {"HA_RETRY_BUDGET_RATE": 1e9, **settings})
        self.crawler.stats = MemoryStatsCollector(self.crawler)
        self.crawler.spider = Spider.from_crawler(self.crawler, name="bench")
        self.clock = FakeClock(1000.0)
        run = run_of(self.crawler)
        run.clock = self.clock
        run.keeps_times = lambda request: tracked
        self.middleware = ClassifiedRetryMiddleware.from_crawler(self.crawler)
        self.middleware.decider.random = Random(1)

    def respond(self, request: Request, status: int = 503, **headers: Any) -> Any:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        response = Response(URL, status, headers=named)
        result = self.middleware.process_response(request, response)
        return "response" if result is response else result

    def fail(self, request: Request, exception: Exception | None = None) -> Any:
        return self.middleware.process_exception(request, exception or ConnectionLost())

    def stats(self, start: str) -> dict[str, Any]:
        stats = self.crawler.stats.get_stats()
        return {name: value for name, value in stats.items() if name.startswith(start)}


def immediate(**settings: Any) -> Bench:
    """As Scrapy's own: no delays, no scheduler of ours."""
    return Bench(tracked=False, HA_RETRY_BASE=0, HA_RETRY_FLOOR=0, **settings)


# As Scrapy's middleware


def test_off_when_retries_are_off() -> None:
    """RETRY_ENABLED, in Scrapy's words."""
    with pytest.raises(NotConfigured):
        Bench(RETRY_ENABLED=False)


@pytest.mark.parametrize("status", [200, 204, 301, 404, 403, 401, 501, 505, 520])
def test_other_statuses_pass(status: int) -> None:
    """What RETRY_HTTP_CODES does not name is a response, whatever it carries."""
    request = Request(URL)
    assert immediate().respond(request, status, Retry_After="5") == "response"
    assert request.meta == {}


@pytest.mark.parametrize("status", [500, 502, 503, 504, 522, 524, 408, 429])
def test_default_statuses_are_retried(status: int) -> None:
    """Those of Scrapy, RETRY_TIMES times."""
    bench = immediate(RETRY_TIMES=2)
    meta = {"mine": 1, "ha_retry": {"idempotent": True}}
    request = Request(URL, priority=5, method="POST", body=b"x", cb_kwargs={"k": 1}, meta=meta)
    first = bench.respond(request, status)
    assert isinstance(first, Request)
    assert first is not request
    assert (first.dont_filter, first.priority, first.meta["retry_times"]) == (True, 4, 1)
    assert (first.url, first.method, first.body) == (URL, "POST", b"x")
    assert (first.cb_kwargs, first.meta["mine"]) == ({"k": 1}, 1)
    assert "retry_times" not in request.meta
    second = bench.respond(first, status)
    assert (second.priority, second.meta["retry_times"]) == (3, 2)
    assert bench.respond(second, status) == "response"
    assert bench.stats("retry/max_reached") == {"retry/max_reached": 1}
    assert bench.stats("retry/count") == {"retry/count": 2}
    assert list(bench.stats("retry/reason_count").values()) == [2]


def test_users_statuses_are_retried() -> None:
    """Also those of classes that are otherwise never retried, and successes; also given as text."""
    bench = immediate(RETRY_HTTP_CODES="404, 403,202")
    assert bench.respond(Request(URL), 503) == "response"
    assert [get_state(bench.respond(Request(URL), status))["attempts"] for status in (404, 403, 202)] == [
        {"client": 1},
        {"auth": 1},
        {"server": 1},
    ]


def test_exceptions_are_retried() -> None:
    """Those of RETRY_EXCEPTIONS, by class or path; the stat has the class's full name."""
    bench = immediate(RETRY_EXCEPTIONS=["twisted.internet.error.ConnectionLost", KeyError])
    assert isinstance(bench.fail(Request(URL)), Request)
    assert isinstance(bench.fail(Request(URL), KeyError("k")), Request)
    assert bench.fail(Request(URL), TxConnectionRefusedError()) is None
    assert bench.fail(Request(URL), IgnoreRequest()) is None
    assert bench.stats("retry/reason_count") == {
        "retry/reason_count/twisted.internet.error.ConnectionLost": 1,
        "retry/reason_count/builtins.KeyError": 1,
    }
    request = Request(URL, meta={"retry_times": 2})
    assert bench.fail(request) is None
    assert bench.stats("retry/max_reached") == {"retry/max_reached": 1}


def test_default_exceptions_include_every_os_error() -> None:
    """As Scrapy has it; but what can never work is not tried again, unless it is named itself."""
    assert isinstance(immediate().fail(Request(URL), OSError("?")), Request)
    assert immediate().fail(Request("file:///x"), FileNotFoundError()) is None
    named = immediate(RETRY_EXCEPTIONS=[FileNotFoundError])
    assert isinstance(named.fail(Request("file:///x"), FileNotFoundError()), Request)


def test_dont_retry() -> None:
    """Neither responses nor exceptions; a false value means nothing."""
    bench = immediate()
    request = Request(URL, meta={"dont_retry": True})
    assert bench.respond(request) == "response"
    assert bench.fail(request) is None
    assert request.meta == {"dont_retry": True}
    assert isinstance(bench.respond(Request(URL, meta={"dont_retry": False})), Request)


@pytest.mark.parametrize(
    ("setting", "meta", "retries"),
    [
        (2, {}, 2),
        (0, {}, 0),
        (-1, {}, 0),
        (2, {"max_retry_times": 5}, 5),
        (2, {"max_retry_times": 0}, 0),
        (3, {"max_retry_times": None}, 3),
    ],
)
def test_number_of_retries(setting: int, meta: dict[str, Any], retries: int) -> None:
    """RETRY_TIMES, or the request's own max_retry_times; by responses and exceptions together."""
    bench = immediate(RETRY_TIMES=setting)
    request: Any = Request(URL, meta=meta)
    for n in range(retries):
        request = bench.respond(request) if n % 2 else bench.fail(request)
        assert isinstance(request, Request)
    assert bench.respond(request) == "response"
    assert bench.fail(request) is None


def test_priority_adjust() -> None:
    """RETRY_PRIORITY_ADJUST, or the request's own."""
    bench = immediate(RETRY_PRIORITY_ADJUST=10)
    assert bench.respond(Request(URL)).priority == 10
    assert bench.respond(Request(URL, meta={"priority_adjust": -7})).priority == -7
    assert bench.respond(Request(URL, meta={"priority_adjust": 0})).priority == 0


def test_log_lines(caplog: pytest.LogCaptureFixture) -> None:
    """Scrapy's, under Scrapy's logger."""
    bench = immediate(RETRY_TIMES=1)
    with caplog.at_level(logging.DEBUG):
        bench.respond(bench.respond(Request(URL)))
    lines = [(r.name, r.levelname, r.getMessage()) for r in caplog.records if "etry" in r.getMessage()]
    name = "scrapy.downloadermiddlewares.retry"
    assert lines == [
        (name, "DEBUG", f"Retrying <GET {URL}> (failed 1 times): 503 Service Unavailable"),
        (name, "ERROR", f"Gave up retrying <GET {URL}> (failed 2 times): 503 Service Unavailable"),
    ]


@pytest.mark.parametrize(
    ("setting", "meta", "level"),
    [
        ("WARNING", {}, "WARNING"),
        (logging.INFO, {}, "INFO"),
        ("ERROR", {"give_up_log_level": "DEBUG"}, "DEBUG"),
        ("INFO", {"give_up_log_level": 30}, "WARNING"),
        ("INFO", {"give_up_log_level": None}, "INFO"),
    ],
)
def test_level_of_giving_up(
    setting: Any, meta: dict[str, Any], level: str, caplog: pytest.LogCaptureFixture
) -> None:
    """By setting and by request, so that a handled failure need not count as an error."""
    bench = immediate(RETRY_TIMES=0, RETRY_GIVE_UP_LOG_LEVEL=setting)
    with caplog.at_level(logging.DEBUG):
        bench.respond(Request(URL, meta=meta))
    assert [r.levelname for r in caplog.records if r.getMessage().startswith("Gave up")] == [level]


def test_bad_level_fails_at_start() -> None:
    """The line names the setting and the value."""
    with pytest.raises(SettingError, match=r"RETRY_GIVE_UP_LOG_LEVEL.*'LOUD'"):
        Bench(RETRY_GIVE_UP_LOG_LEVEL="LOUD")


# The delay


def test_delay_is_kept_in_the_state() -> None:
    """Exponential, from the time of the failure; the returned request is not sent before."""
    bench = Bench(RETRY_TIMES=30, HA_RETRY_BASE=1, HA_RETRY_CAP=8, HA_RETRY_FLOOR=0.5)
    for _ in range(50):
        request: Any = Request(URL)
        for end in (1, 2, 4, 8, 8, 8):
            request = bench.respond(request)
            assert 0.5 <= get_state(request)["due"] - 1000 <= end


@pytest.mark.parametrize(
    ("headers", "least", "most"),
    [
        ({"Retry_After": "7"}, 7, 8),
        ({"Retry_After": "600"}, 60, 60),
        ({"Retry_After": "99999999999999999999"}, 60, 60),
        ({"Retry_After": "Sun, 05 May 2024 12:00:09 GMT", **DATE}, 9, 10),
        ({"Retry_After": "Wed, 21 Oct 2037 07:28:00 GMT"}, 60, 60),
        ({"Retry_After": "Wed, 21 Oct 1970 07:28:00 GMT", **DATE}, 0.1, 1),
        ({"Retry_After": ["5", "9"]}, 9, 10),
        ({"Retry_After": "0"}, 0.1, 1),
        ({"Retry_After": "soon"}, 0.1, 1),
        ({"Retry_After": "-5"}, 0.1, 1),
        ({"Retry_After": b"\xff\xfe"}, 0.1, 1),
        ({"Retry_After": ""}, 0.1, 1),
    ],
)
@pytest.mark.parametrize("status", [429, 503])
def test_retry_after(headers: dict[str, Any], least: float, most: float, status: int) -> None:
    """Not before the stated time, with jitter upwards, cut to HA_RETRY_AFTER_CAP; bad values are absent."""
    bench = Bench(HA_RETRY_AFTER_CAP=60)
    for _ in range(50):
        due = get_state(bench.respond(Request(URL), status, **headers))["due"]
        assert least <= due - 1000 <= most


def test_cut_of_a_long_retry_after_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """The line names the cap."""
    bench = Bench(HA_RETRY_AFTER_CAP=60)
    with caplog.at_level(logging.DEBUG):
        bench.respond(Request(URL), Retry_After="Wed, 21 Oct 2037 07:28:00 GMT")
    assert any("HA_RETRY_AFTER_CAP = 60" in record.getMessage() for record in caplog.records)


def test_a_valid_retry_after_makes_it_throttled() -> None:
    """A 503 with a bad one is an ordinary server failure."""
    bench = Bench()
    valid, bad = {"Retry_After": "1"}, {"Retry_After": "soon"}
    answers: list[tuple[int, dict[str, str]]] = [(503, valid), (503, bad), (503, {}), (429, {})]
    attempts = [
        get_state(bench.respond(Request(URL), code, **headers))["attempts"] for code, headers in answers
    ]
    assert attempts == [{"throttled": 1}, {"server": 1}, {"server": 1}, {"throttled": 1}]
    assert bench.stats("ha/retry") == {
        "ha/retry/throttled": 2,
        "ha/retry/server": 2,
        "ha/retry/retry_after": 1,
    }


# The request's state


def test_state_of_the_request_is_carried_on() -> None:
    """Failures by class, first and last; the failed request keeps its own state untouched."""
    bench = Bench(RETRY_TIMES=5)
    request = Request(URL, meta={META_KEY: {"id": 7, "deliveries": 1}})
    first = bench.respond(request)
    assert request.meta == {META_KEY: {"id": 7, "deliveries": 1}}
    bench.clock.advance(10)
    second = bench.fail(first)
    assert get_state(first)["attempts"] == {"server": 1}
    state = get_state(second)
    assert state.pop("due") > 1010
    assert 0 < state.pop("delay") <= 2
    assert [[cls, time] for cls, _, time in state.pop("errors")] == [
        ["server", 1000.0],
        ["connection", 1010.0],
    ]
    assert state == {
        "id": 7,
        "deliveries": 1,
        "attempts": {"server": 1, "connection": 1},
        "first_failure": 1000.0,
        "last_failure": 1010.0,
    }


def test_giving_up_is_noted_on_the_request() -> None:
    """With class and reason: the scheduler moves it into the dead state."""
    bench = Bench(RETRY_TIMES=1)
    last = bench.respond(Request(URL))
    assert bench.respond(last) == "response"
    state = get_state(last)
    assert state["gave_up"] == {"cls": "server", "reason": "503 Service Unavailable"}
    assert state["attempts"] == {"server": 2}
    refused = Request(URL, meta={"retry_times": 1})
    assert bench.fail(refused, TxConnectionRefusedError("no\n" + "x" * 10_000)) is None
    gave_up = get_state(refused)["gave_up"]
    assert gave_up["cls"] == "refused"
    assert gave_up["reason"].startswith("twisted.internet.error.ConnectionRefusedError: ")
    assert len(gave_up["reason"]) <= 200
    assert "\n" not in gave_up["reason"]
    assert bench.stats("ha/retry/gave_up") == {"ha/retry/gave_up/server": 1, "ha/retry/gave_up/refused": 1}


def test_what_can_never_work_is_given_up_at_once() -> None:
    """Without a retry, and without being counted as one."""
    bench = Bench()
    request = Request("file:///x")
    assert bench.fail(request, FileNotFoundError("x")) is None
    assert get_state(request)["gave_up"]["cls"] == "permanent"
    assert bench.stats("retry/") == {}


def test_behind_a_proxy() -> None:
    """The proxy is what refused."""
    request = Request(URL, meta={"proxy": "http://127.0.0.1:1"})
    assert get_state(Bench().fail(request, TxConnectionRefusedError()))["attempts"] == {"proxy": 1}


def test_wait_outside_our_scheduler_is_awaited() -> None:
    """The result of the method is then to be awaited, and no due time travels with the request."""
    bench = Bench(tracked=False)
    waiting = bench.respond(Request(URL))
    assert not isinstance(waiting, (Request, str))
    waiting.close()


def test_seed_gives_the_same_plan() -> None:
    """Two middlewares with the same random numbers decide the same."""
    one, other = Bench(), Bench()
    for _ in range(5):
        assert get_state(one.respond(Request(URL)))["due"] == get_state(other.respond(Request(URL)))["due"]


def test_the_number_of_retries_may_be_set_on_the_middleware() -> None:
    """As on Scrapy's."""
    bench = immediate()
    assert bench.middleware.max_retry_times == 2
    bench.middleware.max_retry_times = 0
    assert bench.respond(Request(URL)) == "response"


def test_shutdown_uses_up_no_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    """What fails while the spider closes is kept as it was."""
    bench = Bench()
    monkeypatch.setattr("scrapy_ha.retry.middleware.is_closing", lambda crawler: True)
    request = Request(URL, meta={"retry_times": 2, META_KEY: {"attempts": {"server": 2}, "id": 5}})
    again = bench.fail(request)
    assert again.meta["retry_times"] == 2
    assert get_state(again)["attempts"] == {"server": 2}
    assert bench.stats("ha/retry/not_counted") == {"ha/retry/not_counted": 1}


# What the guard is told


def opened(**settings: Any) -> Bench:
    """With another scheduler; the breaker of the host is open, and its cool-down over."""
    bench = Bench(tracked=False, HA_OUTAGE_ENABLED=False, HA_RETRY_CLASSIFY=None, **settings)
    for _ in range(5):
        bench.middleware.protection.guard.failed("a.test", "refused", bench.clock.time())
    bench.clock.advance(40)
    assert bench.middleware.protection.guard.state("a.test") == "half-open"
    return bench


def probe(bench: Bench) -> Request:
    request = Request(URL)
    assert bench.middleware.process_request(request) is None
    assert not bench.middleware.protection.guard.admits("a.test")
    bench.clock.advance(1)
    return request


def download(bench: Bench, request: Request, status: int = 200) -> Response:
    response = Response(URL, status)
    bench.crawler.signals.send_catch_log(
        signals.response_downloaded, response=response, request=request, spider=bench.crawler.spider
    )
    return response


@pytest.mark.parametrize("status", [301, 302, 307])
def test_a_redirect_is_an_answer(status: int) -> None:
    """Scrapy's middleware follows it before this one sees it. Another host may be what it leads to."""
    bench = opened()
    download(bench, probe(bench), status)
    assert bench.middleware.protection.guard.state("a.test") == "closed"


def test_a_redirect_that_is_a_failure_is_none() -> None:
    """RETRY_HTTP_CODES says so."""
    bench = opened(RETRY_HTTP_CODES=[302])
    request = probe(bench)
    response = download(bench, request, 302)
    bench.middleware.process_response(request, response).close()  # type: ignore[union-attr]
    assert bench.middleware.protection.guard.state("a.test") == "open"


def test_a_response_that_never_comes_here() -> None:
    """Another middleware keeps it to itself: the next request is the probe."""
    bench = opened()
    download(bench, probe(bench))
    assert bench.middleware.protection.guard.state("a.test") == "half-open"
    assert bench.middleware.protection.guard.admits("a.test")


@pytest.mark.parametrize("flags", [[], ["cached"]])
def test_a_response_out_of_a_cache_says_nothing_of_the_host(flags: list[str]) -> None:
    """Whatever cache it is: nothing was downloaded. The next request is the probe."""
    bench = opened()
    request = probe(bench)
    response = Response(URL, flags=flags)
    assert bench.middleware.process_response(request, response) is response
    assert bench.middleware.protection.guard.state("a.test") == "half-open"
    assert bench.middleware.protection.guard.admits("a.test")


def test_a_response_with_flags_is_one() -> None:
    """Download handlers set some, such as «dataloss»."""
    bench = opened()
    request = probe(bench)
    response = download(bench, request)
    response.flags.append("dataloss")
    bench.middleware.process_response(request, response)
    assert bench.middleware.protection.guard.state("a.test") == "closed"


def test_what_others_drop_is_no_evidence() -> None:
    """A thousand links off limits do not hide that the network is down."""
    bench = Bench(tracked=False)
    guard = bench.middleware.protection.guard
    for n in range(20):
        assert bench.fail(Request(f"http://dropped{n}.test/"), IgnoreRequest()) is None
    for n in range(10):
        guard.failed(f"down{n}.test", "refused", bench.clock.time())
    bench.clock.advance(3)
    guard.tick()
    assert guard.in_outage


def test_no_host_is_not_protected() -> None:
    """What a data: URL holds ends no outage, and waits for none."""
    bench = Bench(tracked=False)
    guard = bench.middleware.protection.guard
    for n in range(10):
        guard.failed(f"down{n}.test", "refused", bench.clock.time())
    bench.clock.advance(3)
    guard.tick()
    request = Request("data:,text")
    assert bench.middleware.process_request(request) is None
    response = download(bench, request)
    assert bench.middleware.process_response(request, response) is response
    assert guard.in_outage


def test_what_is_given_up_unsent_is_given_up_once() -> None:
    """Though the exception that drops it comes back here, and the project's function knows all."""
    bench = Bench(
        tracked=True,
        HA_RETRY_CLASSIFY=lambda request, outcome: "connection",
        HA_BREAKER_DEADLINE=1,
        HA_OUTAGE_ENABLED=False,
    )
    guard = bench.middleware.protection.guard
    for _ in range(5):
        guard.failed("a.test", "refused", bench.clock.time())
    bench.clock.advance(40)
    guard.failed("a.test", "refused", bench.clock.time())
    request = Request(URL)
    with pytest.raises(IgnoreRequest) as raised:
        bench.middleware.process_request(request)
    assert bench.fail(request, raised.value) is None
    assert bench.stats("ha/retry/gave_up") == {"ha/retry/gave_up/connection": 1}
    assert bench.stats("retry/count") == {}


def test_what_no_scheduler_handed_out_ends_with_the_spider(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody would keep a retry of it, so it would be sent again and again while the spider closes."""
    bench = Bench(tracked=False)
    monkeypatch.setattr("scrapy_ha.retry.middleware.is_closing", lambda crawler: True)
    request = Request(URL, callback=lambda response: None)
    assert completed(bench.fail(request)) is None
    response = Response(URL, 503)
    assert completed(bench.middleware.process_response(request, response)) is response  # type: ignore[arg-type]


def test_nothing_is_remembered_for_no_store() -> None:
    """With another scheduler nothing is stored, and no slot that ever failed is kept in mind for it."""
    bench = Bench(tracked=False, HA_OUTAGE_ENABLED=False)
    bench.middleware.protection.guard.hold("a.test", 2000.0)
    bench.middleware.protection._save()
    assert bench.middleware.protection.guard.export() == {}


def test_no_timer_after_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """What fails late changes the guard, but nobody is woken for it any more."""
    timers: list[float] = []
    monkeypatch.setattr(
        "scrapy_ha.retry.protection.call_later", lambda seconds, function: timers.append(seconds)
    )
    bench = Bench()
    protection = bench.middleware.protection
    protection._timer_at = math.inf  # as when the spider is open

    async def close() -> None:
        await protection._closed()
        protection.guard.hold("a.test", 2000.0)
        bench.fail(Request(URL))

    asyncio.run(close())
    assert timers == []
