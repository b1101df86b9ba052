"""Time that the retry middleware takes for a response that is fine, and for one that is retried."""

from __future__ import annotations

import argparse
import statistics
import tempfile
from array import array
from collections import defaultdict
from pathlib import Path
from time import perf_counter_ns
from typing import Any

import measure
from scrapy import Request, Spider
from scrapy.crawler import CrawlerProcess
from scrapy.http import HtmlResponse
from scrapy.utils.misc import load_object

ABOUT = {
    "scrapy": "scrapy.downloadermiddlewares.retry.RetryMiddleware",
    "ha": "scrapy_ha.retry.ClassifiedRetryMiddleware",
}
LIMIT = 20.0
"""Microseconds, for a response that is fine."""
QUICK = ["--calls=500", "--rounds=1"]
HOSTS = 50


class DecisionsSpider(Spider):
    """Calls the middleware in a running crawl, as its requests are tracked by the scheduler there."""

    name = "decisions"
    middleware: str
    calls: int

    async def start(self) -> Any:
        yield Request("data:,")

    def parse(self, response: Any) -> None:
        engine: Any = self.crawler.engine
        cls = load_object(self.middleware)
        middleware = next(one for one in engine.downloader.middleware.middlewares if type(one) is cls)
        before = getattr(middleware, "process_request", None)
        after = middleware.process_response
        self.taken = {"200": array("q"), "503": array("q")}
        for n in range(self.calls):
            for status, taken in self.taken.items():
                # Of failures, one in a hundred: more would open the breakers.
                if status == "503" and n % 100:
                    continue
                request = Request(f"http://site{n % HOSTS}.test/p/{n}")
                answer = HtmlResponse(request.url, int(status), request=request)
                began = perf_counter_ns()
                if before is not None:
                    before(request)
                after(request, answer)
                taken.append(perf_counter_ns() - began)


def decide(variant: str, calls: int) -> dict[str, Any]:
    directory = Path(tempfile.mkdtemp(prefix="benchmark-"))
    process = CrawlerProcess(
        {
            "LOG_LEVEL": "WARNING",
            "TELNETCONSOLE_ENABLED": False,
            **({"ADDONS": {"scrapy_ha.Addon": 500}, "HA_DIR": str(directory)} if variant == "ha" else {}),
        }
    )
    crawler = process.create_crawler(DecisionsSpider)
    process.crawl(crawler, middleware=ABOUT[variant], calls=calls)
    process.start()
    spider: Any = crawler.spider
    return {status: statistics.median(taken) / 1000 for status, taken in spider.taken.items()}


def run(given: argparse.Namespace) -> measure.Section:
    section = measure.Section(
        title="Decisions of the retry middleware",
        about=(
            f"Microseconds for a request and its response, medians of {given.calls:,} calls over {HOSTS} "
            f"hosts, in a crawl; of those the median (min–max) of {given.rounds} rounds."
        ),
        columns=("response", *(f"`{variant}`" for variant in ABOUT)),
    )
    results: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for turn, variant in measure.rotated(list(ABOUT), given.rounds):
        for status, microseconds in measure.child(__file__, variant=variant, calls=given.calls).items():
            results[status][variant].append(microseconds)
        measure.progress(f"decisions, round {turn + 1}: {variant}")
    for status, by_variant in results.items():
        section.rows.append((status, *(measure.spread(by_variant[variant]) for variant in ABOUT)))
        for variant, figures in by_variant.items():
            section.figures[f"{variant}/{status}"] = {"median": figures}
    fine = results["200"]["ha"]
    held = statistics.median(fine) <= LIMIT
    section.targets.append(
        measure.Target("a response that is fine", f"≤ {LIMIT:g} µs", measure.spread(fine), held)
    )
    return section


def options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=3)
    return parser


if __name__ == "__main__":
    measure.main(decide, options, run)
