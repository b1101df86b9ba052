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
from scrapy_ha.lifecycle import Lifecycle, is_closing
from scrapy_ha.run import current_page

ended, pages = [], {}

class Watched(Scheduler):
    def open(self, spider):
        self.lifecycle = Lifecycle(spider.crawler, lambda request: ended.append(request.meta["n"]))
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


@pytest.fixture(scope="module")
def output() -> str:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


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
