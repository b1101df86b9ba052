"""Retries with a scheduler that keeps no times: Scrapy's own, in memory and on disk, and scrapy-redis."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import scrapy
from faultserver import FaultServer, reply
from functional.harness import MakeCrawl, Site, StartSite
from functional.redis_server import running_redis

SCRAPYS = {"SCHEDULER": "scrapy.core.scheduler.Scheduler"}
PROMPT = {"HA_RETRY_AFTER_CAP": 1}
"""A cap that is also what the server asks for leaves no jitter."""

LOOPS: dict[str, dict[str, Any]] = {
    "asyncio": {"TWISTED_REACTOR": "twisted.internet.asyncioreactor.AsyncioSelectorReactor"},
    "select": {"TWISTED_REACTOR": "twisted.internet.selectreactor.SelectReactor"},
}
if scrapy.version_info >= (2, 19):
    LOOPS["no-reactor"] = {"TWISTED_REACTOR_ENABLED": False}


@pytest.fixture(scope="module")
def redis_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with running_redis(tmp_path_factory.mktemp("redis")) as url:
        yield url


@pytest.fixture(params=["jobdir", "redis"])
def keeping(request: pytest.FixtureRequest) -> dict[str, Any]:
    """Settings of each scheduler that keeps requests from run to run."""
    if request.param == "jobdir":
        return {**SCRAPYS, "JOBDIR": "job"}
    return {
        "SCHEDULER": "scrapy_redis.scheduler.Scheduler",
        "DUPEFILTER_CLASS": "scrapy_redis.dupefilter.RFPDupeFilter",
        "SCHEDULER_PERSIST": True,
        "SCHEDULER_FLUSH_ON_START": False,
        "REDIS_URL": request.getfixturevalue("redis_url"),
    }


def times(site: Site, what: str, page: str) -> list[float]:
    """When that happened to a page, whose name ends so."""
    return [event.time for event in site.events() if event.what == what and event.page.endswith(page)]


# Waiting takes up nothing


def test_others_go_on_while_retries_wait(start_site: StartSite, make_crawl: MakeCrawl) -> None:
    """Four requests that wait for 30 s leave all four places to the twenty of another host."""
    site = start_site(hosts="127.0.0.1,127.0.0.2")
    crawl = make_crawl(
        """
        class S(Spider):
            name = "s"
            quick = 20

            async def start(self):
                for n in range(4):
                    url = f"http://127.0.0.1:{self.port}/fails/1/429/patient{n}?after=30"
                    meta = {"download_slot": str(n)}  # or the first answer would hold them all
                    yield Request(url, priority=1, meta=meta)
                for n in range(20):
                    yield Request(f"http://127.0.0.2:{self.port}/ok/quick{n}", self.parse_quick)

            def parse(self, response):
                note("patient ones were fetched")

            def parse_quick(self, response):
                self.quick -= 1
                if not self.quick:
                    raise CloseSpider("all quick ones")
        """,
        settings={**SCRAPYS, "CONCURRENT_REQUESTS": 4},
        arguments=[f"-aport={site.port}"],
    )
    started = time.monotonic()
    run = crawl.run()
    assert time.monotonic() - started < 20
    assert run.reason == "all quick ones"
    failed = [event.time for event in site.events() if event.what == "429"]
    quick = [event.time for event in site.events() if event.what == "200"]
    assert (len(failed), len(quick)) == (4, 20)
    assert max(quick) - max(failed) < 2.0
    assert run.stats["ha/retry/timed"] == 4
    assert run.stats["ha/retry/handed_over"] == 4
    assert not crawl.notes()
    assert not run.lines("ERROR")


@pytest.mark.parametrize("loop", LOOPS)
def test_starts_when_it_is_due(loop: str, site: Site, make_crawl: MakeCrawl) -> None:
    """With nothing else to do; Scrapy by itself would look every 5 seconds. Then the spider is finished."""
    crawl = make_crawl(
        """
        class S(Spider):
            name = "s"

            async def start(self):
                yield Request(f"{self.site}/fails/2/429/page?after=1")

            def parse(self, response):
                yield {"page": response.url}
        """,
        settings={**SCRAPYS, **PROMPT, **LOOPS[loop]},
        arguments=[f"-asite={site.url}"],
    )
    run = crawl.run()
    assert run.reason == "finished"
    assert crawl.items().total() == 1
    asked, failed = times(site, "asked", "after=1"), times(site, "429", "after=1")
    assert len(asked) == 3
    for failure, again in zip(failed, asked[1:], strict=True):
        assert 1.0 <= again - failure <= 1.3
    assert run.stats["ha/retry/timed"] == 2
    assert run.stats["retry/count"] == 2
    assert not run.lines("ERROR")


# What outlives the run


def test_what_waits_goes_on_in_the_next_run(
    keeping: dict[str, Any], site: Site, make_crawl: MakeCrawl
) -> None:
    """The scheduler gets it when the spider closes; the next run fetches it, at its time and no sooner."""
    crawl = make_crawl(
        """
        class S(Spider):
            name = "s"

            async def start(self):
                yield Request(f"{self.site}/fails/1/429/one?after=6")
                yield Request(f"{self.site}/fails/1/429/two?after=6")
                yield Request(f"{self.site}/slow/1/last", self.parse_last)

            def parse(self, response):
                yield {"page": response.url, "retries": response.meta["retry_times"]}

            def parse_last(self, response):
                raise CloseSpider("enough")
        """,
        settings={**keeping, "HA_RETRY_AFTER_CAP": 6},
        arguments=[f"-asite={site.url}"],
    )
    first = crawl.run()
    assert first.reason == "enough"
    assert first.stats["ha/retry/handed_over"] == 2
    assert not crawl.items()
    second = crawl.run()
    assert second.reason == "finished"
    assert second.stats["ha/run/ha/retry/timed"] >= 2
    # Whoever keeps requests for several workers is not joined by a journal of one.
    assert ("ha/journal/restored" in second.stats) is ("JOBDIR" in keeping)
    assert crawl.items() == {
        json.dumps({"page": f"{site.url}/fails/1/429/{name}?after=6", "retries": 1}): 1
        for name in ("one", "two")
    }
    for name in ("one", "two"):
        (failure,) = times(site, "429", f"{name}?after=6")
        _, again = times(site, "asked", f"{name}?after=6")
        assert again - failure >= 6.0
    for run in (first, second):
        assert not run.lines("ERROR")


def test_another_worker_waits_for_the_rest(redis_url: str, site: Site, make_crawl: MakeCrawl) -> None:
    """What one worker left in Redis another one, that runs already, takes up, and waits."""
    settings = {
        "SCHEDULER": "scrapy_redis.scheduler.Scheduler",
        "DUPEFILTER_CLASS": "scrapy_redis.dupefilter.RFPDupeFilter",
        "SCHEDULER_PERSIST": True,
        "SCHEDULER_QUEUE_KEY": "workers:requests",
        "REDIS_URL": redis_url,
        "HA_RETRY_AFTER_CAP": 6,
    }
    source = """
        from scrapy import signals
        from scrapy.exceptions import DontCloseSpider

        class S(Spider):
            name = "s"
            first = None

            @classmethod
            def from_crawler(cls, crawler, *args, **kwargs):
                spider = super().from_crawler(crawler, *args, **kwargs)
                if not spider.first:
                    crawler.signals.connect(spider.idle, signals.spider_idle)
                return spider

            def idle(self):
                if not os.path.exists("parsed"):
                    raise DontCloseSpider

            async def start(self):
                if self.first:
                    yield Request(f"{self.site}/fails/1/429/page?after=6", dont_filter=True)
                    yield Request(f"{self.site}/slow/1/last", self.parse_last, dont_filter=True)

            def parse(self, response):
                first_time("parsed"), open("parsed", "w").close()
                yield {"page": response.url}

            def parse_last(self, response):
                raise CloseSpider("enough")
    """
    one, two = (
        make_crawl(source, name=name, settings=settings, arguments=[f"-asite={site.url}", *more])
        for name, more in (("one", ["-afirst=1"]), ("two", []))
    )
    assert one.run().reason == "enough"
    run = two.run()
    assert run.reason == "finished"
    assert two.items().total() == 1
    (failure,) = times(site, "429", "page?after=6")
    _, again = times(site, "asked", "page?after=6")
    assert again - failure >= 6.0


# What the spider sees


@pytest.fixture
def fault_server() -> Iterator[FaultServer]:
    with FaultServer() as server:
        yield server


@pytest.mark.parametrize("loop", LOOPS)
def test_the_failed_request_ends_silently(
    loop: str, fault_server: FaultServer, make_crawl: MakeCrawl
) -> None:
    """Its errback is called once, when the retries are used up; nothing is logged or counted before."""
    cut = b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nnot so long"
    once = [cut, reply(200)]
    site = fault_server.site({"/down": [cut], "/once": once, "/without": once})
    crawl = make_crawl(
        """
        class S(Spider):
            name = "s"

            async def start(self):
                yield Request(self.site + "/down", errback=self.failed)
                yield Request(self.site + "/once", errback=self.failed)
                yield Request(self.site + "/without")

            def parse(self, response):
                note("parsed " + response.url.rpartition("/")[2])

            def failed(self, failure):
                retries = failure.request.meta["retry_times"]
                note("failed " + failure.request.url.rpartition("/")[2] + f" after {retries} retries")
                yield {"errback": 1}
        """,
        settings={
            **SCRAPYS,
            **LOOPS[loop],
            "RETRY_TIMES": 2,
            "RETRY_GIVE_UP_LOG_LEVEL": "INFO",
            "HA_RETRY_BASE": 0.3,
            "HA_RETRY_FLOOR": 0.2,
        },
        arguments=[f"-asite={site}"],
    )
    run = crawl.run()
    assert run.reason == "finished"
    assert crawl.notes() == {"failed down after 2 retries": 1, "parsed once": 1, "parsed without": 1}
    assert len(fault_server.hits[site + "/down"]) == 3
    assert run.stats["ha/retry/timed"] == 4
    assert not run.lines("ERROR")
    assert "IgnoreRequest" not in run.log
    unusual = ("spider_exceptions", "httperror", "log_count/ERROR", "scheduler/dropped", "ha/retry/gave_up")
    assert {name: value for name, value in run.stats.items() if name.startswith(unusual)} == {
        "ha/retry/gave_up/truncated": 1
    }


CALLBACK = """
    from scrapy.downloadermiddlewares.retry import get_retry_request

    class S(Spider):
        name = "s"
        handle_httpstatus_list = [404]

        async def start(self):
            yield Request(f"{self.site}/fails/1/404/page", meta={"mine": 1})

        def parse(self, response):
            yield {"status": response.status, "retries": response.meta.get("retry_times")}
            if response.status == 404:
                yield get_retry_request(response.request, spider=self, reason="empty")
                yield response.follow("/ok/child", self.parse_child, meta=response.meta)

        def parse_child(self, response):
            yield {"child": sorted(set(response.meta) & {"mine", "retry_times"})}
