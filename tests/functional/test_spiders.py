"""Spiders as people write them, killed on the way: every page's item once."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest
from functional.harness import SIGKILLED

if TYPE_CHECKING:
    from functional.harness import MakeCrawl, StartSite

PAGES = 420
CRAWL_SPIDER = """
from scrapy.linkextractors import LinkExtractor
from scrapy.spiders import CrawlSpider, Rule

class S(CrawlSpider):
    name = "s"
    rules = [Rule(LinkExtractor(allow="/p/"), callback="parse_item", follow=True)]

    async def start(self):
        for n in range(400):
            yield Request(f"{self.site}/p/{n}")

    def parse_item(self, response):
        return {"page": response.url, "text": response.meta.get("link_text")}

    parse_start_url = parse_item
"""
ASYNC_SPIDER = """
class S(Spider):
    name = "s"

    async def start(self):
        for n in range(400):
            yield Request(f"{self.site}/p/{n}", cb_kwargs={"number": (n, None)})

    async def parse(self, response, number=None):
        await asyncio.sleep(0.001)
        yield {"page": response.url}
        for request in response.follow_all(css="a", meta=response.meta):
            yield request
"""
CHAIN_SPIDER = """
class S(Spider):
    name = "s"

    async def start(self):
        yield Request(f"{self.site}/ok/0", dont_filter=True)

    def parse(self, response):
        number = int(response.url.rpartition("/")[2])
        yield {"page": response.url}
        if number < 419:
            yield Request(f"{self.site}/ok/{number + 1}", callback=lambda response: self.parse(response))
"""


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("source", "deliveries"),
    # A page that only waits for what it yielded is not blamed, so the chain lives with few deaths allowed.
    [(CRAWL_SPIDER, 5), (ASYNC_SPIDER, 5), (CHAIN_SPIDER, 2)],
    ids=["crawl", "async", "chain"],
)
def test_killed_on_the_way(
    start_site: StartSite, make_crawl: MakeCrawl, source: str, deliveries: int
) -> None:
    site = start_site(pages=PAGES, delay=0.002)
    crawl = make_crawl(
        source,
        settings={"HA_MAX_DELIVERIES": deliveries, "LOG_LEVEL": "INFO"},
        arguments=[f"-asite={site.url}"],
    )
    moments = [random.randrange(20, 200), 300, 350]

    def moment() -> bool:
        if moments and len(site.served()) >= moments[0]:
            moments.pop(0)
            return True
        return False

    while crawl.run(kill_when=moment).status == SIGKILLED:
        assert len(crawl.runs) <= 4
    assert crawl.runs[-1].reason == "finished"
    items = crawl.items()
    assert len(items) == PAGES
    assert set(items.values()) == {1}
    assert "Traceback" not in "".join(run.log for run in crawl.runs)
