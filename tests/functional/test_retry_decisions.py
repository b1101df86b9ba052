"""What a project may say about failures: remedies, classes of its own, methods; and garbled bodies."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from faultserver import FaultServer, reply
from functional.harness import MakeCrawl

SPIDER = """
    class S(Spider):
        name = "s"
        handle_httpstatus_list = [401]

        async def start(self):
            for url in self.urls.split():
                yield Request(url, method=self.method, errback=self.failed)

        def parse(self, response):
            yield {"page": response.url, "status": response.status, "text": response.text}

        def failed(self, failure):
            yield {"failed": failure.request.url}


    class Login:
        async def refresh(self, request, failure):
            note("refreshed")
            await asyncio.sleep(0.3)
            if first_time("login"):
                raise ValueError("the first login fails")
            return "secret"

        def apply(self, request, value):
            request = request.copy()
            request.headers["Authorization"] = value
            return request


    def classify(request, outcome):
        if b"captcha" in getattr(outcome, "body", b""):
            return "ban"
"""


@pytest.fixture
def server() -> Iterator[FaultServer]:
    with FaultServer() as running:
        yield running


def test_a_remedy_is_fetched_once_for_all(server: FaultServer, make_crawl: MakeCrawl) -> None:
    """Twenty pages answer 401 at first. The first login fails, and costs an attempt; one more serves all."""
    site = server.site({f"/{n}": [reply(401), reply(401), reply(200, b"in")] for n in range(20)})
    crawl = make_crawl(
        SPIDER,
        settings={
            "HA_RETRY_REMEDIES": {"auth": "project.main.Login"},
            "HA_RETRY_BASE": 0.2,
            "CONCURRENT_REQUESTS_PER_DOMAIN": 16,
        },
        arguments=[f"-aurls={' '.join(f'{site}/{n}' for n in range(20))}", "-amethod=GET"],
    )
    run = crawl.run()
    assert run.reason == "finished"
    assert crawl.items().total() == 20
    assert all('"in"' in item for item in crawl.items())
    assert run.stats["ha/retry/auth"] == 40
    assert run.stats["ha/retry/remedied/auth"] + run.stats["ha/retry/remedy_failed/auth"] == 40
    assert 2 <= crawl.notes()["refreshed"] <= 6


def test_a_class_of_the_projects_own(server: FaultServer, make_crawl: MakeCrawl) -> None:
    """A page with status 200 that is a ban, by the project's function, is retried by its policy."""
    site = server.site({"/page": [reply(200, b"solve this captcha"), reply(200, b"welcome")]})
    crawl = make_crawl(
        SPIDER,
        settings={
            "HA_RETRY_CLASSIFY": "project.main.classify",
            "HA_RETRY_POLICIES": {"ban": {"backoff": "fixed", "base": 0.2, "jitter": "none", "retries": 3}},
        },
        arguments=[f"-aurls={site}/page", "-amethod=GET"],
    )
    run = crawl.run()
    assert run.reason == "finished"
    (item,) = crawl.items()
    assert "welcome" in item
    assert run.stats["ha/retry/ban"] == 1


@pytest.mark.parametrize("idempotent", [False, True])
def test_a_post_that_may_have_been_processed(
    idempotent: bool, server: FaultServer, make_crawl: MakeCrawl
) -> None:
    """It is not sent again, but kept; unless the project says that it may be sent twice."""
    site = server.site({"/form": [reply(500), reply(200, b"done")]})
    crawl = make_crawl(
        SPIDER,
        settings={"HA_RETRY_METHODS": ["GET", "POST"] if idempotent else ["GET"], "HA_RETRY_BASE": 0.1},
        arguments=[f"-aurls={site}/form", "-amethod=POST"],
    )
    assert crawl.run().reason == "finished"
    assert len(server.hits[f"{site}/form"]) == (2 if idempotent else 1)
    counts, letters = crawl.frontier()
    assert (counts.pending, len(letters)) == (0, 0 if idempotent else 1)
    assert all(b'"server"' in letter.record for letter in letters)


def test_a_garbled_body_is_fetched_again(server: FaultServer, make_crawl: MakeCrawl) -> None:
    """As a failure of class ``decode``, which Scrapy tells no retry middleware of."""
    garbled = reply(200, b"this is no gzip", Content_Encoding="gzip")
    site = server.site({"/page": [garbled, garbled, reply(200, b"whole")], "/never": [garbled]})
    crawl = make_crawl(
        SPIDER,
        settings={"HA_RETRY_BASE": 0.1},
        arguments=[f"-aurls={site}/page {site}/never", "-amethod=GET"],
    )
    run = crawl.run()
    assert run.reason == "finished"
    items = sorted(crawl.items())
    assert len(items) == 2
    assert "never" in items[0]
    assert "whole" in items[1]
    assert run.stats["ha/retry/decode"] == 4
    assert run.stats["ha/retry/gave_up/decode"] == 1


def test_a_redirect_is_followed_when_the_server_said(server: FaultServer, make_crawl: MakeCrawl) -> None:
    site = server.site(
        {
            "/moved": [reply(302, Location="/target", Retry_After="2")],
            "/target": [reply(200, b"there")],
        }
    )
    crawl = make_crawl(SPIDER, arguments=[f"-aurls={site}/moved", "-amethod=GET"])
    assert crawl.run().reason == "finished"
    assert crawl.items().total() == 1
    assert server.hits[f"{site}/target"][0] - server.hits[f"{site}/moved"][0] >= 2.0


@pytest.mark.parametrize("throttle", [False, True])
def test_a_host_that_asks_for_patience_is_slowed_for_a_while(
    throttle: bool, server: FaultServer, make_crawl: MakeCrawl
) -> None:
    """By the delay of Scrapy's download slot, which goes back to what it was; AutoThrottle or not."""
    pages: dict[str, list[bytes]] = {f"/{n}": [reply(200)] for n in range(40)}
    pages["/20"] = [reply(429), reply(200)]
    crawl = make_crawl(
        """
        class S(Spider):
            name = "s"

            async def start(self):
                for n in range(40):
                    yield Request(f"{self.site}/{n}")
                await asyncio.sleep(4)
                yield Request(f"{self.site}/last")

            def parse(self, response):
                (slot,) = self.crawler.engine.downloader.slots.values()
                yield {"page": response.url, "delay": slot.delay}
        """,
        settings={
            "AUTOTHROTTLE_ENABLED": throttle,
            "AUTOTHROTTLE_START_DELAY": 0,
            "AUTOTHROTTLE_TARGET_CONCURRENCY": 1000,
            "DOWNLOAD_DELAY": 0.02,
            "RANDOMIZE_DOWNLOAD_DELAY": False,
            "HA_PACE_CUT": 0.2,
            "HA_PACE_RECOVERY": 2,
            "HA_RETRY_BASE": 0.1,
        },
        arguments=[f"-asite={site_of(server, pages)}"],
    )
    run = crawl.run()
    assert run.reason == "finished"
    delays = {item["page"].rpartition("/")[2]: item["delay"] for item in map(json.loads, crawl.items())}
    assert len(delays) == 41
    assert run.stats["ha/guard/slowed"] == 1
    assert max(delays.values()) > 0.05
    assert delays["0"] < 0.05
    assert delays["last"] < 0.05


def site_of(server: FaultServer, pages: dict[str, list[bytes]]) -> str:
    return server.site({**pages, "/last": [reply(200)]})