"""
CALLBACK_DELAY = {"HA_RETRY_BASE": 1, "HA_RETRY_FLOOR": 1}


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("scheduler", ["ours", "scrapys"])
def test_a_callbacks_retry_waits(scheduler: str, loop: str, site: Site, make_crawl: MakeCrawl) -> None:
    """As ``get_retry_request`` made it; what else the callback yields does not."""
    settings = {**LOOPS[loop], **CALLBACK_DELAY, **(SCRAPYS if scheduler == "scrapys" else {})}
    crawl = make_crawl(CALLBACK, settings=settings, arguments=[f"-asite={site.url}"])
    run = crawl.run()
    assert run.reason == "finished"
    expected = [{"status": 404, "retries": None}, {"status": 200, "retries": 1}, {"child": ["mine"]}]
    assert crawl.items() == {json.dumps(item, sort_keys=True): 1 for item in expected}
    (failure,) = times(site, "404", "/page")
    _, again = times(site, "asked", "/page")
    assert 1.0 <= again - failure <= 1.5
    assert times(site, "asked", "/child")[0] < again
    assert run.stats["ha/retry/callback"] == 1
    assert run.stats["retry/count"] == 1
    assert run.stats.get("ha/retry/timed", 0) == (scheduler == "scrapys")
    assert not run.lines("ERROR")


def test_a_callbacks_retry_survives_a_kill(site: Site, make_crawl: MakeCrawl) -> None:
    """With our scheduler, while it waits: it is sent at its time, and the page before it is done."""
    crawl = make_crawl(
        CALLBACK,
        settings={"HA_RETRY_BASE": 4, "HA_RETRY_FLOOR": 4, "HA_FSYNC": "always"},
        arguments=[f"-asite={site.url}"],
    )

    def is_done() -> bool:  # the page and its other child, on the device too
        answered = times(site, "200", "/child")
        return bool(answered) and time.time() > answered[0] + 1.0

    crawl.run(kill_when=is_done)
    assert crawl.run().reason == "finished"
    (failure,) = times(site, "404", "/page")
    _, again = times(site, "asked", "/page")
    assert 4.0 <= again - failure <= 6.0
    assert crawl.items().total() == 3
    counts, dead = crawl.frontier()
    assert (counts.pending, dead) == (0, [])


# What no scheduler handed out


@pytest.mark.parametrize("scheduler", ["ours", "scrapys"])
def test_robots_txt_and_media_wait(scheduler: str, fault_server: FaultServer, make_crawl: MakeCrawl) -> None:
    """As long as the server asks, within the middleware; never in a loop, while other hosts go on."""
    patience = [reply(503, Retry_After="2")] * 2
    slow = fault_server.site({"/robots.txt": [*patience, reply(200)], "/page": [reply(200)]})
    throttled = [reply(429, Retry_After="1")] * 2
    other = fault_server.site(
        {
            "/robots.txt": [reply(200)],
            "/image.png": [*throttled, reply(200, b"pixels")],
            "/direct": [*throttled, reply(200, b"at last")],
            **{f"/{n}": [reply(200)] for n in range(10)},
        }
    )
    crawl = make_crawl(
        """
        class S(Spider):
            name = "s"

            async def start(self):
                yield Request(self.slow + "/page")
                for n in range(10):
                    yield Request(f"{self.other}/{n}")

            async def parse(self, response):
                if response.url.endswith("/page"):
                    yield {"page": response.url}
                elif response.url.endswith("/0"):
                    yield {"file_urls": [self.other + "/image.png"]}
                elif response.url.endswith("/1"):
                    download = getattr(self.crawler.engine, "download_async", None)
                    request = Request(self.other + "/direct")
                    if download is not None:
                        direct = await download(request)
                    else:
                        from scrapy.utils.defer import maybe_deferred_to_future
                        direct = await maybe_deferred_to_future(self.crawler.engine.download(request))
                    yield {"direct": direct.text}
        """,
        settings={
            **(SCRAPYS if scheduler == "scrapys" else {}),
            "ROBOTSTXT_OBEY": True,
            "ITEM_PIPELINES": {"scrapy.pipelines.files.FilesPipeline": 1},
            "FILES_STORE": "files",
        },
        arguments=[f"-aslow={slow}", f"-aother={other}"],
    )
    run = crawl.run()
    assert run.reason == "finished"
    for url, wait in ((slow + "/robots.txt", 2.0), (other + "/image.png", 1.0), (other + "/direct", 1.0)):
        first, second, third = fault_server.hits[url]
        assert second - first >= wait, url
        assert third - second >= wait, url
    for n in range(10):
        assert fault_server.hits[f"{other}/{n}"][0] < fault_server.hits[slow + "/robots.txt"][1]
    items = [json.loads(item) for item in crawl.items()]
    assert {"page": slow + "/page", "files": []} in items
    assert {"direct": "at last", "files": []} in items
    (path,) = [file["path"] for item in items for file in item["files"]]
    assert (crawl.directory / "files" / Path(path)).read_bytes() == b"pixels"
    assert scheduler == "scrapys" or "ha/retry/timed" not in run.stats  # pages of the host wait there
    assert not run.lines("ERROR")


def test_a_full_house_waits_in_the_downloader(site: Site, make_crawl: MakeCrawl) -> None:
    """Beyond so many on the timers; no retry is sent early, none is lost."""
    crawl = make_crawl(
        """
        from scrapy_ha.retry import timers

        timers.LIMIT = 2

        class S(Spider):
            name = "s"

            async def start(self):
                for n in range(6):
                    meta = {"download_slot": str(n)}  # or the first answer would hold them all
                    yield Request(f"{self.site}/fails/1/429/page{n}?after=3", meta=meta)
                    await asyncio.sleep(0.2)

            def parse(self, response):
                yield {"page": response.url}
        """,
        settings={**SCRAPYS, "HA_RETRY_AFTER_CAP": 3},
        arguments=[f"-asite={site.url}"],
    )
    run = crawl.run()
    assert run.reason == "finished"
    assert crawl.items().total() == 6
    for n in range(6):
        (failure,) = times(site, "429", f"page{n}?after=3")
        _, again = times(site, "asked", f"page{n}?after=3")
        assert again - failure >= 3.0
    # The limit is soft: what is on its way to the timers is not counted yet.
    full, timed = run.stats["ha/retry/timers_full"], run.stats["ha/retry/timed"]
    assert full + timed >= 6  # who comes a moment too early waits once more
    assert full >= 1
    assert run.log.count("retries are waiting for their time") == 1
