"""Several workers, one crawl: what one of them loses another one takes up."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from functional.harness import Crawl, MakeCrawl, Site, StartSite
from functional.redis_server import RedisServer, running_redis
from functional.site import UNLINKED

PAGES = 600

SPIDER = f"""
    class S(Spider):
        name = "s"

        async def start(self):
            for n in range({UNLINKED}):
                yield Request(f"{{self.site}}/p/{{n}}", dont_filter=True)
            for n in range({UNLINKED}, 300):
                yield Request(f"{{self.site}}/p/{{n}}")

        def parse(self, response):
            yield {{"page": int(response.url.rpartition("/")[2])}}
            yield from response.follow_all(css="a")
"""


@pytest.fixture(scope="module")
def redis_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with running_redis(tmp_path_factory.mktemp("redis")) as url:
        yield url


@pytest.fixture
def shared(redis_url: str) -> dict[str, Any]:
    return {
        "HA_FRONTIER": "redis",
        "REDIS_URL": redis_url,
        "HA_NAMESPACE": str(uuid4()),
        "HA_LEASE_SECONDS": 3,
        "CONCURRENT_REQUESTS_PER_DOMAIN": 16,
    }


def workers(make_crawl: MakeCrawl, site: Site, settings: dict[str, Any], number: int) -> list[Crawl]:
    return [
        make_crawl(SPIDER, f"worker-{n}", settings=settings, arguments=[f"-asite={site.url}"])
        for n in range(number)
    ]


def items(crawls: list[Crawl]) -> dict[str, int]:
    found: dict[str, int] = {}
    for crawl in crawls:
        for item, times in crawl.items().items():
            found[item] = found.get(item, 0) + times
    return found


def test_three_workers_are_one_crawl(
    start_site: StartSite, make_crawl: MakeCrawl, shared: dict[str, Any]
) -> None:
    """Each page once over all of them, and all of them end when nothing is left."""
    site = start_site(pages=PAGES, delay=0.02)
    crawls = workers(make_crawl, site, shared, 3)
    processes = [crawl.start() for crawl in crawls]
    runs = [crawl.end(process) for crawl, process in zip(crawls, processes, strict=True)]
    assert [run.reason for run in runs] == ["finished"] * 3
    assert site.served() == {f"/p/{n}": 1 for n in range(PAGES)}
    assert sorted(items(crawls).values()) == [1] * PAGES
    assert all(run.stats["response_received_count"] > PAGES / 10 for run in runs)


def test_a_worker_that_dies_is_missed_by_nobody(
    start_site: StartSite, make_crawl: MakeCrawl, shared: dict[str, Any]
) -> None:
    """The others wait for its leases, take them over, and then close."""
    site = start_site(pages=PAGES, delay=0.02)
    crawls = workers(make_crawl, site, shared, 2)
    processes = [crawl.start() for crawl in crawls]
    crawls[0].end(processes[0], kill_when=lambda: len(site.served()) > PAGES / 2)
    run = crawls[1].end(processes[1])
    assert run.reason == "finished"
    served = site.served()
    assert served.keys() == {f"/p/{n}" for n in range(PAGES)}
    assert sum(served.values()) - PAGES <= 32
    assert len(items(crawls)) == PAGES
    assert crawls[0].run().reason == "finished", "the crawl is over; this is the next one"


def test_a_worker_that_comes_back(
    start_site: StartSite, make_crawl: MakeCrawl, shared: dict[str, Any]
) -> None:
    """It takes its leases back at once, however long they last, and its feed holds each item once."""
    site = start_site(pages=PAGES, delay=0.02)
    (crawl,) = workers(make_crawl, site, {**shared, "HA_LEASE_SECONDS": 3600}, 1)
    for part in (4, 2):
        crawl.run(kill_when=lambda part=part: len(site.served()) > PAGES / part)
    run = crawl.run()
    assert run.reason == "finished"
    assert run.stats["ha/scheduler/reclaimed"] > 0
    served = site.served()
    assert served.keys() == {f"/p/{n}" for n in range(PAGES)}
    assert sum(served.values()) - PAGES <= 2 * 32  # endings that were on their way included
    assert sorted(crawl.items().values()) == [1] * PAGES


def test_a_worker_that_was_stopped_is_refused(
    start_site: StartSite, make_crawl: MakeCrawl, shared: dict[str, Any]
) -> None:
    """SIGSTOP beyond its leases: what it held is another one's by then, and is done once."""
    site = start_site(pages=PAGES, delay=0.05)
    crawls = workers(make_crawl, site, shared, 2)
    processes = [crawl.start() for crawl in crawls]
    while len(site.served()) < PAGES / 3:
        assert processes[0].poll() is None
        time.sleep(0.02)
    processes[0].send_signal(signal.SIGSTOP)
    time.sleep(4.5)
    processes[0].send_signal(signal.SIGCONT)
    runs = [crawl.end(process) for crawl, process in zip(crawls, processes, strict=True)]
    assert [run.reason for run in runs] == ["finished"] * 2
    assert site.served().keys() == {f"/p/{n}" for n in range(PAGES)}
    assert runs[0].stats["ha/scheduler/fenced"] > 0


