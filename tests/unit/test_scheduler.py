"""HAScheduler against the engine's side of the contract, on a real LevelDB directory."""

from __future__ import annotations

import asyncio
import functools
import shutil
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from scrapy import Request, Spider, signals
from scrapy.core.downloader import Downloader
from scrapy.crawler import Crawler
from scrapy.http import Response
from scrapy.settings import Settings
from scrapy.statscollectors import MemoryStatsCollector
from scrapy.utils.request import RequestFingerprinter
from twisted.python.failure import Failure

from scrapy_ha.deadletter import DeadLetter
from scrapy_ha.errors import StoreDamaged, StoreError, StoreLocked
from scrapy_ha.lifecycle import _InProgress
from scrapy_ha.loop import completed
from scrapy_ha.run import current_page, run_of
from scrapy_ha.scheduler import HAScheduler, component
from scrapy_ha.state import META_KEY, get_state, set_state, with_failure
from scrapy_ha.typing import Dead


class SomeSpider(Spider):
    name = "some"

    def parse(self, response: Response) -> None: ...

    def parse_item(self, response: Response, number: int) -> None: ...

    def failed(self, failure: Any) -> None: ...


class FakeScraper:
    async def call_spider_async(self, result: Any, request: Request) -> None: ...

    async def handle_spider_output_async(self, result: Any, request: Request, response: Any) -> None: ...

    def _process_spidermw_output(self, output: Any, response: Any) -> None: ...


class FakeDownloader(Downloader):
    """Scrapy's, for what it says of slots; it opens nothing."""

    def __init__(self) -> None:
        self.slots = {}
        self.per_slot_settings = {}
        self.ip_concurrency = 0
        self.domain_concurrency = 8


class Bench:
    """One scheduler with as much of an engine around it as it meets, without a network."""

    def __init__(self, directory: Path, **settings: Any) -> None:
        self.crawler = Crawler(SomeSpider, Settings({"HA_DIR": str(directory), **settings}))
        self.crawler.stats = MemoryStatsCollector(self.crawler)
        self.crawler.request_fingerprinter = RequestFingerprinter()
        self.crawler.spider = SomeSpider.from_crawler(self.crawler)
        self.closed: list[str] = []
        slot = SimpleNamespace(
            inprogress=set(), nextcall=SimpleNamespace(schedule=lambda: None), closing=None
        )
        self.engine: Any = SimpleNamespace(
            _slot=slot,
            _start=None,
            scraper=FakeScraper(),
            downloader=FakeDownloader(),
            spider=self.crawler.spider,
        )

        async def close_spider_async(*, reason: str) -> None:
            self.closed.append(reason)

        self.engine.close_spider_async = close_spider_async
        self.crawler.engine = self.engine
        self.scheduler = HAScheduler.from_crawler(self.crawler)
        self.scheduler.open(self.crawler.spider)

    def enqueue(self, request: Request, page: Request | None = None) -> bool:
        """Enqueue as from the callback of *page*, or from outside."""
        token = current_page.set(page)
        try:
            return self.scheduler.enqueue_request(request)
        finally:
            current_page.reset(token)

    def next(self) -> Request | None:
        request = self.scheduler.next_request()
        if request is not None:
            self.engine._slot.inprogress.add(request)
        return request

    def all(self) -> list[Request]:
        return list(iter(self.next, None))

    def end(self, request: Request) -> None:
        self.engine._slot.inprogress.remove(request)

    def counts(self) -> tuple[int, int, int, int]:
        counts = completed(self.scheduler._frontier.counts())
        return counts.ready, counts.delayed, counts.leased, counts.dead

    def close(self, reason: str = "finished") -> None:
        completed(self.scheduler._close(reason))


