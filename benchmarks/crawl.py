"""Pages per second of a whole crawl, against Scrapy's own schedulers."""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import measure
import variants
from scrapy import Request, Spider

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


LIMITS = {
    "ha": ("as fast as Scrapy's memory queue", 1.0),
    "checkpoint": ("Scrapy's memory queue with the checkpoint, against it alone", 0.92),
}
"""What each is to hold, and at least how much of the pages per second of Scrapy's memory queue."""
QUICK = ["--pages=60", "--links=10", "--rounds=1", "--variants", "memory", "ha"]


class LinksSpider(Spider):
    """What most spiders do: an item per page, and every link followed."""

    name = "links"
    site: str
    parsed = 0

    async def start(self) -> AsyncIterator[Request]:
        yield Request(f"{self.site}/p/0")

    def parse(self, response: Any) -> Iterator[Any]:
        self.parsed += 1
        yield {"url": response.url, "title": response.css("title::text").get()}
        for href in response.css("a::attr(href)").getall():
            yield response.follow(href, callback=self.parse)


def crawl(variant: str, site: str, pages: int) -> dict[str, Any]:
    """One crawl of *site*.

    Raises:
        RuntimeError: It did not parse *pages* pages, each once.
    """

    def read(spider: LinksSpider, directory: Path) -> dict[str, Any]:
        if spider.parsed != pages:
            raise RuntimeError(f"{variant} parsed {spider.parsed} pages of {pages}")
        return {"rss": measure.peak_rss()}

    return variants.crawl(LinksSpider, variant, read, site=site)


@contextmanager
def running_site(pages: int, links: int, size: int, hosts: int = 1) -> Iterator[str]:
    """The URL of the site at the first of its addresses, while its process runs."""
    script = Path(__file__).with_name("site.py")
    options = {"pages": pages, "links": links, "size": size, "hosts": hosts}
    command = [sys.executable, str(script), *(f"--{name}={value}" for name, value in options.items())]
    # Leaving the block closes the site's standard input, upon which it ends.
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        port = process.stdout.readline().strip().decode()
        if not port:
            raise RuntimeError(f"the site did not start: {' '.join(command)}")
        yield f"http://127.0.0.1:{port}"


def run(given: argparse.Namespace) -> measure.Section:
    section = measure.Section(
        title=f"Whole crawl, {given.pages} pages of {given.size / 1000:g} KB",
        about=(
            f"Every link followed, an item per page; concurrency {variants.COMMON['CONCURRENT_REQUESTS']}. "
            f"Medians (min–max) of {given.rounds} rounds; «of memory» compares crawls of the same round. "
            "Seconds run from the opened spider until everything is closed and on disk."
        ),
        columns=(
            "links a page",
            "scheduler",
            "pages/s",
            "of memory",
            "CPU ms a page",
            "of memory",
            "wall s",
            "peak RSS MB",
        ),
    )
    for links in given.links:
        results: dict[str, list[dict[str, Any]]] = defaultdict(list)
        with ExitStack() as stack:
            site = stack.enter_context(running_site(given.pages, links, given.size))
            for turn, variant in measure.rotated(given.variants, given.rounds):
                result = measure.child(__file__, variant=variant, site=site, pages=given.pages)
                results[variant].append(result)
                speed = measure.number(given.pages / result["wall"])
                measure.progress(f"crawl, {links} links, round {turn + 1}: {variant} {speed} pages/s")
        add_rows(section, links, given.pages, results)
    return section


def add_rows(
    section: measure.Section, links: int, pages: int, results: dict[str, list[dict[str, Any]]]
) -> None:
    base = results.get("memory", [])
    for variant, taken in results.items():
        figures = {
            "pages_per_second": [pages / one["wall"] for one in taken],
            "speed_of_memory": [
                memory["wall"] / one["wall"] for memory, one in zip(base, taken, strict=False)
            ],
            "cpu_ms": [one["cpu"] * 1000 / pages for one in taken],
            "cpu_of_memory": [one["cpu"] / memory["cpu"] for memory, one in zip(base, taken, strict=False)],
            "wall": [one["wall"] for one in taken],
            "rss": [one["rss"] for one in taken],
        }
        cells = (measure.spread(values) if values else "–" for values in figures.values())
        section.rows.append((str(links), f"`{variant}`", *cells))
        section.figures[f"{variant}/{links}"] = figures
        ratios = figures["speed_of_memory"]
        if variant in LIMITS and ratios:
            what, limit = LIMITS[variant]
            held = statistics.median(ratios) >= limit
            target = measure.Target(
                f"{what}, {links} links a page", f"≥ {limit}", measure.spread(ratios), held
            )
            section.targets.append(target)


def options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pages", type=int, default=2000)
    parser.add_argument("--links", type=int, nargs="+", default=[100, 10], help="links on each page")
    parser.add_argument("--size", type=int, default=20_000, help="bytes a page")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--variants",
        nargs="+",
        choices=variants.ABOUT,
        default=["memory", "jobdir", "checkpoint", "ha", "none"],
    )
    return parser


if __name__ == "__main__":
    measure.main(crawl, options, run)
