"""Start requests are produced once per crawl, whatever happens meanwhile."""

from __future__ import annotations

from functional.harness import SIGKILLED, MakeCrawl, Site, StartSite, refetched

CONCURRENCY = 4
SETTINGS = {"CONCURRENT_REQUESTS": CONCURRENCY}
SPIDER = """
    class S(Spider):
        name = "s"

        async def start(self):
            note("start")
            for n in range(60):
                if n == 40 and first_time("seeding"):
                    die()
                yield Request(f"{self.site}/ok/{n}", dont_filter=n % 2 == 0)
                await asyncio.sleep(0.002)
            note("seeded")

        def parse(self, response):
            yield {"page": response.url}
"""
PAGES = {f"/ok/{n}" for n in range(60)}


def test_seeding_goes_on_after_a_crash(start_site: StartSite, make_crawl: MakeCrawl) -> None:
    """Every start request is fetched, and none twice by being produced again, ``dont_filter`` or not."""
    site = start_site(delay=0.01)
    crawl = make_crawl(SPIDER, settings=SETTINGS, arguments=[f"-asite={site.url}"])
    assert crawl.run().status == SIGKILLED
    assert crawl.run().reason == "finished"
    served = site.served()
    assert served.keys() == PAGES
    assert refetched(served) <= CONCURRENCY
    assert set(crawl.items().values()) == {1}
    assert crawl.notes() == {"start": 2, "seeded": 1}


def test_start_is_not_called_again_once_it_had_ended(start_site: StartSite, make_crawl: MakeCrawl) -> None:
    site = start_site(delay=0.05)
    crawl = make_crawl(SPIDER.replace("== 40", "< 0"), settings=SETTINGS, arguments=[f"-asite={site.url}"])
    assert crawl.run(kill_when=lambda: "seeded" in crawl.notes()).status == SIGKILLED
    assert len(site.served()) < len(PAGES)
    assert crawl.run().reason == "finished"
    assert site.served().keys() == PAGES
    assert crawl.notes() == {"start": 1, "seeded": 1}


def test_stored_requests_run_although_all_start_requests_are_filtered(
    start_site: StartSite, make_crawl: MakeCrawl
) -> None:
    """With ``HA_SEED_ONCE = False`` they are produced at every start."""
    site = start_site(delay=0.05)
    source = SPIDER.replace("== 40", "< 0").replace("n % 2 == 0", "False")
    crawl = make_crawl(source, settings={**SETTINGS, "HA_SEED_ONCE": False}, arguments=[f"-asite={site.url}"])
    assert crawl.run(kill_when=lambda: "seeded" in crawl.notes()).status == SIGKILLED
    assert crawl.run().reason == "finished"
    served = site.served()
    assert served.keys() == PAGES
    assert refetched(served) <= CONCURRENCY
    assert crawl.notes() == {"start": 2, "seeded": 2}


def test_a_sitemap_spider_reads_its_other_sitemaps_after_a_stop(site: Site, make_crawl: MakeCrawl) -> None:
    crawl = make_crawl(
        """
        from scrapy.spiders import SitemapSpider

        class S(SitemapSpider):
            name = "s"

            def __init__(self, site, **kwargs):
                super().__init__(**kwargs)
                self.sitemap_urls = [f"{site}/sitemap/{name}/5" for name in "abc"]

            def parse(self, response):
                yield {"page": response.url}
        """,
        settings={"CONCURRENT_REQUESTS": 1},
        arguments=[f"-asite={site.url}"],
    )
    assert crawl.run("-s", "CLOSESPIDER_PAGECOUNT=1").reason == "closespider_pagecount"
    assert not {"/sitemap/b/5", "/sitemap/c/5"} <= site.served().keys()
    assert crawl.run().reason == "finished"
    sitemaps = {f"/sitemap/{name}/5" for name in "abc"}
    pages = {f"/ok/{name}-{n}" for name in "abc" for n in range(5)}
    assert site.served() == dict.fromkeys(sitemaps | pages, 1)
    assert len(crawl.items()) == len(pages)
