"""What was seen, in real crawls under every scheduler: nothing twice, and nothing lost to the filter."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pytest
from functional.harness import MakeCrawl, StartSite
from functional.redis_server import running_redis

FILTER = "scrapy_ha.dupefilter.BloomDupeFilter"
SCRAPYS = {"SCHEDULER": "scrapy.core.scheduler.Scheduler"}
TINY = {"HA_SEEN_CAPACITY": 1, "HA_SEEN_ERROR_RATE": 0.9, "HA_SEEN_BLOOM": "pybloom"}
"""A filter that says «perhaps» of about everything."""

GRID = """
class S(Spider):
    name = "s"

    async def start(self):
        yield Request(self.site + "/ok/0", self.parse, dont_filter=True)

    def parse(self, response):
        n = int(response.url.rpartition("/")[2])
        note(str(n))
        for m in (2 * n + 1, 2 * n + 2, n // 2, n):
            if m < int(self.size):
                yield Request(self.site + "/ok/" + str(m))
"""


@pytest.fixture(scope="module")
def redis_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with running_redis(tmp_path_factory.mktemp("redis")) as url:
        yield url


@pytest.fixture(params=["ours", "memory", "jobdir", "redis"])
def under(request: pytest.FixtureRequest) -> dict[str, Any]:
    """Settings of each scheduler."""
    if request.param == "redis":
        return {
            "SCHEDULER": "scrapy_redis.scheduler.Scheduler",
            "DUPEFILTER_CLASS": FILTER,
            "SCHEDULER_PERSIST": True,
            "SCHEDULER_QUEUE_KEY": f"{uuid4()}:requests",
            "REDIS_URL": request.getfixturevalue("redis_url"),
        }
    return {"ours": {}, "memory": SCRAPYS, "jobdir": {**SCRAPYS, "JOBDIR": "job"}}[request.param]


@pytest.mark.parametrize("tiny", [False, True])
def test_each_page_once(
    start_site: StartSite, make_crawl: MakeCrawl, under: dict[str, Any], tiny: bool
) -> None:
    """D3: 300 pages, each once, also with a filter that takes every URL for seen; the stats say why."""
    site = start_site()
    settings = {**under, **(TINY if tiny else {}), "HA_DIR": "ha"}
    crawl = make_crawl(GRID, settings=settings, arguments=[f"-asite={site.url}", "-asize=300"])
    run = crawl.run()
    assert run.reason == "finished", run.log
    # The start request is not filtered, so its URL is new when it is met as a link.
    assert crawl.notes() == Counter({"0": 2, **{str(n): 1 for n in range(1, 300)}})
    stats = run.stats
    assert stats["dupefilter/filtered"] > 300
    assert stats["ha/seen/new"] + stats["ha/seen/perhaps"] >= 299
    assert stats["ha/seen/perhaps"] == stats["ha/seen/confirmed"] + stats["ha/seen/false_positive"]
    assert (stats["ha/seen/false_positive"] > 100) is tiny
    assert 0 < stats["ha/seen/fill_ratio"] < 1
    assert run.log.count("Filtered duplicate request") == 1


def test_a_finished_crawl_begins_afresh(
    start_site: StartSite, make_crawl: MakeCrawl, under: dict[str, Any]
) -> None:
    """And with HA_SEEN_KEEP only the start request, which is not filtered, is fetched again."""
    site = start_site()
    arguments = [f"-asite={site.url}", "-asize=20"]
    crawl = make_crawl(GRID, settings={**under, "HA_DIR": "ha"}, arguments=arguments)
    assert [crawl.run().reason for _ in range(2)] == ["finished", "finished"]
    assert crawl.notes().total() == 2 * 21
    run = crawl.run("-s", "HA_SEEN_KEEP=1")
    assert run.reason == "finished"
    assert crawl.notes().total() == 2 * 21 + 1
    run = crawl.run("-s", "HA_SEEN_KEEP=1", "-s", "HA_SEEN_RESET=1")
    assert run.reason == "finished"
    assert crawl.notes().total() == 3 * 21 + 1


def test_seen_but_never_fetched_is_new_to_the_next_run(start_site: StartSite, make_crawl: MakeCrawl) -> None:
    """D1: a process that dies with requests in memory leaves them unseen, and what it had done seen."""
    site = start_site()
    source = """
    class S(Spider):
        name = "s"
        custom_settings = {"CONCURRENT_REQUESTS": 1}

        async def start(self):
            for n in range(10):
                yield Request(f"{self.site}/ok/{n}", self.parse)

        def parse(self, response):
            note(response.url.rpartition("/")[2])
            if response.url.endswith("/4") and first_time("death"):
                die()
    """
    settings = {**SCRAPYS, "HA_DIR": "ha", "SCHEDULER_MEMORY_QUEUE": "scrapy.squeues.FifoMemoryQueue"}
    settings["HA_CHECKPOINT_ENABLED"] = False
    crawl = make_crawl(source, settings=settings, arguments=[f"-asite={site.url}"])
    crawl.run()
    run = crawl.run()
    assert run.reason == "finished", run.log
    assert crawl.notes() == Counter({**{str(n): 1 for n in range(10)}, "4": 2})


def test_a_retried_or_redirected_page_is_done_when_it_is(
    start_site: StartSite, make_crawl: MakeCrawl
) -> None:
    """Not when it gives way to another request: killed in between, it is fetched in the next run."""
    site = start_site()
    source = """
    class Dying:
        def process_request(self, request, *rest):
            if "redirect_times" in request.meta and first_time("death"):
                die()

    class S(Spider):
        name = "s"
        custom_settings = {"DOWNLOADER_MIDDLEWARES": {"project.main.Dying": 100}}

        async def start(self):
            yield Request(self.site + "/to/ok/7", self.parse)

        def parse(self, response):
            note(response.url)
    """
    settings = {**SCRAPYS, "HA_DIR": "ha", "HA_CHECKPOINT_ENABLED": False, "HA_SEEN_KEEP": True}
    crawl = make_crawl(source, settings=settings, arguments=[f"-asite={site.url}"])
    crawl.run()
    assert not crawl.notes()
    assert crawl.run().reason == "finished"
    assert crawl.notes().total() == 1
    crawl.run()
    assert crawl.notes().total() == 1, "the redirected URL was seen now"


def test_keys_of_a_request(start_site: StartSite, make_crawl: MakeCrawl, under: dict[str, Any]) -> None:
    """D10: ha_seen_key stands for the URL; ha_seen = False neither filters nor remembers."""
    site = start_site()
    source = """
    class S(Spider):
        name = "s"
        custom_settings = {"CONCURRENT_REQUESTS": 1}

        async def start(self):
            yield Request(self.site + "/ok/1?session=a", self.parse, meta={"ha_seen_key": "one"})
            yield Request(self.site + "/ok/1?session=b", self.parse, meta={"ha_seen_key": "one"})
            yield Request(self.site + "/ok/2", self.parse, meta={"ha_seen": False})
            yield Request(self.site + "/ok/2", self.parse, meta={"ha_seen": False})
            yield Request(self.site + "/ok/2", self.parse)
            yield Request(self.site + "/ok/2", self.parse)
            yield Request(self.site + "/ok/3", self.parse, meta={"ha_seen_key": 3})

        def parse(self, response):
            note(response.url.rpartition("/")[2])
    """
    crawl = make_crawl(source, settings={**under, "HA_DIR": "ha"}, arguments=[f"-asite={site.url}"])
    run = crawl.run()
    # Which of the two sessions is scheduled first is up to the scheduler.
    redis = "SCHEDULER_QUEUE_KEY" in under
    fetched = Counter(note.partition("?")[0] for note in crawl.notes().elements())
    # scrapy-redis's queue holds two requests that are equal only once, if both wait at a time.
    assert fetched in [Counter({"1": 1, "2": twos, "3": 1}) for twos in (3, 2)[: 1 + redis]], run.log
    assert run.stats["dupefilter/filtered"] == 2


def test_another_fingerprinter_is_said(
    start_site: StartSite, make_crawl: MakeCrawl, under: dict[str, Any]
) -> None:
    """Keys of different makers cannot be compared: one warning, by name."""
    site = start_site()
    source = (
        GRID
        + """

class Other:
    def fingerprint(self, request):
        return request.url.encode()[-20:]
"""
    )
    arguments = [f"-asite={site.url}", "-asize=5"]
    crawl = make_crawl(source, settings={**under, "HA_DIR": "ha", "HA_SEEN_KEEP": True}, arguments=arguments)
    assert not [line for line in crawl.run().lines("WARNING") if "fingerprint" in line]
    run = crawl.run("-s", "REQUEST_FINGERPRINTER_CLASS=project.main.Other")
    (line,) = [line for line in run.lines("WARNING") if "fingerprint" in line]
    assert "RequestFingerprinter" in line
    assert "project.main.Other" in line


@pytest.mark.parametrize("under", ["ours", "memory"], indirect=True)
def test_a_size_beyond_memory(make_crawl: MakeCrawl, under: dict[str, Any]) -> None:
    """D4: refused at the start, with what it would take."""
    crawl = make_crawl("class S(Spider):\n    name = 's'\n", settings={**under, "HA_SEEN_CAPACITY": 10**13})
    run = crawl.run()
    assert run.status != 0 or run.reason is None
    assert "HA_SEEN_CAPACITY" in run.log
    assert "MB" in run.log
