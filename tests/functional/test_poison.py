"""A page that kills its worker does not do so for ever, and takes no other page with it."""

from __future__ import annotations

from functional.harness import MakeCrawl, StartSite

SPIDER = """
    class S(Spider):
        name = "s"

        async def start(self):
            for n in range(30):
                yield Request(f"{self.site}/ok/{n}", callback=self.poison if n == 10 else None)

        def parse(self, response):
            yield {"page": response.url}

        def poison(self, response):
            note("poisoned")
            os._exit(1)
"""


def test_poison_is_dead_after_the_allowed_deliveries(start_site: StartSite, make_crawl: MakeCrawl) -> None:
    """The pages that were in flight together with it, each time, are parsed in the end."""
    site = start_site(delay=0.05)
    crawl = make_crawl(SPIDER, settings={"HA_MAX_DELIVERIES": 3}, arguments=[f"-asite={site.url}"])
    assert [crawl.run().status for _ in range(4)] == [1, 1, 1, 0]
    assert crawl.runs[-1].reason == "finished"
    assert crawl.notes() == {"poisoned": 3}
    assert crawl.items().total() == len(crawl.items()) == 29
    served = site.served()
    assert served.keys() == {f"/ok/{n}" for n in range(30)}
    assert served["/ok/10"] == 3

    counts, dead = crawl.frontier()
    assert counts.pending == 0
    assert [b"/ok/10" in one.payload for one in dead] == [True]
    assert b"poison" in dead[0].record
