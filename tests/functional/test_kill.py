"""A crawl that is killed at five moments ends as if it had never been interrupted."""

from __future__ import annotations

import json
import os
import random

import pytest
from functional.harness import SIGKILLED, MakeCrawl, StartSite, refetched
from functional.site import SEEDS, UNLINKED

PAGES = 1500
CONCURRENCY = 16
ITEMS_PER_PAGE = 3

SPIDER = f"""
    class S(Spider):
        name = "s"

        async def start(self):
            for n in range({SEEDS}):
                if n == int(self.die_seeding) and first_time("seeding"):
                    die()
                # Scrapy makes start requests like this by default; nothing else leads to these pages.
                yield Request(f"{{self.site}}/p/{{n}}", dont_filter=n < {UNLINKED})
                await asyncio.sleep(0.003)
            note("seeded")

        def parse(self, response):
            for n in range({ITEMS_PER_PAGE}):
                yield {{"page": int(response.url.rpartition("/")[2]), "n": n}}
            yield from response.follow_all(css="a")


    class Slow:
        '''Takes its time, like a database. At one item of one page the process dies.'''

        def __init__(self, crawler):
            self.spider = crawler.spider

        @classmethod
        def from_crawler(cls, crawler):
            return cls(crawler)

        async def process_item(self, item, spider=None):
            await asyncio.sleep(0.003)
            if item == {{"page": int(self.spider.die_page), "n": 1}} and first_time("item"):
                die()
            return item
"""


SCRAPYS = {"SCHEDULER": "scrapy.core.scheduler.Scheduler"}
SCHEDULERS = {
    "ours": {},
    "memory": SCRAPYS,
    "memory, Scrapy's filter": {**SCRAPYS, "DUPEFILTER_CLASS": "scrapy.dupefilters.RFPDupeFilter"},
    "jobdir": {**SCRAPYS, "JOBDIR": "job"},
    "jobdir, Scrapy's filter": {
        **SCRAPYS,
        "JOBDIR": "job",
        "DUPEFILTER_CLASS": "scrapy.dupefilters.RFPDupeFilter",
    },
}
"""With Scrapy's own it is the checkpoint that keeps the requests."""


@pytest.mark.timeout(180)
@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_five_kills_lose_nothing(start_site: StartSite, make_crawl: MakeCrawl, scheduler: str) -> None:
    """During seeding, between the response and its last item, and at three random moments."""
    seed = int(os.environ.get("KILL_SEED", random.randrange(10**6)))
    print(f"the moments come from KILL_SEED={seed}")
    draw = random.Random(seed)
    moments = sorted(draw.sample(range(SEEDS, PAGES - 100), 3))
    site = start_site(pages=PAGES, delay=0.01)
    crawl = make_crawl(
        SPIDER,
        settings={
            "ITEM_PIPELINES": {"project.main.Slow": 100},
            "CONCURRENT_REQUESTS": CONCURRENCY,
            "CONCURRENT_REQUESTS_PER_DOMAIN": CONCURRENCY,
            "LOG_LEVEL": "INFO",
            **SCHEDULERS[scheduler],
        },
        arguments=[
            f"-asite={site.url}",
            f"-adie_seeding={draw.randrange(50, SEEDS - 50)}",
            f"-adie_page={draw.randrange(SEEDS, PAGES)}",
        ],
    )

    def moment() -> bool:
        if moments and len(site.served()) >= moments[0]:
            moments.pop(0)
            return True
        return False

    while crawl.run(kill_when=moment).status == SIGKILLED:
        assert len(crawl.runs) <= 5
    kills = len(crawl.runs) - 1
    assert kills == 5

    served = site.served()
    assert served.keys() == {f"/p/{n}" for n in range(PAGES)}
    assert crawl.items() == {
        json.dumps({"n": n, "page": page}): 1 for page in range(PAGES) for n in range(ITEMS_PER_PAGE)
    }
    assert refetched(served) <= kills * CONCURRENCY
    assert crawl.runs[-1].reason == "finished"
    assert crawl.notes() == {"seeded": 1}
