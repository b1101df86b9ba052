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
    site = start_site(delay=0.2)  # Scrapy 2.13 takes 0.1 s to be done with a page
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
    notes = crawl.notes()
    assert set(notes) == set("0123456789")
    assert (notes["0"], notes["4"]) == (1, 2)
    assert max(notes.values()) == 2  # those before it may not have been quite done


def test_a_retried_or_redirected_page_is_done_when_it_is(
    start_site: StartSite, make_crawl: MakeCrawl
) -> None:
    """Not when it gives way to another request: killed in between, it is fetched in the next run."""
    site = start_site()
    source = """
    class Dying:
        def process_request(self, request, **kwargs):
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


REDIRECTED = """
class S(Spider):
    name = "s"

    async def start(self):
        yield Request(self.site + "/to/ok/7", self.parse)
        yield Request(self.site + "/ok/8", self.parse)
        yield Request(self.site + "/to/ok/8", self.parse)

    def parse(self, response):
        note(response.url.rpartition("/")[2])
"""


def test_a_redirect_is_done_with_what_it_leads_to(
    start_site: StartSite, make_crawl: MakeCrawl, under: dict[str, Any]
) -> None:
    """Also when that is dropped: nothing is asked for again, and the crawl after it begins afresh."""
    site = start_site()
    settings = {**under, "HA_DIR": "ha"}
    crawl = make_crawl(REDIRECTED, settings=settings, arguments=[f"-asite={site.url}"])
    assert [crawl.run().reason for _ in range(2)] == ["finished", "finished"]
    assert crawl.notes() == Counter({"7": 2, "8": 2})
    run = crawl.run("-s", "HA_SEEN_KEEP=1")
    assert run.reason == "finished"
    assert "downloader/request_count" not in run.stats, run.log


def test_what_scrapy_redis_flushes(start_site: StartSite, make_crawl: MakeCrawl, redis_url: str) -> None:
    """Without SCHEDULER_PERSIST it forgets what was seen, but not what HA_SEEN_KEEP keeps."""
    site = start_site()
    settings = {
        "SCHEDULER": "scrapy_redis.scheduler.Scheduler",
        "SCHEDULER_QUEUE_KEY": f"{uuid4()}:requests",
        "DUPEFILTER_CLASS": FILTER,
        "REDIS_URL": redis_url,
        "HA_DIR": "ha",
    }
    crawl = make_crawl(REDIRECTED, settings=settings, arguments=[f"-asite={site.url}"])
    for kept, fetched in [(0, 1), (0, 2), (1, 3), (1, 3)]:
        assert crawl.run("-s", f"HA_SEEN_KEEP={kept}").reason == "finished"
        # The first run that keeps anything finds what the one before it has flushed.
        assert crawl.notes() == Counter({"7": fetched, "8": fetched})


@pytest.mark.parametrize("checkpoint", [False, True])
def test_a_stop_and_a_queue_that_goes_on(
    start_site: StartSite, make_crawl: MakeCrawl, checkpoint: bool
) -> None:
    """What waits in the queue of JOBDIR stays seen, and is fetched once."""
    site = start_site(delay=0.2)
    source = """
    class S(Spider):
        name = "s"
        custom_settings = {"CONCURRENT_REQUESTS": 1}

        async def start(self):
            yield Request(self.site + "/ok/0", self.parse)

        def parse(self, response):
            n = response.url.rpartition("/")[2]
            note(n)
            for m in range(10):
                yield Request(self.site + "/ok/" + str(m), self.parse)
            if n != "0" and first_time("stop"):
                raise CloseSpider("stopped")
    """
    settings = {**SCRAPYS, "JOBDIR": "job", "HA_CHECKPOINT_ENABLED": checkpoint}
    crawl = make_crawl(source, settings=settings, arguments=[f"-asite={site.url}"])
    assert crawl.run().reason == "stopped"
    assert 1 < crawl.notes().total() < 10
    run = crawl.run()
    assert run.reason == "finished"
    assert crawl.notes() == Counter("0123456789"), run.log


@pytest.mark.parametrize("under", ["ours", "memory"], indirect=True)
def test_what_was_given_up_is_new_to_the_next_crawl(
    start_site: StartSite, make_crawl: MakeCrawl, under: dict[str, Any]
) -> None:
    """D1: unlike a page that is there no more; in the crawl that gave it up it stays seen."""
    site = start_site()
    source = """
    class S(Spider):
        name = "s"

        async def start(self):
            for n in (503, 404):
                yield Request(self.site + f"/status/{n}", errback=self.failed)

        def failed(self, failure):
            note(str(failure.value.response.status))
            yield failure.request.replace(dont_filter=False)
    """
    settings = {**under, "HA_DIR": "ha", "HA_SEEN_KEEP": True, "RETRY_TIMES": 0}
    crawl = make_crawl(source, settings=settings, arguments=[f"-asite={site.url}"])
    assert [crawl.run().reason for _ in range(2)] == ["finished", "finished"]
    assert crawl.notes() == Counter({"503": 2, "404": 1})


@pytest.mark.parametrize("under", ["ours", "memory"], indirect=True)
def test_expiry_while_the_crawl_runs(
    start_site: StartSite, make_crawl: MakeCrawl, under: dict[str, Any]
) -> None:
    """D10: a URL is new again when its time is over, however often it was met before."""
    site = start_site()
    source = """
    class S(Spider):
        name = "s"

        async def start(self):
            for wait in (0, 0.2, 0.2, 3):
                await asyncio.sleep(wait)
                yield Request(self.site + "/ok/1", self.parse)

        def parse(self, response):
            note("1")
    """
    settings = {**under, "HA_DIR": "ha", "HA_SEEN_TTL": 2, "HA_CHECKPOINT_ENABLED": False}
    crawl = make_crawl(source, settings=settings, arguments=[f"-asite={site.url}"])
    run = crawl.run()
    assert run.reason == "finished"
    assert crawl.notes() == Counter({"1": 2}), run.log
    assert run.stats["dupefilter/filtered"] == 2


ALONE = {**SCRAPYS, "DUPEFILTER_CLASS": FILTER, "HA_DIR": "ha"}
"""The filter without any other part of the package."""


def test_a_child_does_not_end_its_page(start_site: StartSite, make_crawl: MakeCrawl) -> None:
    """D1: one that carries the page's meta ends before the page, which dies: the page is new to the next."""
    site = start_site()
    source = """
    class S(Spider):
        name = "s"

        async def start(self):
            yield Request(self.site + "/ok/1", self.parse)

        async def parse(self, response):
            note("page")
            yield Request(self.site + "/ok/2", self.child, meta=response.meta, dont_filter=True)
            while not self.ended:
                await asyncio.sleep(0.05)
            if first_time("death"):
                await asyncio.sleep(0.3)  # for the child to end
                die()

        ended = False

        def child(self, response):
            note("child")
            self.ended = True
    """
    crawl = make_crawl(source, activated=False, settings=ALONE, arguments=[f"-asite={site.url}"])
    crawl.run()
    run = crawl.run()
    assert run.reason == "finished"
    assert crawl.notes() == Counter({"page": 2, "child": 2}), run.log