@pytest.fixture(autouse=True)
def loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """Timers are noted, not run: nothing here waits."""
    timer = SimpleNamespace(cancel=lambda: None)
    monkeypatch.setattr("scrapy_ha.loop.call_later", lambda seconds, function: timer)
    monkeypatch.setattr(component, "call_later", lambda seconds, function: timer)

    def closing(crawler: Any, reason: str) -> None:
        asyncio.run(crawler.engine.close_spider_async(reason=reason))

    monkeypatch.setattr(component, "close_spider", closing)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Callable[..., Bench]]:
    benches: list[Bench] = []

    def make(name: str = "ha", **settings: Any) -> Bench:
        benches.append(Bench(tmp_path / name, HA_FSYNC="never", **settings))
        return benches[-1]

    yield make
    for one in benches:
        one.close("shutdown")


@pytest.fixture
def crash(tmp_path: Path, bench: Callable[..., Bench]) -> Callable[..., Bench]:
    """What the next process finds when this one is killed now."""

    def reopen(old: Bench, name: str = "crashed", **settings: Any) -> Bench:
        directory = Path(old.crawler.settings["HA_DIR"])
        shutil.copytree(directory, tmp_path / name)
        return bench(name, **settings)

    return reopen


def test_accepted_is_stored(bench: Callable[..., Bench], crash: Callable[..., Bench]) -> None:
    """What enqueue_request accepted is there after a kill straight after it (I1), in full."""
    first = bench()
    spider: Any = first.crawler.spider
    request = Request(
        "http://a.test/1",
        spider.parse_item,
        "POST",
        {"X": ["1", "2"]},
        b"body",
        {"c": "d"},
        {"m": (1, {2})},
        priority=7,
        errback=spider.failed,
        flags=["f"],
        cb_kwargs={"number": 3},
    )
    assert first.enqueue(request)
    second = crash(first)
    found = second.next()
    assert found is not None
    for name in ("url", "method", "headers", "body", "cookies", "priority", "flags", "cb_kwargs", "encoding"):
        assert getattr(found, name) == getattr(request, name), name
    assert found.meta["m"] == (1, {2})
    assert found.callback == second.crawler.spider.parse_item  # type: ignore[union-attr]
    assert found.errback == second.crawler.spider.failed  # type: ignore[union-attr]


def test_seen_with_stored(bench: Callable[..., Bench], crash: Callable[..., Bench]) -> None:
    """A duplicate is refused, also by the next process (I2)."""
    first = bench()
    assert first.enqueue(Request("http://a.test/?b=1&a=2"))
    assert not first.enqueue(Request("http://a.test/?a=2&b=1"))
    second = crash(first)
    assert not second.enqueue(Request("http://a.test/?a=2&b=1"))
    assert second.counts() == (1, 0, 0, 0)


def test_in_flight_comes_back(bench: Callable[..., Bench], crash: Callable[..., Bench]) -> None:
    """What the engine works on is handed out again after a kill; what it is done with is not."""
    first = bench()
    for number in range(3):
        first.enqueue(Request(f"http://a.test/{number}"))
    done, working = first.next(), first.next()
    assert done is not None
    assert working is not None
    first.end(done)
    second = crash(first)
    assert {request.url for request in second.all()} == {working.url, "http://a.test/2"}
    assert second.crawler.stats.get_value("ha/scheduler/reclaimed") == 1  # type: ignore[union-attr]


def test_poison(bench: Callable[..., Bench], crash: Callable[..., Bench]) -> None:
    """After HA_MAX_DELIVERIES deaths of its worker a request is dead, all others live."""
    one = bench(HA_MAX_DELIVERIES=3)
    one.enqueue(Request("http://a.test/poison"))
    for death in range(3):
        page = one.next()
        assert page is not None
        one.scheduler._began(page)
        one = crash(one, f"death{death}", HA_MAX_DELIVERIES=3)
    assert one.next() is None
    assert one.counts() == (0, 0, 0, 1)
    assert not one.scheduler.has_pending_requests()