def test_the_next_crawl_begins_afresh(
    start_site: StartSite, make_crawl: MakeCrawl, shared: dict[str, Any]
) -> None:
    site = start_site(pages=PAGES)
    (crawl,) = workers(make_crawl, site, shared, 1)
    assert [crawl.run().reason for _ in range(2)] == ["finished"] * 2
    assert site.served() == {f"/p/{n}": 2 for n in range(PAGES)}


def test_a_server_that_is_killed(
    start_site: StartSite, make_crawl: MakeCrawl, shared: dict[str, Any], tmp_path: Path
) -> None:
    """S3: away for 4 s while links are found: no page is lost, the spider stays, one line each way."""
    server = RedisServer(tmp_path, keep=True)
    server.start()
    try:
        site = start_site(pages=PAGES, delay=0.02)
        (crawl,) = workers(make_crawl, site, {**shared, "REDIS_URL": server.url}, 1)
        process = crawl.start()
        while len(site.served()) < PAGES / 3:
            assert process.poll() is None
            time.sleep(0.02)
        server.kill()
        time.sleep(4)
        server.start()
        run = crawl.end(process)
    finally:
        server.kill()
    assert run.reason == "finished", run.log
    assert site.served().keys() == {f"/p/{n}" for n in range(PAGES)}
    assert sorted(crawl.items().values()) == [1] * PAGES
    assert len(run.lines("WARNING")) == 1
    assert run.log.count("The frontier is back") == 1


def test_a_host_that_asks_for_patience_holds_up_no_other(
    start_site: StartSite, make_crawl: MakeCrawl, shared: dict[str, Any]
) -> None:
    """What was taken ahead of it goes back, and comes again in its time."""
    site = start_site()
    source = """
    class S(Spider):
        name = "s"

        async def start(self):
            for n in range(40):
                yield Request(self.site + f"/fails/1/503/sick-{n}?after=4", meta={"download_slot": "sick"})
            for n in range(300):
                yield Request(self.site + f"/ok/{n}", meta={"download_slot": f"well-{n % 3}"})

        def parse(self, response):
            note(f"{response.url} {self.crawler.stats.get_value('response_received_count')}")
    """
    crawl = make_crawl(source, settings=shared, arguments=[f"-asite={site.url}"])
    run = crawl.run()
    assert run.reason == "finished", run.log
    assert crawl.notes().total() == 340
    times = {event.page: event.time for event in site.events() if event.what == "asked"}
    well = [time for page, time in times.items() if "/ok/" in page]
    sick = [time for page, time in times.items() if "sick" in page]
    assert max(well) < min(sick) + 4
    assert max(sick) > min(sick) + 4


def test_a_page_that_kills_its_workers(
    start_site: StartSite, make_crawl: MakeCrawl, shared: dict[str, Any]
) -> None:
    """Is dead after so many deliveries, and everything else gets done."""
    site = start_site()
    source = """
    class S(Spider):
        name = "s"

        async def start(self):
            for n in range(60):
                yield Request(f"{self.site}/ok/{n}")

        def parse(self, response):
            if response.url.endswith("/ok/30"):
                os._exit(1)
            note(response.url.rpartition("/")[2])
    """
    settings = {**shared, "HA_MAX_DELIVERIES": 3}
    crawl = make_crawl(source, settings=settings, arguments=[f"-asite={site.url}"])
    for _ in range(6):
        run = crawl.run()
        if run.reason == "finished":
            break
    assert run.reason == "finished", run.log
    assert set(crawl.notes()) == {str(n) for n in range(60)} - {"30"}
    assert len(crawl.runs) == 4
    assert run.stats["ha/scheduler/dead"] == 1
