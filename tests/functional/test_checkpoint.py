"""The state of a crawl is there again after any death, under every scheduler."""

from __future__ import annotations

import json
import stat
import time
from collections import Counter
from typing import Any

import pytest
from functional.harness import SIGKILLED, MakeCrawl, StartSite

SCRAPYS = {"SCHEDULER": "scrapy.core.scheduler.Scheduler"}
RFP = {"DUPEFILTER_CLASS": "scrapy.dupefilters.RFPDupeFilter"}


@pytest.fixture(params=["ours", "memory", "jobdir"])
def under(request: pytest.FixtureRequest) -> dict[str, Any]:
    """Settings of each scheduler."""
    return {"ours": {}, "memory": SCRAPYS, "jobdir": {**SCRAPYS, "JOBDIR": "job"}}[request.param]


CHAIN = """
    class S(Spider):
        name = "s"

        async def start(self):
            yield Request(f"{self.site}/ok/1")

        def parse(self, response):
            n = int(response.url.rpartition("/")[2])
            note(str(n))
            if n == 7 and first_time("death"):
                die()
            self.state["pages"] = self.state.get("pages", 0) + 1
            self.state["last"] = n
            self.state["names"] = {*self.state.get("names", ()), str(n)}
            yield {"n": n}
            if n < 20:
                yield Request(f"{self.site}/ok/{n + 1}")
"""


def test_spider_state_and_stats_go_on(
    start_site: StartSite, make_crawl: MakeCrawl, under: dict[str, Any]
) -> None:
    """J4: after a kill they are what they were at most one interval before, and go on from there."""
    site = start_site(delay=0.15)  # so that an interval has one page at most
    settings = {**under, "HA_CHECKPOINT_INTERVAL": 0.05}
    source = (
        CHAIN
        + """
        def closed(self, reason):
            note(f"state {self.state['pages']} {self.state['last']} {len(self.state['names'])}")
    """
    )
    crawl = make_crawl(source, settings=settings, arguments=[f"-asite={site.url}"])
    assert crawl.run().status == SIGKILLED
    run = crawl.run()
    assert run.reason == "finished"
    notes = crawl.notes()
    (state,) = (note for note in notes if note.startswith("state"))
    del notes[state]
    assert notes == Counter({**{str(n): 1 for n in range(1, 21)}, "7": 2})
    assert state in ("state 20 20 20", "state 19 20 19")
    assert crawl.items() == {json.dumps({"n": n}): 1 for n in range(1, 21)}
    assert run.stats["ha/run/item_scraped_count"] == 14
    assert run.stats["item_scraped_count"] in (19, 20)
    assert run.stats["response_received_count"] in {19, 20, 21}  # the page of the kill, if that was counted
    assert run.stats["ha/checkpoint/runs"] == 2
    assert run.stats["ha/checkpoint/seconds"] > run.stats["elapsed_time_seconds"] * 1.2
    listed = crawl.ha("checkpoint", "list")
    assert "finished: 2 runs" in listed
    assert f"{run.stats['item_scraped_count']} items" in listed
    third = crawl.run()
    assert third.stats["item_scraped_count"] == 20, "a crawl that is over is followed by a fresh one"


def test_state_that_cannot_be_kept_is_named(start_site: StartSite, make_crawl: MakeCrawl) -> None:
    """Once, by its key; the rest of the state is kept."""
    site = start_site()
    crawl = make_crawl(
        """
        class S(Spider):
            name = "s"

            async def start(self):
                note(str(self.state.get("kept")))
                self.state["kept"] = (1, 2)
                self.state["wild"] = lambda: 1
                yield Request(f"{self.site}/ok/1")
                await asyncio.sleep(0.5)
                if first_time("death"):
                    die()
        """,
        settings={"HA_CHECKPOINT_INTERVAL": 0.05},
        arguments=[f"-asite={site.url}"],
    )
    crawl.run()
    crawl.run()
    assert crawl.notes() == Counter(["None", "(1, 2)"])
    (line,) = crawl.runs[0].lines("WARNING")
    assert "spider.state['wild']" in line