def test_page_on_its_way_is_no_poison(bench: Callable[..., Bench], crash: Callable[..., Bench]) -> None:
    """A page that is fetched, or waits for its children, when the process is killed is not blamed."""
    one = bench(HA_MAX_DELIVERIES=2)
    one.enqueue(Request("http://a.test/slow"))
    one.enqueue(Request("http://a.test/holds"))
    for death in range(4):
        slow, holds = one.next(), one.next()
        assert slow is not None
        assert holds is not None
        one.scheduler._began(holds)
        one.enqueue(Request("http://a.test/lambda", callback=lambda response: None), holds)
        one.end(holds)
        one = crash(one, f"death{death}", HA_MAX_DELIVERIES=2)
    assert one.counts() == (2, 0, 0, 0)


def test_retry_is_delayed_in_one_step(bench: Callable[..., Bench], crash: Callable[..., Bench]) -> None:
    """A request that is due later is in delayed at once, and in no other state."""
    one = bench()
    one.enqueue(Request("http://a.test/"))
    page = one.next()
    assert page is not None
    retry = page.replace(dont_filter=True)
    retry.meta[META_KEY] = {**page.meta[META_KEY], "due": 4e9, "attempts": {"server": 1}}
    one.enqueue(retry)
    assert one.counts() == (0, 1, 0, 0)
    one.end(page)
    assert one.counts() == (0, 1, 0, 0)
    assert one.next() is None
    assert one.scheduler.has_pending_requests()
    assert crash(one).counts() == (0, 1, 0, 0)


def test_retry_due_now_carries_its_history(bench: Callable[..., Bench]) -> None:
    """It keeps its attempts; what belonged to the delivery before is gone."""
    one = bench()
    one.enqueue(Request("http://a.test/"))
    page = one.next()
    assert page is not None
    retry = page.replace(dont_filter=True)
    retry.meta[META_KEY] = {**page.meta[META_KEY], "due": 1.0, "attempts": {"server": 1}}
    one.enqueue(retry)
    one.end(page)
    again = one.next()
    assert again is not None
    assert again.meta[META_KEY] == {
        "id": page.meta[META_KEY]["id"],
        "deliveries": 1,
        "attempts": {"server": 1},
    }


def test_given_up_is_dead(bench: Callable[..., Bench], crash: Callable[..., Bench]) -> None:
    """A request that the retry middleware gave up is kept with the reason."""
    one = bench()
    one.enqueue(Request("http://a.test/"))
    page = one.next()
    assert page is not None
    page.meta[META_KEY]["gave_up"] = {"cls": "server", "reason": "503 Service Unavailable"}
    one.end(page)
    assert one.counts() == (0, 0, 0, 1)
    (dead,) = completed(crash(one).scheduler._frontier.dead(10))
    assert b'"class": "server"' in dead.record
    assert b"503 Service Unavailable" in dead.record


def test_child_starts_clean(bench: Callable[..., Bench]) -> None:
    """meta=response.meta hands on no lease, no delay and no used-up attempts (R10)."""
    one = bench()
    one.enqueue(Request("http://a.test/", meta={"retry_times": 2, META_KEY: {"attempts": {"server": 2}}}))
    page = one.next()
    assert page is not None
    page.meta["retry_times"] = 2
    child = Request("http://a.test/child", meta={**page.meta, "own": 1})
    one.enqueue(child, page)
    one.end(page)
    found = one.next()
    assert found is not None
    own = {"id": found.meta[META_KEY]["id"], "deliveries": 1, "parent": "http://a.test/"}
    assert found.meta == {"own": 1, META_KEY: own}
    assert found.meta[META_KEY]["id"] != page.meta[META_KEY]["id"]


def test_retry_asked_for_by_a_callback_keeps_its_counter(bench: Callable[..., Bench]) -> None:
    """get_retry_request in a callback stops after RETRY_TIMES, as ever."""
    one = bench()
    one.enqueue(Request("http://a.test/"))
    page = one.next()
    assert page is not None
    retry = page.replace(dont_filter=True)
    retry.meta["retry_times"] = 1
    one.enqueue(retry, page)
    one.end(page)
    found = one.next()
    assert found is not None
    assert found.meta["retry_times"] == 1


