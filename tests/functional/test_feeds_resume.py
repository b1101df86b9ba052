"""Feeds of whole crawls that are killed hold every item exactly once, in files that are whole."""

from __future__ import annotations

import csv
import io
import json
import marshal
import os
import pickle
import random
import signal
import time
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from functional.harness import SIGKILLED, Crawl, MakeCrawl, StartSite

PAGES = 400
ITEMS_PER_PAGE = 3
BATCH = 170
FORMATS = ["jsonlines", "csv", "json", "xml", "pickle", "marshal"]

SPIDER = f"""
    class S(Spider):
        name = "s"

        async def start(self):
            for n in range(300):
                yield Request(f"{{self.site}}/p/{{n}}")

        def parse(self, response):
            for n in range({ITEMS_PER_PAGE}):
                yield {{"page": response.url.rpartition("/")[2], "n": str(n), "text": "ü,\\n<" * 20}}
            yield from response.follow_all(css="a")


    class Deadly:
        '''An item filter, asked while a page is being written to its feeds: dies in between.'''

        def __init__(self, feed_options):
            self.asked = 0

        def accepts(self, item):
            self.asked += 1
            if self.asked == 100 and first_time("middle"):
                die()
            return True
"""

PICKLES: dict[str, Callable[[Any], Any]] = {"pickle": pickle.load, "marshal": marshal.load}


def read(path: Path, format_: str) -> list[Any]:
    """The items of a feed, which must be whole."""
    data = path.read_bytes()
    if format_ == "jsonlines":
        assert data.endswith(b"\n")
        return [json.loads(line) for line in data.splitlines()]
    if format_ == "json":
        items: list[Any] = json.loads(data)
        return items
    if format_ == "csv":
        return list(csv.DictReader(io.StringIO(data.decode(), newline="")))
    if format_ == "xml":
        return [{field.tag: field.text for field in item} for item in ET.fromstring(data)]
    items, stream = [], io.BytesIO(data)
    while stream.tell() < len(data):
        items.append(PICKLES[format_](stream))
    return items


def pages(items: list[Any]) -> Counter[tuple[int, int]]:
    assert all(set(item) == {"page", "n", "text"} for item in items)
    return Counter((int(item["page"]), int(item["n"])) for item in items)


EVERYTHING = {(page, n): 1 for page in range(PAGES) for n in range(ITEMS_PER_PAGE)}

SETTINGS = {
    "LOG_LEVEL": "INFO",
    "CONCURRENT_REQUESTS": 8,
    "CONCURRENT_REQUESTS_PER_DOMAIN": 8,
}


def crawl_to_the_end(crawl: Crawl, site: Any, kills: int) -> None:
    """Run until it ends by itself, killing it at *kills* random moments."""
    seed = int(os.environ.get("KILL_SEED", random.randrange(10**6)))
    print(f"the moments come from KILL_SEED={seed}")
    moments = sorted(random.Random(seed).sample(range(10, PAGES - 30), kills))

    def moment() -> bool:
        if moments and len(site.served()) >= moments[0]:
            moments.pop(0)
            return True
        return False

    while crawl.run(kill_when=moment).status == SIGKILLED:
        assert len(crawl.runs) < 10
    assert not moments
    assert crawl.runs[-1].reason == "finished", crawl.runs[-1].log


