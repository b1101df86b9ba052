"""Memory, files and open descriptors of a crawl with a million requests queued."""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import measure
import variants
from scrapy import Request, Spider
from scrapy.exceptions import CloseSpider
from scrapy.http import HtmlResponse

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from scrapy.crawler import Crawler
    from scrapy.http import Response
    from typing_extensions import Self

LIMIT = 150
"""MB that a million queued requests may take."""
EMPTY = 50
"""Requests of the crawl that is compared with: all parts are loaded and used, nothing piles up."""
STALLED = 10.0
"""Seconds without a new request after which no more are expected."""
QUICK = ["--queued=2000", "--hosts", "100", "--rounds=1", "--fetched=20", "--variants", "ha"]


class Gate:
    """Downloader middleware: in place of a network, an answer as soon as the gate is open."""

    def __init__(self, crawler: Crawler) -> None:
        self._crawler = crawler

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        return cls(crawler)

    async def process_request(self, request: Request, spider: Spider | None = None) -> Response:
        seeds: Any = self._crawler.spider
        while not seeds.gate.is_set():
            produced = seeds.produced
            try:
                await asyncio.wait_for(seeds.gate.wait(), STALLED)
            except asyncio.TimeoutError:
                if seeds.produced == produced:  # seeding broke; the log says why
                    seeds.gate.set()
        return HtmlResponse(request.url, body=b"<html></html>", request=request)


class SeedsSpider(Spider):
    """Queues *count* requests while the first ones hang, then fetches some more and stops."""

    name = "seeds"
    count: int
    hosts: int
    fetched: int
    descriptors = 0
    parsed = produced = 0

    async def start(self) -> AsyncIterator[Request]:
        self.gate = asyncio.Event()
        for n in range(self.count):
            if not n % 10_000:
                self._count_descriptors()
            host = f"http://site{n % self.hosts}.test"
            self.produced = n
            yield Request(f"{host}/p/{n}?c=1", headers={"Referer": f"{host}/"}, meta={"depth": 3})
        self._count_descriptors()
        self.gate.set()

    def parse(self, response: Response) -> None:
        self.parsed += 1
        if self.parsed == self.fetched:
            self._count_descriptors()
            raise CloseSpider("measured")

    def _count_descriptors(self) -> None:
        if os.path.isdir("/proc/self/fd"):
            self.descriptors = max(self.descriptors, len(os.listdir("/proc/self/fd")))


def seeds(variant: str, count: int, hosts: int, fetched: int) -> dict[str, Any]:
    def read(spider: SeedsSpider, directory: Path) -> dict[str, Any]:
        if spider.parsed < min(fetched, count):
            raise RuntimeError(f"{variant} fetched {spider.parsed} pages of {min(fetched, count)}")
        sizes = [file.stat().st_size for file in directory.rglob("*") if file.is_file()]
        return {
            "rss": measure.peak_rss(),
            "descriptors": spider.descriptors,
            "files": len(sizes),
            "disk": sum(sizes) / 1e6,
        }

    extra = {
        "DOWNLOADER_MIDDLEWARES": {Gate: 1000},
        # Full from the first requests on, so that the others pile up.
        "CONCURRENT_REQUESTS": 8,
        "CONCURRENT_REQUESTS_PER_DOMAIN": 8,
        "HA_SEED_LIMIT": 10 * count,
    }
    return variants.crawl(SeedsSpider, variant, read, extra, count=count, hosts=hosts, fetched=fetched)


def run(given: argparse.Namespace) -> measure.Section:
    section = measure.Section(
        title=f"Memory with {given.queued:,} requests queued",
        about=(
            f"`start()` yields them all while the first eight hang; then {given.fetched:,} are fetched. "
            f"«Over empty»: peak memory less that of a crawl of {EMPTY} requests. Descriptors at their "
            f"highest; files after the close. Medians (min–max) of {given.rounds} rounds."
        ),
        columns=(
            "scheduler",
            "hosts",
            "peak RSS MB",
            "over empty MB",
            "descriptors",
            "files",
            "disk MB",
            "wall s",
        ),
    )
    sizes = {"empty": (EMPTY, 1), **{f"hosts={hosts}": (given.queued, hosts) for hosts in given.hosts}}
    cases = {
        f"{variant} {size}": (variant, *counts)
        for variant in given.variants
        for size, counts in sizes.items()
    }
    results: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for turn, case in measure.rotated(list(cases), given.rounds):
        variant, count, hosts = cases[case]
        fetched = min(given.fetched, count)
        try:
            result = measure.child(__file__, variant=variant, count=count, hosts=hosts, fetched=fetched)
        except measure.ChildFailed as error:
            if variant.startswith("ha"):
                raise
            section.notes.append(f"`{variant}` with {hosts:,} hosts failed: {str(error).splitlines()[-1]}")
            continue
        results[case].append(result)
        measure.progress(f"memory, round {turn + 1}: {case}: {result['rss']:.0f} MB, {result['wall']:.0f} s")
    for case, (variant, _, hosts) in cases.items():
        if results[case]:
            add_row(section, case, variant, hosts, results[case], results[f"{variant} empty"])
    return section


def add_row(
    section: measure.Section,
    case: str,
    variant: str,
    hosts: int,
    taken: list[dict[str, Any]],
    empty: list[dict[str, Any]],
) -> None:
    base = statistics.median(one["rss"] for one in empty)
    figures = {
        "rss": [one["rss"] for one in taken],
        "over_empty": [one["rss"] - base for one in taken],
        **{name: [one[name] for one in taken] for name in ("descriptors", "files", "disk", "wall")},
    }
    is_empty = case.endswith("empty")
    label = "empty" if is_empty else f"{hosts:,}"
    section.rows.append((f"`{variant}`", label, *(measure.spread(values) for values in figures.values())))
    section.figures[case] = figures
    if variant == "ha" and not is_empty:
        over = figures["over_empty"]
        what = f"{label} host{'s' if hosts > 1 else ''}: over the empty crawl"
        section.targets.append(
            measure.Target(
                what, f"≤ {LIMIT} MB", f"{measure.spread(over)} MB", statistics.median(over) <= LIMIT
            )
        )


def options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--queued", type=int, default=1_000_000)
    parser.add_argument("--hosts", type=int, nargs="+", default=[1, 100_000])
    parser.add_argument("--fetched", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--variants", nargs="+", choices=variants.ABOUT, default=["memory", "jobdir", "ha"])
    return parser


if __name__ == "__main__":
    measure.main(seeds, options, run)
