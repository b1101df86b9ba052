"""A request that cannot be stored is fetched all the same, and harms no other."""

from __future__ import annotations

import time

from functional.harness import SIGKILLED, MakeCrawl, Site

SPIDER = """
    class Other:
        def parse(self, response):
            yield {"page": response.url, "by": "other"}


    class S(Spider):
        name = "s"

        async def start(self):
            yield Request(f"{self.site}/ok/parent")

        def parse(self, response):
            note("parent")
            other = Other()
            yield Request(f"{self.site}/ok/good-1", callback=self.page)
            yield Request(f"{self.site}/ok/lambda", callback=lambda response: self.page(response))
            yield Request(f"{self.site}/ok/meta", callback=self.page, meta={"f": lambda: 1})
            yield Request(f"{self.site}/slow/2/sel", callback=self.page, meta={"sel": response.selector})
            yield Request(f"{self.site}/ok/method", callback=other.parse)
            yield Request(f"{self.site}/ok/good-2", callback=self.page)

        def page(self, response):
            yield {"page": response.url}
"""
CHILDREN = {"/ok/good-1", "/ok/lambda", "/ok/meta", "/slow/2/sel", "/ok/method", "/ok/good-2"}


def test_all_are_fetched_and_each_kind_is_named_once(site: Site, make_crawl: MakeCrawl) -> None:
    crawl = make_crawl(SPIDER, arguments=[f"-asite={site.url}"])
    run = crawl.run()
    assert run.reason == "finished"
    assert site.served() == dict.fromkeys({"/ok/parent"} | CHILDREN, 1)
    assert len(crawl.items()) == 6
    warnings = [line for line in run.lines("WARNING") if "cannot be stored" in line]
    assert len(warnings) == 4
    for path, warning in zip(("lambda", "meta", "sel", "method"), warnings, strict=True):
        assert f"/{path}>" in warning
    assert run.stats["scheduler/enqueued/memory"] == 4
    assert run.stats["scheduler/enqueued/disk"] == 3
    assert run.stats["ha/scheduler/unserializable"] == 4
    counts, dead = crawl.frontier()
    assert (counts.pending, dead) == (0, [])


def test_their_page_is_not_done_before_they_are(site: Site, make_crawl: MakeCrawl) -> None:
    """So a crash while one is in flight loses none: the page is parsed again and yields them again."""
    crawl = make_crawl(SPIDER, arguments=[f"-asite={site.url}"])

    def all_but_one_done() -> bool:
        return len(site.served()) == len(CHILDREN) and time.time() > site.events()[-1].time + 0.6

    assert crawl.run(kill_when=all_but_one_done).status == SIGKILLED
    assert crawl.run().reason == "finished"
    assert crawl.notes() == {"parent": 2}
    served = site.served()
    assert served["/ok/good-1"] == served["/ok/good-2"] == 1
    assert served.keys() >= CHILDREN
    assert len(crawl.items()) == 6
    assert crawl.frontier()[0].pending == 0
