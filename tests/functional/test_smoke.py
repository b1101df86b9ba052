"""All parts together, shortly: what every supported version of the dependencies is tried with."""

from __future__ import annotations

from functional.harness import SIGKILLED, MakeCrawl, StartSite, refetched
from functional.site import links

PAGES = 200
CONCURRENCY = 8
SPIDER = """
    class S(Spider):
        name = "s"

        async def start(self):
            yield Request(f"{self.site}/p/0")
            yield Request(f"{self.site}/fails/1/503/page")

        def parse(self, response):
            yield {"page": response.url}
            yield from response.follow_all(css="a")
"""


def reachable() -> set[str]:
    found = waiting = {0}
    while waiting:
        waiting = {to for n in waiting for to in links(n, PAGES)} - found
        found = found | waiting
    return {f"/p/{n}" for n in found}


def test_a_killed_crawl_goes_on(start_site: StartSite, make_crawl: MakeCrawl) -> None:
    site = start_site(pages=PAGES, delay=0.02)
    crawl = make_crawl(
        SPIDER,
        settings={"CONCURRENT_REQUESTS": CONCURRENCY, "HA_RETRY_BASE": 0.1},
        arguments=[f"-asite={site.url}"],
    )
    assert crawl.run(kill_when=lambda: len(site.served()) >= 40).status == SIGKILLED
    assert crawl.run().reason == "finished"
    served = site.served()
    assert served.keys() == reachable() | {"/fails/1/503/page"}
    assert refetched(served) <= CONCURRENCY
    assert crawl.items().keys() == {f'{{"page": "{site.url}{path}"}}' for path in served}
    assert crawl.items().total() == len(served)
    assert crawl.frontier()[0].pending == 0
