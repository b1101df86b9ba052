"""What a sick host answers first is noticed, whatever it is; and what stands in a probe's way is let by."""

from __future__ import annotations

import signal
import threading
import time
from typing import Any

import pytest
from functional.harness import MakeCrawl, Site, StartSite
from functional.late_server import OK, RESET, coming_up, free_port

SCHEDULERS: dict[str, dict[str, Any]] = {
    "ours": {},
    "scrapys": {"SCHEDULER": "scrapy.core.scheduler.Scheduler"},
}
BRISK = {
    "HA_BREAKER_COOLDOWN": 1,
    "HA_OUTAGE_PROBE": 1,
    "HA_OUTAGE_SILENCE": 0.5,
    "HA_RETRY_BASE": 0.5,
    "HA_RETRY_CAP": 1,
}

PAGES = """
    class S(Spider):
        name = "s"

        async def start(self):
            for url in self.urls.split():
                yield Request(url, errback=self.failed)

        def parse(self, response):
            yield {"page": response.url}

        def failed(self, failure):
            yield {"failed": failure.request.url}
"""


@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_a_host_that_only_redirects_is_well(
    scheduler: str, start_site: StartSite, make_crawl: MakeCrawl
) -> None:
    """It was down, and leads to another host: its breaker closes, and its pages follow at full speed."""
    other = start_site(hosts="127.0.0.2")
    port = free_port()
    crawl = make_crawl(
        PAGES,
        settings={**BRISK, **SCHEDULERS[scheduler], "RETRY_TIMES": 8, "LOG_LEVEL": "INFO"},
        arguments=["-aurls=" + " ".join(f"http://127.0.0.1:{port}/{n}" for n in range(30))],
    )

    def redirect(path: str) -> bytes:
        location = f"http://127.0.0.2:{other.port}/ok{path}".encode()
        return (
            b"HTTP/1.1 302 Found\r\nLocation: %s\r\nContent-Length: 0\r\nConnection: close\r\n\r\n" % location
        )

    with coming_up(port, after=3.0, answer=redirect):
        run = crawl.run(timeout=30)
    assert run.reason == "finished"
    assert run.stats["ha/guard/opened"] >= 1
    assert run.stats["ha/guard/closed"] == 1
    assert crawl.items().total() == 30


def test_robots_txt_of_the_probe_is_not_kept_waiting(make_crawl: MakeCrawl) -> None:
    """After a restart the breaker is still open, and robots.txt is needed before the page may be sent."""
    port = free_port()
    crawl = make_crawl(
        PAGES,
        settings={**BRISK, "HA_BREAKER_COOLDOWN": 4, "ROBOTSTXT_OBEY": True, "RETRY_TIMES": 20},
        arguments=["-aurls=" + " ".join(f"http://127.0.0.1:{port}/{n}" for n in range(20))],
    )
    crawl.run(kill_when=lambda: crawl.said("127.0.0.1 fails", after=1.5))
    with coming_up(port, after=0.0):
        started = time.monotonic()
        run = crawl.run(timeout=50)
    assert time.monotonic() - started < 20
    assert run.reason == "finished"
    assert run.stats["ha/guard/closed"] == 1
    assert crawl.items().total() == 20


def test_what_is_dropped_does_not_delay_the_end_of_an_outage(
    make_crawl: MakeCrawl,
) -> None:
    """A hundred requests that are dropped stand in front of one that meets a host which is up again."""
    port = free_port()
    hosts = [f"127.0.0.{n}" for n in range(10, 22)]
    crawl = make_crawl(
        """
        class Drop:
            def process_request(self, request, **kwargs):
                if request.meta.get("drop"):
                    raise IgnoreRequest("not wanted")

        class S(Spider):
            name = "s"

            async def start(self):
                for n in range(10, 22):
                    yield Request(f"http://127.0.0.{n}:{self.port}/")
                await asyncio.sleep(2.5)
                for n in range(100):
                    host = f"http://127.0.0.{10 + n % 12}:{self.port}"
                    yield Request(f"{host}/{n}", priority=10, meta={"drop": True})

            def parse(self, response):
                yield {"page": response.url}
        """,
        settings={
            **BRISK,
            "DOWNLOADER_MIDDLEWARES": {"project.main.Drop": 543},
            "HA_OUTAGE_SILENCE": 1,
            "CONCURRENT_REQUESTS": 12,
        },
        arguments=[f"-aport={port}"],
    )
    with coming_up(port, after=4.0, host="0.0.0.0"):
        run = crawl.run(timeout=30)
    assert run.reason == "finished"
    assert run.stats["ha/guard/outage"] == 1
    assert crawl.items().total() == len(hosts)


