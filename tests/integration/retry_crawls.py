"""Crawls that ``test_retry_faults.py`` runs, each in a process of its own: a reactor starts only once.

``python retry_crawls.py CRAWL HANDLER ARGUMENTS``; arguments and output are JSON.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, ClassVar

import scrapy
from scrapy import Request, signals
from scrapy.exceptions import CloseSpider

from scrapy_ha.retry import classify_exception
from scrapy_ha.state import get_state

HTTPX = "scrapy.core.downloader.handlers._httpx.HttpxDownloadHandler"
HTTP2 = "scrapy.core.downloader.handlers.http2.H2DownloadHandler"

HANDLERS: dict[str, dict[str, Any]] = {
    "twisted": {"TWISTED_REACTOR": "twisted.internet.asyncioreactor.AsyncioSelectorReactor"},
    "twisted-select": {"TWISTED_REACTOR": "twisted.internet.selectreactor.SelectReactor"},
    "http2": {"DOWNLOAD_HANDLERS": {"https": HTTP2}},
    "aiohttp": {"TWISTED_REACTOR_ENABLED": False},
    "httpx": {"TWISTED_REACTOR_ENABLED": False, "DOWNLOAD_HANDLERS": {"http": HTTPX, "https": HTTPX}},
}
"""Settings of each way to download."""

COMMON: dict[str, Any] = {
    "LOG_LEVEL": "ERROR",
    "TELNETCONSOLE_ENABLED": False,
    "DOWNLOADER_MIDDLEWARES": {
        "scrapy.downloadermiddlewares.retry.RetryMiddleware": None,
        "scrapy_ha.retry.ClassifiedRetryMiddleware": 550,
    },
    "RETRY_GIVE_UP_LOG_LEVEL": "DEBUG",
}


class Reporting(scrapy.Spider):
    """Prints one JSON object when it closes."""

    given: ClassVar[dict[str, Any]] = {}

    @classmethod
    def from_crawler(cls, crawler: Any, *args: Any, **kwargs: Any) -> Any:
        spider = super().from_crawler(crawler, *args, **kwargs)
        spider.report = {}
        crawler.signals.connect(spider.print_report, signals.spider_closed)
        return spider

    def print_report(self, reason: str) -> None:
        stats = {name: value for name, value in self.crawler.stats.get_stats().items() if type(value) is int}
        print(json.dumps({**self.report, "reason": reason, "stats": stats}))


class Faults(Reporting):
    """Meets each fault twice and reports its class: by the errback, and by the middleware."""

    name = "faults"
    custom_settings: ClassVar[dict[str, Any]] = {
        "RETRY_TIMES": 1,
        "HA_RETRY_BASE": 0,
        "HA_RETRY_FLOOR": 0,
        "CONCURRENT_REQUESTS_PER_DOMAIN": 16,
        "HA_RETRY_CAP": 0.1,
        "HA_OUTAGE_ENABLED": False,  # nothing answers here
    }

    async def start(self) -> Any:
        for fault, (url, proxy) in self.given.items():
            meta = {"fault": fault, "download_timeout": 0.7, "download_slot": fault}
            if proxy:
                meta["proxy"] = proxy
            yield Request(url, meta=meta, errback=self.failed)

    def parse(self, response: Any) -> None:
        self.report[response.meta["fault"]] = ["no failure", None, response.status]

    def failed(self, failure: Any) -> None:
        request = failure.request
        state = get_state(request)
        cls = classify_exception(failure.value, proxied="proxy" in request.meta)
        gave_up = state.get("gave_up", {})
        self.report[request.meta["fault"]] = [cls.value, gave_up.get("cls"), state.get("attempts")]


class Waits(Reporting):
    """Under Scrapy's own scheduler: a page, a file and a ``robots.txt`` that ask for patience."""

    name = "waits"
    custom_settings: ClassVar[dict[str, Any]] = {
        "ROBOTSTXT_OBEY": True,
        "ITEM_PIPELINES": {"scrapy.pipelines.files.FilesPipeline": 1},
        "HA_RETRY_BASE": 0.1,
    }

    async def start(self) -> Any:
        for url in self.given["pages"]:
            yield Request(url, meta={"dont_obey_robotstxt": True, "download_slot": url})
        yield Request(self.given["behind_robots"])

    def parse(self, response: Any) -> Any:
        self.report.setdefault("parsed", []).append(response.url)
        if response.url in self.given["with_file"]:
            yield {"file_urls": [self.given["file"]]}


class Closes(Reporting):
    """Is closed while a page and a ``robots.txt`` wait for long."""

    name = "closes"
    custom_settings: ClassVar[dict[str, Any]] = {"ROBOTSTXT_OBEY": True}

    async def start(self) -> Any:
        patient = self.given["patient"]
        yield Request(patient, meta={"dont_obey_robotstxt": True, "download_slot": patient})
        yield Request(self.given["behind_robots"])
        meta = {"dont_obey_robotstxt": True, "download_slot": "last"}
        yield Request(self.given["last"], self.close_now, meta=meta)

    def close_now(self, response: Any) -> None:
        raise CloseSpider("enough")


class Frontier(Reporting):
    """Under our scheduler: what waits takes up no concurrency, what is given up is dead."""

    name = "frontier"
    custom_settings: ClassVar[dict[str, Any]] = {
        "SCHEDULER": "scrapy_ha.scheduler.HAScheduler",
        "CONCURRENT_REQUESTS": 2,
        "RETRY_TIMES": 1,
        "HA_RETRY_BASE": 0.1,
    }

    async def start(self) -> Any:
        for url in self.given["pages"]:
            yield Request(url, meta={"download_slot": url})

    def parse(self, response: Any) -> None:
        self.report.setdefault("parsed", []).append(response.url)


def main(crawl: str, handler: str, given: str) -> None:
    spider = {cls.name: cls for cls in (Faults, Waits, Closes, Frontier)}[crawl]
    spider.given = json.loads(given)
    here = Path.cwd()
    settings = {**COMMON, **HANDLERS[handler], "FILES_STORE": str(here), "HA_DIR": str(here / "ha")}
    if settings.get("TWISTED_REACTOR_ENABLED", True):
        from scrapy.crawler import CrawlerProcess as Process
    else:
        from scrapy.crawler import AsyncCrawlerProcess as Process
    process = Process(settings)
    process.crawl(spider)
    process.start()


if __name__ == "__main__":
    main(*sys.argv[1:])