def test_a_page_asked_for_again_is_not_done(start_site: StartSite, make_crawl: MakeCrawl) -> None:
    """D1: a callback's retry dies on the way: the page is new to the next run."""
    site = start_site()
    source = """
    from scrapy.downloadermiddlewares.retry import get_retry_request

    class Dying:
        def process_request(self, request, **kwargs):
            if "retry_times" in request.meta and first_time("death"):
                die()

    class S(Spider):
        name = "s"
        custom_settings = {"DOWNLOADER_MIDDLEWARES": {"project.main.Dying": 100}}

        async def start(self):
            yield Request(self.site + "/ok/1", self.parse)

        def parse(self, response):
            if first_time("retry"):
                yield get_retry_request(response.request, spider=self, reason="empty")
            else:
                note("parsed")
    """
    crawl = make_crawl(source, activated=False, settings=ALONE, arguments=[f"-asite={site.url}"])
    crawl.run()
    assert not crawl.notes()
    assert crawl.run().reason == "finished"
    assert crawl.notes() == Counter({"parsed": 1})


@pytest.mark.parametrize("under", ["ours", "memory"], indirect=True)
def test_a_store_that_cannot_be_read(
    start_site: StartSite, make_crawl: MakeCrawl, under: dict[str, Any]
) -> None:
    """Damaged under the running crawl: it is closed with one line that names the store, not «finished»."""
    site = start_site()
    source = """
    from pathlib import Path

    class S(Spider):
        name = "s"

        async def start(self):
            for file in Path("ha").glob("*/db/*.ldb"):
                data = bytearray(file.read_bytes())
                for n in range(100, len(data) - 200, 50):
                    data[n] ^= 255
                with file.open("r+b") as opened:
                    opened.write(data)
            for n in range(400):
                yield Request(self.site + f"/ok/{n}", self.parse)

        def parse(self, response):
            pass
    """
    settings = {**under, **TINY, "HA_DIR": "ha", "HA_SEEN_KEEP": True, "HA_CHECKPOINT_ENABLED": False}
    crawl = make_crawl(source, settings=settings, arguments=[f"-asite={site.url}"])
    assert crawl.run().reason == "finished"
    run = crawl.run()
    assert run.reason == "store_error"
    (line,) = run.lines("ERROR")
    assert str(crawl.directory / "ha") in line


def test_each_drop_is_signalled(start_site: StartSite, make_crawl: MakeCrawl, under: dict[str, Any]) -> None:
    """With DUPEFILTER_DEBUG each has a line as well."""
    site = start_site()
    source = """
    from scrapy import signals

    class S(Spider):
        name = "s"

        @classmethod
        def from_crawler(cls, crawler, *args, **kwargs):
            spider = super().from_crawler(crawler, *args, **kwargs)
            crawler.signals.connect(spider.dropped, signals.request_dropped)
            return spider

        def dropped(self, request):
            note("dropped")

        async def start(self):
            for _ in range(4):
                yield Request(self.site + "/ok/1", self.parse)

        def parse(self, response):
            note("fetched")
    """
    settings = {**under, "HA_DIR": "ha", "DUPEFILTER_DEBUG": True}
    crawl = make_crawl(source, settings=settings, arguments=[f"-asite={site.url}"])
    run = crawl.run()
    assert crawl.notes() == Counter({"fetched": 1, "dropped": 3})
    assert run.stats["dupefilter/filtered"] == 3
    assert run.log.count("Filtered duplicate request") == 3


@pytest.mark.parametrize("under", ["ours", "memory"], indirect=True)
def test_a_size_beyond_memory(make_crawl: MakeCrawl, under: dict[str, Any]) -> None:
    """D4: refused at the start, with what it would take."""
    crawl = make_crawl("class S(Spider):\n    name = 's'\n", settings={**under, "HA_SEEN_CAPACITY": 10**13})
    run = crawl.run()
    assert run.status != 0 or run.reason is None
    assert "HA_SEEN_CAPACITY" in run.log
    assert "MB" in run.log