@pytest.mark.parametrize("scheduler", ["ours", "jobdir"])
def test_sigterm_uses_up_no_attempt(scheduler: str, make_crawl: MakeCrawl) -> None:
    """What is on its way fails while the spider closes. The next run tries it as often as it would have."""
    port = free_port()
    settings = {} if scheduler == "ours" else {**SCHEDULERS["scrapys"], "JOBDIR": "job"}
    crawl = make_crawl(
        PAGES,
        settings={**BRISK, **settings, "RETRY_TIMES": 1},
        arguments=["-aurls=" + " ".join(f"http://127.0.0.1:{port}/{n}" for n in range(4))],
    )
    closing = threading.Event()

    def reset(path: str) -> bytes:
        closing.wait(20)
        return RESET

    with coming_up(port, after=0.0, answer=reset) as times:
        process = crawl.start()
        deadline = time.monotonic() + 20
        while len(times) < 4 and time.monotonic() < deadline:
            time.sleep(0.05)
        process.send_signal(signal.SIGTERM)
        while not crawl.said("Closing spider (shutdown)") and time.monotonic() < deadline:
            time.sleep(0.05)
        closing.set()
        first = crawl.end(process)
    assert first.reason == "shutdown"
    assert first.stats["ha/retry/not_counted"] == 4
    assert "retry/count" not in first.stats
    assert not crawl.items()
    if scheduler == "ours":
        counts, dead = crawl.frontier()
        assert (counts.pending, dead) == (4, [])

    failed_once: set[str] = set()

    def fail_once(path: str) -> bytes:
        reply = OK if path in failed_once else RESET
        failed_once.add(path)
        return reply

    with coming_up(port, after=0.0, answer=fail_once):
        second = crawl.run()
    assert second.reason == "finished"
    assert crawl.items().total() == 4
    assert all("failed" not in item for item in crawl.items())


def test_a_direct_download_does_not_keep_the_spider_from_closing(make_crawl: MakeCrawl) -> None:
    """It fails at once, again and again, and no scheduler would keep it."""
    crawl = make_crawl(
        """
        class S(Spider):
            name = "s"

            async def start(self):
                yield Request(f"data:,{self.port}")

            async def parse(self, response):
                engine = self.crawler.engine
                request = Request(f"http://127.0.0.1:{self.port}/", callback=self.parse)
                try:
                    if hasattr(engine, "download_async"):
                        await engine.download_async(request)
                    else:
                        from scrapy.utils.defer import maybe_deferred_to_future
                        await maybe_deferred_to_future(engine.download(request))
                except Exception as error:
                    note(type(error).__name__)
        """,
        settings={"RETRY_TIMES": 100, "HA_RETRY_BASE": 2},
        arguments=[f"-aport={free_port()}"],
    )
    process = crawl.start()
    deadline = time.monotonic() + 20
    while not crawl.said("Retrying <GET http") and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    run = crawl.end(process, timeout=15)
    assert run.reason == "shutdown"
    assert sum(crawl.notes().values()) == 1


def test_a_breaker_that_is_kept_closed(make_crawl: MakeCrawl) -> None:
    """HA_BREAKER_FORCE: the host is sent all requests though it refuses every one."""
    urls = [f"http://127.0.0.1:{free_port()}/{n}" for n in range(30)]
    crawl = make_crawl(
        PAGES,
        settings={**BRISK, "RETRY_TIMES": 0, "HA_BREAKER_FORCE": {"127.0.0.1": "closed"}},
        arguments=[f"-aurls={' '.join(urls)}"],
    )
    run = crawl.run()
    assert run.reason == "finished"
    assert "ha/guard/opened" not in run.stats
    assert run.stats["downloader/request_count"] == 30
    assert sum("failed" in item for item in crawl.items()) == 30