def test_redirect_keeps_its_history(bench: Callable[..., Bench]) -> None:
    """The request that a redirect returns carries the attempts; the redirected one is done."""
    one = bench()
    one.enqueue(Request("http://a.test/", meta={}))
    page = one.next()
    assert page is not None
    page.meta[META_KEY]["attempts"] = {"timeout": 1}
    one.enqueue(page.replace(url="http://a.test/target"))
    one.end(page)
    found = one.next()
    assert found is not None
    assert found.url == "http://a.test/target"
    assert found.meta[META_KEY]["attempts"] == {"timeout": 1}


def test_unfiltered_children_are_not_doubled(
    bench: Callable[..., Bench], crash: Callable[..., Bench]
) -> None:
    """A page delivered again yields its dont_filter children again: they are stored once (I2)."""
    one = bench()
    one.enqueue(Request("http://a.test/"))
    for delivery in range(2):
        page = one.next()
        assert page is not None
        assert page.url == "http://a.test/"
        for _ in range(2):
            one.enqueue(Request("http://a.test/poll", dont_filter=True), page)
        if not delivery:
            one = crash(one)
    one.end(page)
    assert [request.url for request in one.all()] == ["http://a.test/poll"] * 2


def test_unserializable_holds_its_page(bench: Callable[..., Bench], crash: Callable[..., Bench]) -> None:
    """A page is not done before the child in memory is: a kill in between loses neither (S5)."""
    one = bench()
    one.enqueue(Request("http://a.test/"))
    page = one.next()
    assert page is not None
    one.enqueue(Request("http://a.test/lambda", callback=lambda response: None), page)
    assert not one.enqueue(Request("http://a.test/lambda"), page)
    one.end(page)
    assert one.counts() == (0, 0, 1, 0)
    assert [request.url for request in crash(one).all()] == ["http://a.test/"]
    child = one.next()
    assert child is not None
    one.end(child)
    assert one.counts() == (0, 0, 0, 0)
    after = crash(one, "later")
    assert after.next() is None
    assert not after.enqueue(Request("http://a.test/lambda"))


