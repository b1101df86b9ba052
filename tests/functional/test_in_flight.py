"""However slow pipelines or disks are, no more pages are in flight than is said: a kill costs no more."""

from __future__ import annotations

import time

from functional.harness import SIGKILLED, MakeCrawl, StartSite, refetched

SPIDER = """
    import time

    class S(Spider):
        name = "s"

        async def start(self):
            for n in range(60):
                yield Request(f"{self.site}/ok/{n}")

        def parse(self, response):
            yield {"page": response.url}


    class Slow:
        async def process_item(self, item, spider=None):
            if not os.path.exists("fast"):
                await asyncio.sleep(30)
            return item


    fsync = os.fsync

    def slow(handle):
        if os.path.exists("crawling") and not os.path.exists("fast"):
            time.sleep(0.5)
        fsync(handle)

    os.fsync = slow
"""
LIMIT = 4


def test_behind_a_slow_pipeline(start_site: StartSite, make_crawl: MakeCrawl) -> None:
    """When no page has ended for 4 s, one more may come, should the others wait for it."""
    site = start_site()
    crawl = make_crawl(
        SPIDER,
        settings={"HA_MAX_IN_FLIGHT": LIMIT, "ITEM_PIPELINES": {"project.main.Slow": 1}},
        arguments=[f"-asite={site.url}"],
    )
    started: list[float] = []

    def is_time() -> bool:
        if site.served() and not started:
            started.append(time.monotonic())
        return bool(started) and time.monotonic() > started[0] + 7

    assert crawl.run(kill_when=is_time).status == SIGKILLED
    assert LIMIT <= site.served().total() <= LIMIT + 1
    (crawl.directory / "fast").touch()
    assert crawl.run().reason == "finished"
    assert crawl.items().total() == 60
    assert refetched(site.served()) <= LIMIT + 1


def test_behind_a_slow_disk(start_site: StartSite, make_crawl: MakeCrawl) -> None:
    """Pages that wait for the device are in flight too."""
    site = start_site()
    crawl = make_crawl(
        SPIDER,
        settings={"HA_MAX_IN_FLIGHT": LIMIT, "HA_FSYNC": "always"},
        arguments=[f"-asite={site.url}"],
    )
    (crawl.directory / "crawling").touch()
    assert crawl.run(kill_when=lambda: site.served().total() >= 3 * LIMIT).status == SIGKILLED
    (crawl.directory / "fast").touch()
    assert crawl.run().reason == "finished"
    assert crawl.items().total() == 60
    assert refetched(site.served()) <= LIMIT