@pytest.mark.parametrize("takes", [0.0, 0.8])
def test_dead_names_among_good_hosts(takes: float, start_site: StartSite, make_crawl: MakeCrawl) -> None:
    """R6: the good hosts are done, the names are given up one by one, nothing pauses, the crawl ends.

    Names that are slow to fail take up all connections meanwhile, so that for a while nobody answers.
    """
    site = start_site(hosts=",".join(f"127.0.0.{n}" for n in range(2, 12)))
    crawl = make_crawl(
        """
        from scrapy.resolver import CachingThreadedResolver
        from twisted.internet.defer import Deferred
        from twisted.internet.error import DNSLookupError

        class Resolver(CachingThreadedResolver):
            takes = 0.0

            @classmethod
            def from_crawler(cls, crawler, reactor):
                cls.takes = crawler.settings.getfloat("TAKES")
                return super().from_crawler(crawler, reactor)

            def getHostByName(self, name, timeout=None):
                if not name.endswith(".invalid"):
                    return super().getHostByName(name, timeout)
                failed = Deferred()
                self.reactor.callLater(self.takes, failed.errback, DNSLookupError(name))
                return failed

        class S(Spider):
            name = "s"

            async def start(self):
                for n in range(80):
                    yield Request(f"http://dead{n}.invalid/", errback=self.failed)
                    yield Request(f"http://127.0.0.{2 + n % 10}:{self.port}/slow/0.1/{n}")

            def parse(self, response):
                yield {"page": response.url}

            def failed(self, failure):
                yield {"failed": failure.request.url}
        """,
        settings={
            "DNS_RESOLVER": "project.main.Resolver",
            "TAKES": takes,
            "HA_RETRY_POLICIES": {"dns": {"backoff": "fixed", "base": 0.5, "jitter": "none", "retries": 1}},
            "HA_OUTAGE_SILENCE": 0.5,
            "HA_OUTAGE_MAX_PROBE": 1,
            "HA_OUTAGE_PROBE": 1,
            "HA_OUTAGE_DEADLINE": 20,
        },
        arguments=[f"-aport={site.port}"],
    )
    started = time.monotonic()
    run = crawl.run(timeout=40)
    assert time.monotonic() - started < 25
    assert run.reason == "finished"
    assert "ha/guard/outage" not in run.stats
    items = crawl.items()
    assert sum("failed" in item for item in items) == 80
    assert sum("page" in item for item in items) == 80
    counts, dead = crawl.frontier()
    assert (counts.pending, len(dead)) == (0, 80)


# With Scrapy's own scheduler


def asked(site: Site, ending: str) -> list[float]:
    return [event.time for event in site.events() if event.what == "asked" and event.page.endswith(ending)]


def test_a_hold_without_our_scheduler(start_site: StartSite, make_crawl: MakeCrawl) -> None:
    """R1: the second page of the host waits too, on the timers; another host's does not."""
    site = start_site(hosts="127.0.0.1,127.0.0.2")
    other = site.url.replace("127.0.0.1", "127.0.0.2")
    urls = [f"{site.url}/fails/1/429/first?after=2", f"{site.url}/ok/second", f"{other}/slow/0.5/other"]
    crawl = make_crawl(
        PAGES,
        settings={
            **SCHEDULERS["scrapys"],
            "CONCURRENT_REQUESTS": 2,
            "DOWNLOAD_DELAY": 0.1,
            "CONCURRENT_REQUESTS_PER_DOMAIN": 1,
            "SCHEDULER_PRIORITY_QUEUE": "scrapy.pqueues.ScrapyPriorityQueue",
            "SCHEDULER_MEMORY_QUEUE": "scrapy.squeues.FifoMemoryQueue",
        },
        arguments=[f"-aurls={urls[0]} {urls[2]} {urls[1]}"],
    )
    run = crawl.run()
    assert run.reason == "finished"
    (refused,) = [event.time for event in site.events() if event.what == "429"]
    _, again = asked(site, "first?after=2")
    (second,) = asked(site, "second")
    assert again - refused >= 2.0
    assert second - refused >= 2.0
    assert asked(site, "other")[0] - refused < 1.5
    assert crawl.items().total() == 3


def test_an_open_breaker_without_our_scheduler(start_site: StartSite, make_crawl: MakeCrawl) -> None:
    """R7: a host that is down for 4 s costs no page, is hardly asked, and does not hinder another one."""
    site = start_site(hosts="127.0.0.2")
    port = free_port()
    sick = [f"http://127.0.0.1:{port}/{n}" for n in range(60)]
    well = [f"http://127.0.0.2:{site.port}/ok/{n}" for n in range(60)]
    crawl = make_crawl(
        PAGES,
        settings={**BRISK, **SCHEDULERS["scrapys"], "RETRY_TIMES": 2},
        arguments=[f"-aurls={' '.join(sick + well)}"],
    )
    started = time.time()
    with coming_up(port, after=4.0) as times:
        run = crawl.run(timeout=40)
    assert run.reason == "finished"
    assert crawl.items().total() == 120
    assert all("failed" not in item for item in crawl.items())
    assert run.stats["ha/guard/closed"] == 1
    assert run.stats["downloader/request_count"] <= 120 + 30
    assert max(asked(site, "")) < times[0]
    assert times[0] - started < 15
