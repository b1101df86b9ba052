"""The kill tests are able to fail: without scrapy_ha they see the loss."""

from __future__ import annotations

from functional.harness import SIGKILLED, MakeCrawl, StartSite

SPIDER = """
    class S(Spider):
        name = "s"

        async def start(self):
            for n in range(300):
                yield Request(f"{self.site}/p/{n}")

        def parse(self, response):
            yield {"page": response.url}
            yield from response.follow_all(css="a")
"""
PAGES = 1500


def test_scrapys_own_job_directory_loses_pages(start_site: StartSite, make_crawl: MakeCrawl) -> None:
    site = start_site(pages=PAGES)
    arguments = ["-a", f"site={site.url}"]
    crawl = make_crawl(SPIDER, arguments=arguments, settings={"JOBDIR": "job"}, activated=False)
    assert crawl.run(kill_when=lambda: len(site.served()) >= PAGES // 4).status == SIGKILLED
    assert crawl.run().reason == "finished"
    assert len(site.served()) < PAGES