def test_state_of_other_kinds(start_site: StartSite, make_crawl: MakeCrawl) -> None:
    """A dict of another class is kept, and shown whatever its keys; what is none is named once."""
    site = start_site()
    source = """
    from collections import defaultdict

    class S(Spider):
        name = "s"

        async def start(self):
            yield Request(self.site + "/ok/1")

        def parse(self, response):
            note(str(self.state.get((1, 2))))
            self.state = defaultdict(int, {(1, 2): 7})
    """
    crawl = make_crawl(source, settings=SCRAPYS, arguments=[f"-asite={site.url}"])
    run = crawl.run("-sHA_SEED_ONCE=0")
    assert run.reason == "finished"
    assert not run.lines("WARNING")
    assert "(1, 2)" in crawl.ha("checkpoint", "show", "s", "--kind", "part")
    (crawl.directory / "project" / "main.py").write_text(
        (crawl.directory / "project" / "main.py").read_text().replace("defaultdict(int, {(1, 2): 7})", "[1]")
    )
    run = crawl.run()
    (line,) = run.lines("WARNING")
    assert "spider.state is list" in line


def test_feeds_that_are_not_ours(start_site: StartSite, make_crawl: MakeCrawl) -> None:
    """Scrapy's own exporter loses what it buffers when it is killed: that is said."""
    site = start_site()
    source = """
    class S(Spider):
        name = "s"

        async def start(self):
            yield Request(self.site + "/ok/1")

        def parse(self, response):
            yield {"n": 1}
    """
    settings = {"EXTENSIONS": {"scrapy_ha.checkpoint.CheckpointExtension": 0}, "HA_DIR": "ha"}
    crawl = make_crawl(source, activated=False, settings=settings, arguments=[f"-asite={site.url}"])
    run = crawl.run()
    assert run.reason == "finished"
    (line,) = run.lines("WARNING")
    assert "HAFeedExporter" in line


def test_a_session_outlives_a_kill(start_site: StartSite, make_crawl: MakeCrawl) -> None:
    """J11: cookies are kept where asked for, for their owner's eyes only; without, the session is gone."""
    site = start_site(delay=0.05)
    source = """
    class Login:
        '''Says what cookies a request carries, and sets one for the first.'''

        def process_request(self, request, **kwargs):
            note(f"{request.url.rpartition('/')[2]} {request.headers.get('Cookie')}")

    class S(Spider):
        name = "s"
        custom_settings = {"DOWNLOADER_MIDDLEWARES": {"project.main.Login": 900}}

        async def start(self):
            yield Request(self.site + "/ok/0", cookies={"session": "s3cret"})

        def parse(self, response):
            n = int(response.url.rpartition("/")[2])
            if n == 5 and first_time("death"):
                die()
            if n < 10:
                yield Request(f"{self.site}/ok/{n + 1}")
    """
    for name, kept in (("on", True), ("off", False)):
        crawl = make_crawl(
            source,
            name=name,
            settings={"HA_CHECKPOINT_INTERVAL": 0.02, "HA_CHECKPOINT_COOKIES": kept},
            arguments=[f"-asite={site.url}"],
        )
        assert crawl.run().status == SIGKILLED
        for file in (crawl.directory / ".scrapy" / "ha" / "s" / "checkpoint").glob("*.wal"):
            assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert crawl.run().reason == "finished"
        with_session = sum(note.endswith("b'session=s3cret'") for note in crawl.notes().elements())
        assert with_session == (12 if kept else 6)


def test_scrapys_queue_is_stopped_and_goes_on(start_site: StartSite, make_crawl: MakeCrawl) -> None:
    """J12: a chain of single requests, stopped in order at 14, with state that produces the next."""
    site = start_site()
    crawl = make_crawl(
        """
        class S(Spider):
            name = "s"

            async def start(self):
                self.state.setdefault("next", 1)
                yield self.next()

            def next(self):
                return Request(f"{self.site}/ok/{self.state['next']}", dont_filter=True)

            def parse(self, response):
                note(response.url.rpartition("/")[2])
                self.state["next"] += 1
                if self.state["next"] == 15 and first_time("stop"):
                    raise CloseSpider("enough")
                if self.state["next"] <= 30:
                    yield self.next()
        """,
        settings={**SCRAPYS, "HA_SEED_ONCE": False},
        arguments=[f"-asite={site.url}"],
    )
    assert crawl.run().reason == "enough"
    assert crawl.run().reason == "finished"
    assert crawl.notes() == Counter(str(n) for n in range(1, 31))