def test_chain_in_memory_is_held_within_bounds(
    bench: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page waits for what comes of it in memory, however long the chain, up to a limit."""
    monkeypatch.setattr(component, "HOLD_LIMIT", 3000)
    one = bench()
    settled: list[str] = []

    class Feed:
        def settle(self, page: Request) -> None:
            settled.append(page.url)

        def marks(self) -> dict[str, bytes]:
            return {}

        def fsync(self) -> None: ...

    run_of(one.crawler).durables.append(Feed())
    one.enqueue(Request("http://a.test/"))
    page = one.next()
    assert page is not None
    for number in range(3002):
        one.enqueue(Request(f"http://a.test/{number}", callback=lambda response: None), page)
        one.end(page)
        page = one.next()
        assert page is not None
        assert bool(settled) is (number >= 3000)
    one.end(page)
    assert len(settled) == len(set(settled)) == 3003
    assert one.counts() == (0, 0, 0, 0)
    assert not one.scheduler._unstored_holds


def test_unserializable_is_retried_with_its_delay(bench: Callable[..., Bench]) -> None:
    """A request in memory waits for its time too, and its page for it."""
    one = bench()
    one.enqueue(Request("http://a.test/"))
    page = one.next()
    assert page is not None
    one.enqueue(Request("http://a.test/lambda", callback=lambda response: None), page)
    one.end(page)
    child = one.next()
    assert child is not None
    retry = child.replace(dont_filter=True)
    retry.meta[META_KEY] = {**child.meta[META_KEY], "due": 1.0}
    one.enqueue(retry)
    one.end(child)
    assert one.counts() == (0, 0, 1, 0)
    again = one.next()
    assert again is not None
    assert again.url == "http://a.test/lambda"
    one.end(again)
    assert one.counts() == (0, 0, 0, 0)


def test_unserializable_start_request_holds_seeding(
    bench: Callable[..., Bench], crash: Callable[..., Bench]
) -> None:
    """Start requests are complete only when those in memory are done: a kill loses none."""

    async def start() -> AsyncIterator[Request]:
        yield Request("http://a.test/lambda", callback=lambda response: None)

    async def produce(one: Bench) -> None:
        async for request in one.scheduler._seeding.produce(start()):
            one.enqueue(request)

    one = bench()
    completed(produce(one))
    child = one.next()
    assert child is not None
    two = crash(one)
    assert not two.scheduler._seeding.done
    one.end(child)
    three = crash(one, "later")
    assert three.scheduler._seeding.done
    assert not three.enqueue(Request("http://a.test/lambda"))


def test_bad_record_is_set_aside(bench: Callable[..., Bench]) -> None:
    """A stored request that is none is dead with the reason, and the crawl goes on (S12)."""
    from scrapy_ha.typing import Entry

    one = bench()
    bad = [b"", b"{", b"\xff" * 50, b"\x01\x80", b"cos\nsystem\n(S'exit'\ntR."]
    completed(one.scheduler._frontier.offer([Entry(payload, "host") for payload in bad]))
    one.enqueue(Request("http://a.test/good"))
    assert [request.url for request in one.all()] == ["http://a.test/good"]
    assert one.counts() == (0, 0, 1, len(bad))


def test_slot_at_its_limit_is_passed_over(bench: Callable[..., Bench]) -> None:
    """One host never gets more than it takes at once; the others' requests come instead."""
    one = bench()
    for number in range(20):
        one.enqueue(Request(f"http://slow.test/{number}"))
        one.enqueue(Request(f"http://fast.test/{number}"))
    handed = [request.url.split("/")[2] for request in one.all()]
    assert sorted(handed) == ["fast.test"] * 8 + ["slow.test"] * 8
    assert handed[:4] in (["slow.test", "fast.test"] * 2, ["fast.test", "slow.test"] * 2)


def test_durables_are_settled_before_the_acknowledgement(bench: Callable[..., Bench]) -> None:
    """When what a page gave cannot be written, the page is not done and the crawl stops in order."""
    one = bench()
    settled: list[str] = []

    class Full:
        def settle(self, page: Request) -> None:
            settled.append(page.url)
            raise StoreError("no space")

        def marks(self) -> dict[str, bytes]:
            return {}

        def fsync(self) -> None: ...

    run_of(one.crawler).durables.append(Full())
    one.enqueue(Request("http://a.test/"))
    page = one.next()
    assert page is not None
    one.end(page)
    assert settled == ["http://a.test/"]
    assert one.counts() == (0, 0, 1, 0)
    assert one.closed == ["store_error"]
    assert one.next() is None
    assert not one.enqueue(Request("http://a.test/more"))
    assert one.scheduler.has_pending_requests()


def test_marks_come_with_the_acknowledgement(
    bench: Callable[..., Bench], crash: Callable[..., Bench]
) -> None:
    """What a durable part says of its position is what the next process is told."""
    one = bench()

    class Feed:
        position = 0

        def settle(self, page: Request) -> None:
            self.position += 10

        def marks(self) -> dict[str, bytes]:
            return {"feed:x": b"%d" % self.position}

        def fsync(self) -> None: ...

    run_of(one.crawler).durables.append(Feed())
    for number in range(3):
        one.enqueue(Request(f"http://a.test/{number}"))
    pages = one.all()
    one.end(pages[0])
    one.end(pages[1])
    second = crash(one)
    assert run_of(second.crawler).resumed
    assert run_of(second.crawler).marks == {"feed:x": b"20"}


def test_finished_starts_afresh(bench: Callable[..., Bench]) -> None:
    """After `finished` the same URL is fetched again; after any other end the crawl goes on."""
    for reason, seen in (("shutdown", True), ("finished", True), ("finished", False)):
        one = bench()
        one.scheduler._seeding.done = True
        assert one.enqueue(Request("http://a.test/")) is not (seen and reason == "finished")
        for page in one.all():
            one.end(page)
        one.close(reason)


def test_second_process_is_refused(bench: Callable[..., Bench], tmp_path: Path) -> None:
    """The message names the directory and the owner; the first is unharmed."""
    import os

    one = bench()
    with pytest.raises(StoreLocked, match=f"(?s){tmp_path / 'ha'}.*{os.getpid()}"):
        Bench(tmp_path / "ha")
    assert one.enqueue(Request("http://a.test/"))


def test_foreign_directory_is_left_untouched(tmp_path: Path) -> None:
    frontier = tmp_path / "ha" / "frontier"
    frontier.mkdir(parents=True)
    (frontier / "thesis.txt").write_text("three years of work")
    with pytest.raises(StoreDamaged, match=r"thesis\.txt"):
        Bench(tmp_path / "ha")
    assert [path.name for path in frontier.iterdir()] == ["thesis.txt"]


def test_in_progress_set_reports(bench: Callable[..., Bench]) -> None:
    """The engine's set of requests in progress is the one that reports what leaves it."""
    assert isinstance(bench().engine._slot.inprogress, _InProgress)


# Giving up


def letters(one: Bench) -> list[tuple[Dead, DeadLetter]]:
    found = completed(one.scheduler._frontier.dead(10))
    return [(dead, DeadLetter.unpack(dead.record)) for dead in found]


def test_the_record_is_durable_at_the_moment_of_giving_up(
    bench: Callable[..., Bench], crash: Callable[..., Bench]
) -> None:
    """A kill after run.bury() finds the record and the request; the end makes it final (R3)."""
    one = bench()
    one.enqueue(Request("http://a.test/x", method="POST", body=b"a=1", headers={"Referer": "http://a.test/"}))
    page = one.next()
    assert page is not None
    state = get_state(page)
    for reason in ("500", "502", "503"):
        state = with_failure(state, "server", reason, 1000.0)
    state["gave_up"] = {"cls": "server", "reason": "503"}
    set_state(page, state)
    assert run_of(one.crawler).bury(page)
    assert one.counts() == (0, 0, 1, 0)
    after = crash(one)
    assert after.counts() == (1, 0, 0, 0)
    one.end(page)
    assert one.counts() == (0, 0, 0, 1)
    for bench_, pending in ((after, True), (one, False)):
        ((dead, letter),) = letters(bench_)
        assert dead.pending is pending
        assert (letter.cls, letter.reason, letter.spider, letter.slot) == ("server", "503", "some", "a.test")
        assert (letter.url, letter.method, letter.parent) == ("http://a.test/x", "POST", "http://a.test/")
        assert [error.reason for error in letter.errors] == ["500", "502", "503"]
        assert (letter.attempts, letter.first_failure, letter.deliveries) == ({"server": 3}, 1000.0, 1)
    again = after.next()
    assert again is not None
    assert again.body == b"a=1"
    after.end(again)
    assert letters(after) == []


def test_giving_up_what_is_not_ours(bench: Callable[..., Bench]) -> None:
    """A request of no page, and one that cannot be stored, are not kept; the latter is counted."""
    one = bench()
    run = run_of(one.crawler)
    assert not run.bury(Request("http://a.test/robots.txt"))
    one.enqueue(Request("http://a.test/lambda", callback=lambda response: None))
    page = one.next()
    assert page is not None
    page.meta[META_KEY]["gave_up"] = {"cls": "server", "reason": "503"}
    assert not run.bury(page)
    one.end(page)
    assert letters(one) == []
    assert one.crawler.stats.get_value("ha/dlq/not_kept") == 1  # type: ignore[union-attr]


def test_junk_in_the_state_is_left_out(bench: Callable[..., Bench]) -> None:
    """The state stands in meta, where a spider may put anything."""
    one = bench()
    one.enqueue(Request("http://a.test/"))
    page = one.next()
    assert page is not None
    page.meta[META_KEY] = {
        "id": page.meta[META_KEY]["id"],
        "gave_up": 7,
        "errors": [1, ["a"], ["b", object(), "c"], ["server", "503", 1.0]],
        "attempts": {1: 1, "server": "x", "dns": 2},
        "first_failure": "yesterday",
    }
    assert run_of(one.crawler).bury(page)
    one.end(page)
    ((_, letter),) = letters(one)
    assert (letter.cls, letter.attempts, letter.first_failure) == ("other", {"dns": 2}, None)
    assert [error.reason for error in letter.errors] == ["503"]


def raised(one: Bench, page: Request) -> None:
    try:
        raise KeyError("price")
    except KeyError:
        failure = Failure()
    response = Response(page.url, request=page)
    one.crawler.signals.send_catch_log(
        signals.spider_error, failure=failure, response=response, spider=one.crawler.spider
    )


def test_callback_errors_are_kept(bench: Callable[..., Bench], crash: Callable[..., Bench]) -> None:
    """With the traceback, at once; HA_DLQ_CALLBACK_ERRORS switches it off."""
    for kept in (True, False):
        one = bench(f"kept {kept}", HA_DLQ_CALLBACK_ERRORS=kept)
        one.enqueue(Request("http://a.test/"))
        page = one.next()
        assert page is not None
        raised(one, Request("http://a.test/robots.txt"))
        raised(one, page)
        found = letters(crash(one, f"crashed {kept}"))
        one.end(page)
        assert one.counts() == (0, 0, 0, int(kept))
        assert len(found) == kept
        for _, letter in [*found, *letters(one)]:
            assert (letter.cls, letter.reason) == ("callback", "KeyError: 'price'")
            assert "in raised" in letter.traceback
            assert letter.attempts == {"callback": 1}


def test_an_errback_that_raises_leaves_the_class(bench: Callable[..., Bench]) -> None:
    """The download failed first; the traceback is added."""
    one = bench()
    one.enqueue(Request("http://a.test/"))
    page = one.next()
    assert page is not None
    page.meta[META_KEY]["gave_up"] = {"cls": "dns", "reason": "no such host"}
    raised(one, page)
    one.end(page)
    ((_, letter),) = letters(one)
    assert (letter.cls, letter.reason) == ("dns", "no such host")
    assert "KeyError" in letter.traceback


def test_poison_and_bad_records_have_letters(
    bench: Callable[..., Bench], crash: Callable[..., Bench]
) -> None:
    """In the same form as the others."""
    from scrapy_ha.typing import Entry

    one = bench(HA_MAX_DELIVERIES=1)
    completed(one.scheduler._frontier.offer([Entry(b"{", "host")]))
    one.enqueue(Request("http://a.test/"))
    page = one.next()
    assert page is not None
    one.scheduler._began(page)
    two = crash(one, HA_MAX_DELIVERIES=1)
    found = {letter.cls: letter for _, letter in letters(two)}
    assert found.keys() == {"bad_record", "poison"}
    assert (found["bad_record"].slot, found["bad_record"].spider) == ("host", "some")
    assert (found["poison"].slot, found["poison"].deliveries) == ("a.test", 1)


def test_limits_are_counted(bench: Callable[..., Bench]) -> None:
    """What is beyond HA_DLQ_LIMIT is forgotten, and the stats say how many."""
    one = bench(HA_DLQ_LIMIT=2)
    for number in range(5):
        one.enqueue(Request(f"http://a.test/{number}"))
    for page in one.all():
        page.meta[META_KEY]["gave_up"] = {"cls": "server", "reason": "503"}
        one.end(page)
    assert one.scheduler._commits._expire()
    assert [letter.url for _, letter in letters(one)] == ["http://a.test/3", "http://a.test/4"]
    assert one.crawler.stats.get_value("ha/dlq/expired") == 3  # type: ignore[union-attr]


# The gate


class FakeGate:
    """Says what the test has it say."""

    changed: Callable[[str | None], None]

    def __init__(self) -> None:
        self.limits: dict[str, int] = {}
        self.open = True
        self.handed: list[str] = []

    def is_open(self) -> bool:
        return self.open

    def limit(self, slot: str) -> int | None:
        return self.limits.get(slot)

    def taken(self, slot: str) -> None:
        self.handed.append(slot)

    def put(self, slot: str, limit: int | None) -> None:
        if limit is None:
            self.limits.pop(slot, None)
        else:
            self.limits[slot] = limit
        self.changed(slot)


def gated(bench: Callable[..., Bench]) -> tuple[Bench, FakeGate, list[str]]:
    """A bench with a gate, and a list that grows whenever the engine is woken."""
    one = bench()
    gate = FakeGate()
    run_of(one.crawler).gate = gate
    one.scheduler._gate = gate
    gate.changed = one.scheduler._gate_changed
    woken: list[str] = []
    one.engine._slot.nextcall.schedule = lambda: woken.append("woken")
    return one, gate, woken


def test_the_gate_is_found_on_opening(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that was registered before is told whom to call."""
    gate = FakeGate()
    made = run_of

    def with_gate(crawler: Any) -> Any:
        run = made(crawler)
        run.gate = gate
        return run

    monkeypatch.setattr(component, "run_of", with_gate)
    one = Bench(tmp_path / "ha", HA_FSYNC="never")
    gate.put("a.test", 0)
    one.enqueue(Request("http://a.test/"))
    assert one.next() is None
    one.close("shutdown")


def test_a_closed_slot_is_left_alone(bench: Callable[..., Bench]) -> None:
    """Its requests stay where they are, others go; one at a time when half open; all when open."""
    one, gate, woken = gated(bench)
    for number in range(20):
        one.enqueue(Request(f"http://sick.test/{number}"))
        one.enqueue(Request(f"http://well.test/{number}"))
    gate.put("sick.test", 0)
    assert woken
    assert {request.url.split("/")[2] for request in one.all()} == {"well.test"}
    assert set(gate.handed) == {"well.test"}
    assert one.scheduler.has_pending_requests()
    gate.put("sick.test", 1)
    (probe,) = one.all()
    assert one.next() is None
    gate.put("sick.test", 0)
    one.end(probe)
    assert one.all() == []
    gate.put("sick.test", None)
    assert len(one.all()) == 8


def test_a_closed_slot_in_memory_is_left_alone(bench: Callable[..., Bench]) -> None:
    """Requests that cannot be stored obey as well."""
    one, gate, _ = gated(bench)
    one.enqueue(Request("http://sick.test/", callback=lambda response: None))
    gate.put("sick.test", 0)
    assert one.next() is None
    assert one.scheduler.has_pending_requests()
    gate.put("sick.test", None)
    assert len(one.all()) == 1


def test_a_closed_gate_lets_nothing_out(bench: Callable[..., Bench]) -> None:
    """And wakes the engine when it opens."""
    one, gate, woken = gated(bench)
    one.enqueue(Request("http://a.test/"))
    gate.open = False
    assert one.next() is None
    assert one.scheduler.has_pending_requests()
    gate.open = True
    gate.changed(None)
    assert woken == ["woken"]
    assert len(one.all()) == 1


def test_the_gate_only_narrows_what_scrapy_allows(bench: Callable[..., Bench]) -> None:
    """The smaller of the two limits counts; where Scrapy sets none, the gate's, or what may be in flight."""
    for own, gates, expected in ((8, 100, 8), (8, 3, 3), (0, 3, 3), (0, None, 16)):
        one, gate, _ = gated(functools.partial(bench, f"{own} {gates}"))
        one.engine.downloader.domain_concurrency = own
        gate.put("a.test", gates)
        for number in range(20):
            one.enqueue(Request(f"http://a.test/{number}"))
        assert len(one.all()) == expected
