"""A delayed request starts at its time, and costs nothing until then."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest
from functional.harness import Crawl, MakeCrawl, Site

SPIDER = """
    class S(Spider):
        name = "s"

        async def start(self):
            yield Request(f"{self.site}/fails/1/429/page?after={self.after}")

        def parse(self, response):
            yield {"page": response.url}
"""


def make(make_crawl: MakeCrawl, site: Site, after: int) -> Crawl:
    """A crawl of one page that is to be asked for again after so many seconds; the cap leaves no jitter."""
    settings = {"HA_RETRY_AFTER_CAP": after}
    return make_crawl(SPIDER, settings=settings, arguments=[f"-asite={site.url}", f"-aafter={after}"])


def failed(site: Site) -> bool:
    return any(event.what == "429" for event in site.events())


def waited(site: Site) -> float:
    """Seconds between the failure that was sent and the next attempt."""
    (failure,) = [event.time for event in site.events() if event.what == "429"]
    (again,) = [event.time for event in site.events() if event.what == "asked" and event.attempt == 2]
    return again - failure


def test_starts_when_it_is_due(site: Site, make_crawl: MakeCrawl) -> None:
    """Scrapy by itself would look only every 5 seconds."""
    crawl = make(make_crawl, site, after=1)
    run = crawl.run()
    assert run.reason == "finished"
    assert crawl.items().total() == 1
    assert 1.0 <= waited(site) <= 1.3


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_the_spider_waits_without_work(site: Site, make_crawl: MakeCrawl) -> None:
    crawl = make(make_crawl, site, after=5)
    process = crawl.start()
    while not failed(site):
        assert process.poll() is None
        time.sleep(0.05)
    time.sleep(0.5)
    before = cpu_seconds(process.pid)
    time.sleep(4.0)
    assert process.poll() is None
    assert cpu_seconds(process.pid) - before <= 0.05 * 4.0
    assert crawl.end(process).reason == "finished"
    assert 5.0 <= waited(site) <= 5.3


def test_survives_a_kill_and_keeps_its_time(site: Site, make_crawl: MakeCrawl) -> None:
    crawl = make(make_crawl, site, after=4)
    crawl.run(kill_when=lambda: failed(site) and time.time() > site.events()[-1].time + 0.5)
    assert crawl.run().reason == "finished"
    assert 4.0 <= waited(site) <= 4.5
    assert crawl.items().total() == 1
