"""What a host that is down costs the others, and how much of it is asked for."""

from __future__ import annotations

import argparse
import socket
import statistics
import time
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import measure
import variants
from crawl import running_site
from scrapy import Request, Spider
from scrapy.exceptions import CloseSpider

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

LIMIT = 0.95
"""Of the throughput without the dead host."""
QUICK = ["--pages=4", "--hosts=5", "--dead=50", "--rounds=1"]
DEAD = "127.0.1.1"
CASES = {
    "none": "no dead host",
    "refused": "one that refuses connections",
    "hanging": "one that takes connections and says nothing",
}


class HostsSpider(Spider):
    """Healthy hosts with some pages each, and a dead one whose URLs all wait from the start."""

    name = "hosts"
    port: str
    hosts: int
    pages: int
    dead: int
    dead_port: int

    async def start(self) -> AsyncIterator[Request]:
        for n in range(self.dead):
            yield Request(f"http://{DEAD}:{self.dead_port}/{n}", errback=self.failed)
        self.parsed = self.failures = 0
        self.began = time.perf_counter()
        for n in range(self.hosts):
            yield Request(f"http://127.0.0.{n + 1}:{self.port}/p/0")

    def parse(self, response: Any) -> Iterator[Any]:
        self.parsed += 1
        if self.parsed == self.pages * self.hosts:
            self.seconds = time.perf_counter() - self.began
            raise CloseSpider("measured")
        for href in response.css("a::attr(href)").getall():
            yield response.follow(href)

    def failed(self, failure: Any) -> None:
        self.failures += 1


def crawl(case: str, port: str, hosts: int, pages: int, dead: int) -> dict[str, Any]:
    def read(spider: HostsSpider, directory: Path) -> dict[str, Any]:
        assert spider.crawler.stats is not None
        stats = spider.crawler.stats
        return {
            "rate": hosts * pages / spider.seconds,
            "sent": stats.get_value("downloader/request_count")
            - stats.get_value("downloader/response_count"),
        }

    with socket.socket() as listener:
        listener.bind((DEAD, 0))
        if case == "hanging":
            listener.listen(1024)
        extra = {"HA_SEED_LIMIT": dead + hosts + 1, "DOWNLOAD_TIMEOUT": 5, "LOG_LEVEL": "CRITICAL"}
        return variants.crawl(
            HostsSpider,
            "ha",
            read,
            extra,
            port=port,
            hosts=hosts,
            pages=pages,
            dead=0 if case == "none" else dead,
            dead_port=listener.getsockname()[1],
        )


def run(given: argparse.Namespace) -> measure.Section:
    section = measure.Section(
        title=f"A dead host with {given.dead:,} URLs among {given.hosts} healthy ones",
        about=(
            f"{given.pages} pages of each healthy host, from the moment when the dead one's URLs wait; "
            f"medians (min–max) of {given.rounds} rounds, compared within the round. «Sent»: requests to the "
            "dead host, its downloads being given 5 s."
        ),
        columns=("dead host", "healthy pages/s", "of those without", "sent to the dead host"),
    )
    results: dict[str, list[dict[str, Any]]] = defaultdict(list)
    with running_site(given.pages, 10, 20_000, given.hosts) as site:
        port = site.rpartition(":")[2]
        for turn, case in measure.rotated(list(CASES), given.rounds):
            result = measure.child(
                __file__, case=case, port=port, hosts=given.hosts, pages=given.pages, dead=given.dead
            )
            results[case].append(result)
            measure.progress(f"dead host, round {turn + 1}: {case} {result['rate']:.0f} pages/s")
    for case, taken in results.items():
        rates = [one["rate"] for one in taken]
        shares = [one["rate"] / base["rate"] for base, one in zip(results["none"], taken, strict=True)]
        sent = [one["sent"] for one in taken]
        section.rows.append((CASES[case], *map(measure.spread, (rates, shares, sent))))
        section.figures[case] = {"rate": rates, "share": shares, "sent": sent}
        if case != "none":
            held = statistics.median(shares) >= LIMIT
            section.targets.append(measure.Target(CASES[case], f"≥ {LIMIT}", measure.spread(shares), held))
    return section


def options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hosts", type=int, default=50)
    parser.add_argument("--pages", type=int, default=60, help="of each healthy host")
    parser.add_argument("--dead", type=int, default=100_000, help="URLs of the dead host")
    parser.add_argument("--rounds", type=int, default=5)
    return parser


if __name__ == "__main__":
    measure.main(crawl, options, run)
