"""However a request ends, it is done then: nothing of it is left, and nothing is handled twice."""

from __future__ import annotations

from functional.harness import MakeCrawl, Site

from scrapy_ha.deadletter import DeadLetter

SPIDER = """
    PATHS = [
        "ok/parsed", "ok/raises", "ok/raises-later", "status/404/errback", "status/404/no-errback",
        "status/404/errback-raises", "ok/ignored-before", "ok/ignored-after", "ok/answered", "ok/replaced",
        "to/ok/redirected", "fails/1/503/retried", "ok/closes", "reset/1/reset", "status/503/given-up",
        "ok/refused-by-spider-middleware", "ok/item-dropped", "ok/item-raises", "ok/no-output", "ok/last",
    ]

    class S(Spider):
        name = "s"

        async def start(self):
            for path in PATHS:
                errback = None if "no-errback" in path else self.errback
                yield Request(f"{self.site}/{path}", errback=errback)

        def parse(self, response):
            name = response.url.rpartition("/")[2]
            note(f"parsed {name}")
            if name == "raises":
                raise ValueError(name)
            if name == "closes" and first_time("closes"):
                raise CloseSpider("enough")
            if name != "no-output":
                yield {"name": name}
                yield {"name": f"second of {name}"}
            if name == "raises-later":
                raise ValueError(name)

        def errback(self, failure):
            name = failure.request.url.rpartition("/")[2]
            note(f"failed {name}")
            if name == "errback-raises":
                raise ValueError(name)
            return [{"name": f"failed {name}"}]  # Scrapy 2.13.0 never runs an errback that is a generator


    class Downloads:
        def process_request(self, request, spider=None):
            if request.url.endswith("ignored-before"):
                raise IgnoreRequest
            if request.url.endswith("answered"):
                from scrapy.http import HtmlResponse
                return HtmlResponse(request.url, body=b"<html></html>")
            if request.url.endswith("replaced"):
                return request.replace(url=request.url + "/with-another")

        def process_response(self, request, response, spider=None):
            if request.url.endswith("ignored-after"):
                raise IgnoreRequest
            return response


    class Outputs:
        def process_spider_input(self, response, spider=None):
            if response.url.endswith("refused-by-spider-middleware"):
                raise ValueError("refused")


    class Items:
        def process_item(self, item, spider=None):
            if item["name"] == "item-dropped":
                raise DropItem("dropped")
            if item["name"] == "item-raises":
                raise ValueError("raised")
            return item
"""
PARSED = {
    "parsed", "raises", "raises-later", "answered", "with-another", "redirected", "retried", "closes",
    "reset", "item-dropped", "item-raises", "no-output", "last",
}  # fmt: skip
FAILED = {
    "errback", "errback-raises", "ignored-before", "ignored-after", "given-up",
    "refused-by-spider-middleware",
}  # fmt: skip
HANDLED = {f"parsed {name}" for name in PARSED} | {f"failed {name}" for name in FAILED}
ATTEMPTS = {
    "/ok/answered": 0,
    "/ok/ignored-before": 0,
    "/ok/replaced": 0,
    "/ok/replaced/with-another": 1,
    "/fails/1/503/retried": 2,
    "/reset/1/reset": 2,
    "/status/503/given-up": 3,
}


def test_every_ending(site: Site, make_crawl: MakeCrawl) -> None:
    crawl = make_crawl(
        SPIDER,
        settings={
            "CONCURRENT_REQUESTS": 3,
            "DOWNLOADER_MIDDLEWARES": {"project.main.Downloads": 610},
            "SPIDER_MIDDLEWARES": {"project.main.Outputs": 500},
            "ITEM_PIPELINES": {"project.main.Items": 500},
            "HA_RETRY_BASE": 0.1,
        },
        arguments=[f"-asite={site.url}"],
    )

    first = crawl.run()
    assert first.reason == "enough"
    assert "parsed last" not in crawl.notes()

    second = crawl.run()
    assert second.reason == "finished"
    assert crawl.notes() == dict.fromkeys(HANDLED, 1)
    items = crawl.items()
    assert set(items.values()) == {1}
    assert '{"name": "second of item-dropped"}' in items
    asked = [event.page.partition("/")[2] for event in site.events() if event.what == "asked"]
    for path, attempts in ATTEMPTS.items():
        # One that fails while the first run closes uses up no attempt.
        assert asked.count(path[1:]) - attempts in ({0, 1} if path.endswith("given-up") else {0}), path

    counts, dead = crawl.frontier()
    assert counts.pending == 0
    letters = [DeadLetter.unpack(one.record) for one in dead]
    assert {letter.url.rpartition("/")[2]: letter.cls for letter in letters} == {
        "raises": "callback",
        "raises-later": "callback",
        "errback-raises": "callback",
        "given-up": "server",
    }


def test_a_finished_crawl_starts_fresh(site: Site, make_crawl: MakeCrawl) -> None:
    """As does the crawl after that; an interrupted one goes on instead."""
    crawl = make_crawl(
        """
        class S(Spider):
            name = "s"

            async def start(self):
                for n in range(10):
                    yield Request(f"{self.site}/ok/{n}")

            def parse(self, response):
                yield {}
        """,
        arguments=[f"-asite={site.url}"],
    )
    for n in (1, 2, 3):
        assert crawl.run().reason == "finished"
        assert site.served() == {f"/ok/{page}": n for page in range(10)}
