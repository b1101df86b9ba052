"""The schedulers that are compared, and a crawl with one of them."""

from __future__ import annotations

import logging
import shutil
import tempfile
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scrapy import Request, Spider, signals
from scrapy.core.scheduler import BaseScheduler
from scrapy.crawler import CrawlerProcess

if TYPE_CHECKING:
    from scrapy.crawler import Crawler

ABOUT = {
    "memory": "Scrapy's own scheduler, queue in memory",
    "jobdir": "Scrapy's own scheduler with `JOBDIR`",
    "checkpoint": "Scrapy's own scheduler, queue in memory, with `CheckpointExtension`",
    "ha": '`ADDONS = {"scrapy_ha.Addon": 500}`, everything else at its default',
    "ha-scheduler": "`HAScheduler` alone, Scrapy's own retries and feeds",
    "none": "a set and a deque in place of a scheduler: what no scheduler can beat",
}
CHECKPOINT = {
    "scrapy.extensions.spiderstate.SpiderState": None,
    "scrapy_ha.checkpoint.CheckpointExtension": 0,
}
COMMON = {
    "CONCURRENT_REQUESTS": 32,
    "CONCURRENT_REQUESTS_PER_DOMAIN": 32,
    "DOWNLOAD_DELAY": 0,
    "LOG_LEVEL": "WARNING",
    "ROBOTSTXT_OBEY": False,
    "TELNETCONSOLE_ENABLED": False,
}


class CheapScheduler(BaseScheduler):
    """As little work as a scheduler can do."""

    def __init__(self) -> None:
        self._seen: set[str] = set()
        self._queue: deque[Request] = deque()

    def has_pending_requests(self) -> bool:
        return bool(self._queue)

    def enqueue_request(self, request: Request) -> bool:
        if request.url in self._seen:
            return False
        self._seen.add(request.url)
        self._queue.append(request)
        return True

    def next_request(self) -> Request | None:
        return self._queue.popleft() if self._queue else None


def settings(variant: str, directory: Path) -> dict[str, Any]:
    """Those of *variant*, which keeps what it keeps in *directory*."""
    own: dict[str, dict[str, Any]] = {
        "memory": {},
        "jobdir": {"JOBDIR": str(directory)},
        "checkpoint": {"EXTENSIONS": CHECKPOINT, "HA_DIR": str(directory)},
        "ha": {"ADDONS": {"scrapy_ha.Addon": 500}, "HA_DIR": str(directory)},
        "ha-scheduler": {"SCHEDULER": "scrapy_ha.scheduler.HAScheduler", "HA_DIR": str(directory)},
        "none": {"SCHEDULER": CheapScheduler},
    }
    return own[variant]


class Stopwatch:
    """Wall and CPU seconds of a crawl, from the opened spider until all is closed and on disk."""

    def __init__(self, crawler: Crawler) -> None:
        self.wall = self.cpu = 0.0
        crawler.signals.connect(self._start, signals.spider_opened)
        crawler.signals.connect(self._stop, signals.spider_closed)

    def _start(self) -> None:
        self._began = time.perf_counter(), time.process_time()

    def _stop(self) -> None:
        self.wall = time.perf_counter() - self._began[0]
        self.cpu = time.process_time() - self._began[1]


class Errors(logging.Handler):
    """Keeps what was logged as an error, in one line each."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        cause = record.exc_info[1] if record.exc_info else None
        self.lines.append(repr(cause) if cause else record.getMessage().partition("\n")[0])


def crawl(
    spidercls: type[Spider],
    variant: str,
    read: Callable[[Any, Path], dict[str, Any]],
    extra: dict[str, Any] | None = None,
    **arguments: Any,
) -> dict[str, Any]:
    """Run one spider with *variant* in a fresh directory.

    Args:
        read: Called with the spider and the directory after the crawl, while the files are there;
            its figures are added to those of the stopwatch.
        extra: Settings.
        arguments: The spider's.

    Raises:
        RuntimeError: A callback or the crawl itself failed.
    """
    directory = Path(tempfile.mkdtemp(prefix="benchmark-"))
    errors = Errors()
    logging.getLogger().addHandler(errors)
    try:
        process = CrawlerProcess({**COMMON, **settings(variant, directory), **(extra or {})})
        crawler = process.create_crawler(spidercls)
        watch = Stopwatch(crawler)
        process.crawl(crawler, **arguments)
        process.start()
        if errors.lines:
            raise RuntimeError(f"{len(errors.lines)} errors were logged, the first: {errors.lines[0]}")
        if crawler.spider is None or process.bootstrap_failed:
            raise RuntimeError("the crawl did not start; its log says why")
        return {"wall": watch.wall, "cpu": watch.cpu, **read(crawler.spider, directory)}
    finally:
        shutil.rmtree(directory, ignore_errors=True)