@pytest.mark.timeout(180)
@pytest.mark.parametrize(("fsync", "formats"), [("interval", FORMATS), ("always", ["json"])])
def test_all_kinds_at_once(
    start_site: StartSite, make_crawl: MakeCrawl, fsync: str, formats: list[str]
) -> None:
    """Appending and overwriting, single files and batches, killed between pages and within one."""
    feeds = {
        f"%(name)s-{overwrite:d}-{batch}-%(batch_id)d-%(batch_time)s.{format_}": {
            "format": format_,
            "overwrite": overwrite,
            "batch_item_count": batch,
            "item_filter": "project.main.Deadly",
        }
        for format_ in formats
        for overwrite in (False, True)
        for batch in (0, BATCH)
    }
    site = start_site(pages=PAGES, delay=0.005)
    crawl = make_crawl(
        SPIDER,
        settings={**SETTINGS, "FEEDS": feeds, "HA_FSYNC": fsync},
        arguments=[f"-asite={site.url}"],
    )
    crawl_to_the_end(crawl, site, 3)
    assert len(crawl.runs) == 5, "three kills, and one within a page"
    for format_ in formats:
        for overwrite in (0, 1):
            (single,) = crawl.directory.glob(f"s-{overwrite}-0-*.{format_}")
            assert pages(read(single, format_)) == EVERYTHING
            batches = {
                int(path.name.split("-")[3]): read(path, format_)
                for path in crawl.directory.glob(f"s-{overwrite}-{BATCH}-*.{format_}")
            }
            assert [len(items) for _, items in sorted(batches.items())] == [BATCH] * 7 + [10]
            assert pages([item for items in batches.values() for item in items]) == EVERYTHING
    assert pages(read(crawl.items_file, "jsonlines")) == EVERYTHING


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("format_", "option"), [("jsonl", "-O"), ("csv", "-o"), ("json", "-O"), ("json", "-o"), ("xml", "-o")]
)
def test_on_the_command_line(start_site: StartSite, make_crawl: MakeCrawl, format_: str, option: str) -> None:
    """A file of an earlier crawl is appended to or wiped by the first run, and by no other."""
    name = {"jsonl": "jsonlines"}.get(format_, format_)
    site = start_site(pages=PAGES, delay=0.005)
    crawl = make_crawl(SPIDER, settings=SETTINGS, arguments=[f"-asite={site.url}"])
    crawl.command[5:7] = [option, f"out.{format_}"]
    path = crawl.directory / f"out.{format_}"
    path.write_bytes(b"\n")
    crawl_to_the_end(crawl, site, 2)
    content = path.read_bytes()
    assert content.startswith(b"\n") == (option == "-o")
    path.write_bytes(content.removeprefix(b"\n"))
    assert pages(read(path, name)) == EVERYTHING
    assert [path.name for path in crawl.directory.glob("out*")] == [path.name]


@pytest.mark.timeout(120)
def test_graceful_stops(start_site: StartSite, make_crawl: MakeCrawl) -> None:
    """The files are complete after SIGTERM, and the next run goes on in them."""
    feeds = {f"out.{format_}": {"format": format_, "overwrite": True} for format_ in FORMATS}
    site = start_site(pages=PAGES, delay=0.005)
    crawl = make_crawl(SPIDER, settings={**SETTINGS, "FEEDS": feeds}, arguments=[f"-asite={site.url}"])
    process = crawl.start()
    while len(site.served()) < 100:
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    assert crawl.end(process).reason == "shutdown"
    counts = []
    for format_ in FORMATS:
        found = pages(read(crawl.directory / f"out.{format_}", format_))
        assert set(found.values()) == {1}
        counts.append(len(found))
    assert len(set(counts)) == 1
    assert 0 < counts[0] < len(EVERYTHING)
    assert crawl.run().reason == "finished"
    for format_ in FORMATS:
        assert pages(read(crawl.directory / f"out.{format_}", format_)) == EVERYTHING


@pytest.mark.timeout(120)
def test_after_the_end_a_crawl_is_fresh(start_site: StartSite, make_crawl: MakeCrawl) -> None:
    """A crawl that finished is not gone on with: an overwriting feed is wiped."""
    site = start_site(pages=PAGES)
    crawl = make_crawl(SPIDER, settings=SETTINGS, arguments=[f"-asite={site.url}"])
    crawl.command[5:7] = ["-O", "out.json"]
    for _ in range(2):
        assert crawl.run().reason == "finished"
        assert pages(read(crawl.directory / "out.json", "json")) == EVERYTHING