@pytest.mark.parametrize("filter_", [{}, RFP])
def test_a_queue_that_knows_more_than_the_log(
    start_site: StartSite, make_crawl: MakeCrawl, filter_: dict[str, Any]
) -> None:
    """What JOBDIR's queue has of a page that was killed on its way is not taken for anything else."""
    site = start_site()
    source = """
    class S(Spider):
        name = "s"
        custom_settings = {
            "CONCURRENT_REQUESTS": 1,
            "CONCURRENT_ITEMS": 1,
            "SCHEDULER_DISK_QUEUE": "scrapy.squeues.PickleFifoDiskQueue",
        }

        async def start(self):
            yield Request(self.site + "/ok/0", self.parse)

        def parse(self, response):
            n = int(response.url.rpartition("/")[2])
            note(str(n))
            if n == 0:
                first = first_time("death")
                for child in range(1, 100) if first else range(199, 0, -1):
                    yield Request(f"{self.site}/ok/{child}", self.parse, priority=-1)
                if first:
                    die()  # the queue is on disk by now, the log is not
    """
    settings = {**SCRAPYS, **filter_, "JOBDIR": "job", "HA_CHECKPOINT_INTERVAL": 60}
    crawl = make_crawl(source, settings=settings, arguments=[f"-asite={site.url}"])
    assert crawl.run().status == SIGKILLED
    run = crawl.run()
    assert run.reason == "finished"
    assert crawl.notes() == Counter({"0": 2, **{str(n): 1 for n in range(1, 200)}}), run.log


@pytest.mark.parametrize("filter_", [{}, RFP])
@pytest.mark.parametrize("jobdir", [{}, {"JOBDIR": "job"}])
def test_a_second_crawl_that_is_killed(
    start_site: StartSite, make_crawl: MakeCrawl, filter_: dict[str, Any], jobdir: dict[str, str]
) -> None:
    """What an earlier crawl had done is new to the next, also when that one is interrupted."""
    site = start_site(pages=600, delay=0.01)
    source = """
    class S(Spider):
        name = "s"

        async def start(self):
            for n in range(300):
                yield Request(f"{self.site}/p/{n}", priority=n % 3)

        def parse(self, response):
            note(response.url.rpartition("/")[2])
            for n, link in enumerate(response.css("a::attr(href)").getall()):
                yield response.follow(link, self.parse, priority=n % 3)
    """
    settings = {**SCRAPYS, **filter_, **jobdir, "HA_CHECKPOINT_RECORDS": 500}
    crawl = make_crawl(source, settings=settings, arguments=[f"-asite={site.url}"])
    assert crawl.run().reason == "finished"
    first = len(site.served())
    assert first == 600
    counted = site.served().total()
    for more in (150, 300):
        crawl.run(kill_when=lambda more=more: site.served().total() > counted + more)
    assert crawl.run().reason == "finished"
    assert min(site.served().values()) == 2
    assert crawl.notes().keys() == {str(n) for n in range(600)}


def test_a_queue_without_content(start_site: StartSite, make_crawl: MakeCrawl) -> None:
    """Killed between making a queue's file and writing to it: the crawl goes on."""
    site = start_site(delay=0.05)
    source = """
    class S(Spider):
        name = "s"

        async def start(self):
            for n in range(60):
                yield Request(f"{self.site}/ok/{n}", priority=n % 3)

        def parse(self, response):
            note(response.url.rpartition("/")[2])
    """
    crawl = make_crawl(source, settings={**SCRAPYS, "JOBDIR": "job"}, arguments=[f"-asite={site.url}"])
    crawl.run(kill_when=lambda: len(site.served()) > 20)
    queues = [file for file in (crawl.directory / "job" / "requests.queue").rglob("*") if file.is_file()]
    for file in queues:
        if file.suffix != ".json":
            file.write_bytes(b"")
    run = crawl.run()
    assert run.reason == "finished", run.log
    assert not run.lines("ERROR")
    assert set(crawl.notes()) == {str(n) for n in range(60)}


