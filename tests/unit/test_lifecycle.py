"""The private parts of Scrapy's engine that the lifecycle looks into are where it expects them."""

from __future__ import annotations

import subprocess
import sys

import pytest

SCRIPT = """
import sys
import scrapy
from scrapy.core.scheduler import Scheduler
from scrapy.crawler import CrawlerProcess
from scrapy.exceptions import IgnoreRequest
from scrapy_ha.lifecycle import is_closing, watch
from scrapy_ha.run import current_page

ended, pages = [], {}

class Watched(Scheduler):
    def open(self, spider):
        self.lifecycle = watch(spider.crawler)
        self.lifecycle.ended.append(lambda request: ended.append(request.meta["n"]))
        self.lifecycle.wrap_start(self.started)
        return super().open(spider)

    async def started(self, start):
        async for one in start:
            yield one
        print("seeded")

    def enqueue_request(self, request):
        page = current_page.get()
        pages[request.meta["n"]] = page.meta["n"] if page is not None else None
        return super().enqueue_request(request)

    def next_request(self):
        current_page.set(None)
        return super().next_request()

class Middleware:
    def process_request(self, request, spider=None):
        if request.meta["n"] == "ignored":
            raise IgnoreRequest

class Spider(scrapy.Spider):
    name = "endings"
    custom_settings = {"DOWNLOADER_MIDDLEWARES": {Middleware: 1}}

    async def start(self):
        yield scrapy.Request("data:,a", meta={"n": "page"})
        yield scrapy.Request("data:,b", self.fails, meta={"n": "fails"})
        yield scrapy.Request("data:,c", meta={"n": "ignored"})
        yield scrapy.Request("data:,d", meta={"n": "errback"}, errback=self.errback)
        yield scrapy.Request("nosuch://x/y", meta={"n": "nohandler"}, errback=self.errback)

    def closed(self, reason):
        print("closing in the end", is_closing(self.crawler))

    def parse(self, response):
        print("closing in a callback", is_closing(self.crawler))
        if response.meta["n"] == "page":
            yield {"n": "page"}
            yield scrapy.Request("data:,e", meta={"n": "child"})

    def fails(self, response):
        raise ValueError("on purpose")

    def errback(self, failure):
        yield scrapy.Request("data:,f", meta={"n": "of errback"})

process = CrawlerProcess({"SCHEDULER": Watched, "LOG_LEVEL": "CRITICAL", "TELNETCONSOLE_ENABLED": False})
process.crawl(Spider)
process.start()
print("ended", sorted(ended))
print("pages", pages)
"""


ATTENDED = """
import scrapy
from scrapy import signals
from scrapy.crawler import CrawlerProcess
from scrapy.exceptions import IgnoreRequest
from scrapy_ha.lifecycle import enqueue, watch
from scrapy_ha.run import current_page

late, scheduled = [], {}

class Extension:
    @classmethod
    def from_crawler(cls, crawler):
        self = cls()
        self.crawler = crawler
        crawler.signals.connect(self.opened, signals.spider_opened)
        crawler.signals.connect(self.scheduled, signals.request_scheduled)
        return self

    def opened(self):
        watching = watch(self.crawler)
        assert watch(self.crawler) is watching
        watching.admitted.append(self.admit)
        watching.closing.append(self.closing)
        watching.attend()
        watching.attend()

    def scheduled(self, request):
        page = current_page.get()
        n = request.meta["n"]
        scheduled[n] = page.meta["n"] if page is not None else None
        if n == "refused":
            raise IgnoreRequest

    def admit(self, request):
        print("admitted", request.meta["n"], current_page.get())
        if request.meta["n"] != "late":
            return True
        late.append(request)
        return False

    def closing(self):
        print("enqueued", enqueue(self.crawler, late[0]))
        print("pending", self.crawler.engine._slot.scheduler.has_pending_requests())

class Spider(scrapy.Spider):
    name = "attended"

    async def start(self):
        for n in ("late", "refused", "page"):
            yield scrapy.Request("data:," + n, meta={"n": n}, dont_filter=True)

    def parse(self, response):
        print("parsed", response.meta["n"])
        if response.meta["n"] == "page":
            yield scrapy.Request("data:,child", meta={"n": "child"})

settings = {"EXTENSIONS": {Extension: 1}, "LOG_LEVEL": "INFO", "TELNETCONSOLE_ENABLED": False}
process = CrawlerProcess(settings)
process.crawl(Spider)
process.start()
print("scheduled", scheduled)
"""


def run(script: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done


@pytest.fixture(scope="module")
def output() -> str:
    return run(SCRIPT).stdout


@pytest.fixture(scope="module")
def attended() -> subprocess.CompletedProcess[str]:
    return run(ATTENDED)


def test_every_ending_is_noticed(output: str) -> None:
    """Parsed, callback raised, ignored by a middleware, failed with errback: each ends once."""
    line = next(line for line in output.splitlines() if line.startswith("ended"))
    for name in ("page", "fails", "ignored", "errback", "nohandler", "child"):
        assert line.count(f"'{name}'") == 1, output


def test_children_know_their_page(output: str) -> None:
    """A request from a callback is enqueued within its page, a start request within none."""
    line = next(line for line in output.splitlines() if line.startswith("pages"))
    assert "'child': 'page'" in line, output
    assert "'page': None" in line, output


def test_start_is_wrapped(output: str) -> None:
    """The iterator of start requests can be replaced, and runs to its end."""
    assert "seeded" in output.splitlines()


def test_closing_is_noticed(output: str) -> None:
    """Not while callbacks run, but when the spider closes."""
    assert "closing in a callback False" in output.splitlines()
    assert "closing in the end True" in output.splitlines()


def test_a_scheduler_is_attended(attended: subprocess.CompletedProcess[str]) -> None:
    """What it hands out may be kept from the engine, outside any page's context; the rest is fetched."""
    lines = attended.stdout.splitlines()
    assert {f"admitted {n} None" for n in ("late", "page", "child")} <= {*lines}, attended.stdout
    assert sorted(line for line in lines if line.startswith("parsed")) == ["parsed child", "parsed page"]


def test_an_attended_scheduler_is_open_until_the_end(attended: subprocess.CompletedProcess[str]) -> None:
    """It takes a request just before it is closed."""
    assert attended.stdout.splitlines().count("enqueued True") == 1, attended.stdout
    assert "pending True" in attended.stdout.splitlines()


def test_scheduling_can_be_refused_silently(attended: subprocess.CompletedProcess[str]) -> None:
    """By a handler of ``request_scheduled``, which knows the page that the request comes from."""
    (line,) = [line for line in attended.stdout.splitlines() if line.startswith("scheduled")]
    assert line == "scheduled {'late': None, 'refused': None, 'page': None, 'child': 'page'}"
    assert "'finish_reason': 'finished'" in attended.stderr
    assert "IgnoreRequest" not in attended.stderr
    assert "ERROR" not in attended.stderr
    assert "'scheduler/enqueued': 4" in attended.stderr, "late, twice; page; child"