def test_a_queue_that_was_cut_short(start_site: StartSite, make_crawl: MakeCrawl) -> None:
    """What a kill, or a full disk, left of JOBDIR's queue is read as far as it goes, and nothing is lost."""
    site = start_site(delay=0.05)
    source = """
    class S(Spider):
        name = "s"

        async def start(self):
            for n in range(200):
                yield Request(f"{self.site}/ok/{n}", self.parse)

        def parse(self, response):
            note(response.url.rpartition("/")[2])
    """
    settings = {**SCRAPYS, "JOBDIR": "job", "CONCURRENT_REQUESTS": 4}
    crawl = make_crawl(source, settings=settings, arguments=[f"-asite={site.url}"])
    process = crawl.start()
    while len(site.served()) < 40:
        assert process.poll() is None
        time.sleep(0.02)
    process.terminate()
    assert crawl.end(process).reason == "shutdown"
    queues = [file for file in (crawl.directory / "job" / "requests.queue").rglob("q*") if file.is_file()]
    queues += [file for file in (crawl.directory / "job" / "requests.queue").glob("*/*") if file.is_file()]
    assert queues
    for file in {*queues}:
        data = file.read_bytes()
        if not data.startswith(b"{"):
            file.write_bytes(data[: len(data) // 2] + b"\xff" * 500 + data[len(data) // 2 + 500 :])
    run = crawl.run(timeout=90)
    assert run.reason == "finished", run.log
    assert set(crawl.notes()) == {str(n) for n in range(200)}
    assert crawl.notes().total() == 200


@pytest.mark.parametrize("queue", [[], ["-sSCHEDULER_DISK_QUEUE=scrapy.squeues.PickleFifoDiskQueue"]])
def test_retries_and_interruptions(start_site: StartSite, make_crawl: MakeCrawl, queue: list[str]) -> None:
    """Copies of a request in JOBDIR's queue end it for none that waits on a timer: each has its end."""
    site = start_site()
    source = """
    class S(Spider):
        name = "s"
        custom_settings = {
            "RETRY_TIMES": 6,
            "HA_RETRY_POLICIES": {"server": {"backoff": "fixed", "base": 0.7, "retries": 6}},
            "HA_RETRY_BUDGET": None,
            "HA_BREAKER_ENABLED": False,
        }

        async def start(self):
            for n in range(60):
                yield Request(f"{self.site}/fails/{n % 6}/500/{n}", self.parse, errback=self.failed)

        def parse(self, response):
            note(response.url.rpartition("/")[2])

        def failed(self, failure):
            note("failed " + failure.request.url)
    """
    crawl = make_crawl(
        source, settings={**SCRAPYS, "JOBDIR": "job"}, arguments=[f"-asite={site.url}", *queue]
    )
    run = None
    for seconds in (1.5, 1.8, 2.1):
        process = crawl.start()
        end = time.monotonic() + seconds
        while process.poll() is None and time.monotonic() < end:
            time.sleep(0.02)
        process.terminate()
        run = crawl.end(process)
        if run.reason == "finished":
            break
    else:
        run = crawl.run()
    assert run.reason == "finished", run.log
    notes = crawl.notes()
    assert set(notes) == {str(n) for n in range(60)}, run.log


@pytest.mark.parametrize("filter_", [{}, RFP])
def test_retries_that_wait_outlive_a_kill(
    start_site: StartSite, make_crawl: MakeCrawl, filter_: dict[str, Any]
) -> None:
    """On timers, as Scrapy's scheduler keeps no times: they are tried at the time that they carry."""
    site = start_site()
    crawl = make_crawl(
        """
        class S(Spider):
            name = "s"

            async def start(self):
                yield Request(f"{self.site}/fails/1/429/a?after=3")
                yield Request(f"{self.site}/ok/b")
                await asyncio.sleep(1)
                if first_time("death"):
                    die()

            def parse(self, response):
                note(response.url.rpartition("/")[2].partition("?")[0])
        """,
        settings={**SCRAPYS, **filter_, "HA_PACE_ENABLED": False},
        arguments=[f"-asite={site.url}"],
    )
    assert crawl.run().status == SIGKILLED
    run = crawl.run()
    assert run.reason == "finished"
    assert crawl.notes()["a"] == 1
    asked = [event.time for event in site.events() if event.what == "asked" and "/a?" in event.page]
    assert len(asked) == 2
    assert asked[1] - asked[0] >= 3.0


def test_what_cannot_be_stored_holds_its_page(start_site: StartSite, make_crawl: MakeCrawl) -> None:
    """S5, J7: it is in memory only, so its page is fetched again after a kill; said once, with the reason."""
    site = start_site(delay=0.1)
    crawl = make_crawl(
        """
        class S(Spider):
            name = "s"

            async def start(self):
                yield Request(self.site + "/ok/page")

            def parse(self, response):
                note("page")
                yield Request(self.site + "/ok/child", callback=lambda response: self.child(response))
                yield Request(self.site + "/ok/other", callback=lambda response: note("other"), priority=-1)

            def child(self, response):
                if first_time("death"):
                    die()
                note("child")
        """,
        settings={**SCRAPYS, "CONCURRENT_REQUESTS": 1},
        arguments=[f"-asite={site.url}"],
    )
    assert crawl.run().status == SIGKILLED
    run = crawl.run()
    assert run.reason == "finished"
    assert crawl.notes() == Counter(["page", "page", "child", "other"])
    assert run.stats["ha/journal/unserializable"] >= 2
    assert len([line for line in run.lines("WARNING") if "cannot be stored" in line]) == 1


def test_a_second_process_is_refused(start_site: StartSite, make_crawl: MakeCrawl) -> None:
    """J9: with the owner's pid; the first one is unharmed."""
    site = start_site(delay=0.2)
    crawl = make_crawl(
        CHAIN.replace("if n == 7", "if False"), settings=SCRAPYS, arguments=[f"-asite={site.url}"]
    )
    first = crawl.start()
    while not crawl.notes():
        pass
    second = make_crawl(
        CHAIN, name="second", settings={**SCRAPYS, "HA_DIR": str(crawl.directory / ".scrapy/ha/s")}
    )
    refused = second.run()
    assert refused.status != 0
    assert f"pid {first.pid}" in refused.log or str(first.pid) in refused.log
    assert crawl.end(first).reason == "finished"
    assert crawl.items().total() == 20


def test_what_the_scheduler_loses_is_not_called_finished(
    start_site: StartSite, make_crawl: MakeCrawl
) -> None:
    """J1: it is scheduled once more; lost again, the spider closes with a reason of its own, and the next run
    takes it up."""
    site = start_site()
    crawl = make_crawl(
        """
        from scrapy.core.scheduler import Scheduler

        class Losing(Scheduler):
            def enqueue_request(self, request):
                if request.url.endswith("/lost") and os.path.exists("lose"):
                    return True
                return super().enqueue_request(request)

        class S(Spider):
            name = "s"

            async def start(self):
                yield Request(self.site + "/ok/lost")
                yield Request(self.site + "/ok/kept")

            def parse(self, response):
                note(response.url.rpartition("/")[2])
        """,
        settings={"SCHEDULER": "project.main.Losing"},
        arguments=[f"-asite={site.url}"],
    )
    (crawl.directory / "lose").touch()
    run = crawl.run()
    assert run.reason == "incomplete"
    assert crawl.notes() == Counter(["kept"])
    (crawl.directory / "lose").unlink()
    assert crawl.run().reason == "finished"
    assert crawl.notes() == Counter(["kept", "lost"])


def test_a_damaged_log_is_not_called_finished(start_site: StartSite, make_crawl: MakeCrawl) -> None:
    """J1, J10: what is whole goes on, the damaged file is kept, and the end says that something is lost."""
    site = start_site(delay=0.1)
    crawl = make_crawl(
        CHAIN, settings={**SCRAPYS, "HA_CHECKPOINT_INTERVAL": 0.05}, arguments=[f"-asite={site.url}"]
    )
    assert crawl.run().status == SIGKILLED
    directory = crawl.directory / ".scrapy" / "ha" / "s" / "checkpoint"
    (segment,) = directory.glob("*.wal")
    data = bytearray(segment.read_bytes())
    data[len(data) // 2] ^= 1
    segment.write_bytes(data)
    run = crawl.run()
    assert run.reason == "incomplete", run.log
    assert run.stats["ha/checkpoint/damaged_bytes"] > 0
    assert [path.read_bytes() for path in directory.glob("*.corrupt-*")] == [bytes(data)]
    assert crawl.run().reason == "finished"
