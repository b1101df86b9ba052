"""Requests that are given up are kept, over a kill, and can be tried again from the command line."""

from __future__ import annotations

import json
import time

from functional.harness import SIGKILLED, Crawl, MakeCrawl, Site

QUICK = {"RETRY_TIMES": 1, "HA_RETRY_BASE": 0.01, "HA_RETRY_FLOOR": 0.0, "HA_RETRY_CAP": 0.05}

ALWAYS_503 = """
    import logging

    class S(Spider):
        name = "s"

        async def start(self):
            if self.kill == "yes":
                logging.getLogger("scrapy.downloadermiddlewares.retry").addHandler(KillAtGivingUp())
            yield Request(f"{self.site}/status/503/page")

        def parse(self, response):
            pass


    class KillAtGivingUp(logging.Handler):
        def emit(self, record):
            if "Gave up" in record.getMessage() and first_time("kill"):
                die()
"""

POST = """
    class S(Spider):
        name = "s"

        async def start(self):
            yield Request(
                f"{self.site}/fails/{self.failures}/503/form",
                self.parse_form,
                method="POST",
                body=b"a=1",
                cb_kwargs={"k": 1},
                meta={"own": (1, 2), "ha_retry": {"idempotent": True}},
            )

        def parse(self, response):
            note("wrong callback")

        def parse_form(self, response, k):
            request = response.request
            note(f"{request.method} {request.body.decode()} k={k} own={request.meta['own']}")
            yield {"form": k}
"""

RAISES = """
    class S(Spider):
        name = "s"

        async def start(self):
            yield Request(f"{self.site}/ok/good")
            yield Request(f"{self.site}/ok/bad")

        def parse(self, response):
            yield {"url": response.url[-4:]}
            if response.url.endswith("bad") and not os.path.exists("mended"):
                raise ValueError("no price")
"""

SLOW = """
    class S(Spider):
        name = "s"

        async def start(self):
            yield Request(f"{self.site}/status/503/page")
            yield Request(f"{self.site}/slow/30/page")

        def parse(self, response):
            pass
"""


def dlq(crawl: Crawl, *arguments: str, status: int = 0) -> str:
    return crawl.ha("dlq", *arguments, status=status)


def exported(crawl: Crawl, *arguments: str) -> list[dict[str, object]]:
    dlq(crawl, "export", "letters.jsonl", *arguments)
    lines = (crawl.directory / "letters.jsonl").read_text("utf-8").splitlines()
    return [json.loads(line) for line in lines]


def make(make_crawl: MakeCrawl, site: Site, source: str, **arguments: str) -> Crawl:
    given = [f"-a{name}={value}" for name, value in {"site": site.url, **arguments}.items()]
    return make_crawl(source, settings=QUICK, arguments=given)


def test_exactly_one_record(site: Site, make_crawl: MakeCrawl) -> None:
    """A URL that always answers 503 (R3)."""
    crawl = make(make_crawl, site, ALWAYS_503, kill="no")
    assert crawl.run().reason == "finished"
    (letter,) = exported(crawl)
    assert letter["url"] == f"{site.url}/status/503/page"
    assert (letter["class"], letter["method"], letter["spider"]) == ("server", "GET", "s")
    assert "503" in str(letter["reason"])
    assert sum(letter["attempts"].values()) == 2  # type: ignore[attr-defined]
    listed = dlq(crawl, "list")
    assert f"{site.url}/status/503/page" in listed
    assert "1 found" in listed
    assert "0 found" in dlq(crawl, "list", "--class", "dns")
    shown = dlq(crawl, "show", str(letter["id"]))
    assert '"class": "server"' in shown


def test_a_kill_straight_after_the_line(site: Site, make_crawl: MakeCrawl) -> None:
    """The record is there, and the request too: the next start tries it again (R3)."""
    crawl = make(make_crawl, site, ALWAYS_503, kill="yes")
    run = crawl.run()
    assert run.status == SIGKILLED
    (letter,) = exported(crawl)
    assert (letter["class"], letter["pending"]) == ("server", True)
    assert crawl.run().reason == "finished"
    (again,) = exported(crawl)
    assert (again["id"], again["pending"]) == (letter["id"], False)


def test_replay_sends_the_same_request(site: Site, make_crawl: MakeCrawl) -> None:
    """Same body, same callback with its arguments; once per replay; gone after success only (R3)."""
    crawl = make(make_crawl, site, POST, failures="4")
    path = "/fails/4/503/form"
    assert crawl.run().reason == "finished"
    assert site.served().total() == 0
    (letter,) = exported(crawl)
    asked = 2
    for replay in range(2):
        assert len([event for event in site.events() if event.what == "asked"]) == asked + 2 * replay
        assert "1 will be tried again" in dlq(crawl, "replay")
        assert "0 will be tried again" in dlq(crawl, "replay")
        (waiting,) = exported(crawl)
        assert (waiting["id"], waiting["pending"]) == (letter["id"], True)
        assert crawl.run().reason == "finished"
        if replay == 0:
            (failed,) = exported(crawl)
            assert (failed["id"], failed["pending"]) == (letter["id"], False)
            assert sum(failed["attempts"].values()) == 2  # type: ignore[attr-defined]
    assert exported(crawl) == []
    assert crawl.notes() == {"POST a=1 k=1 own=(1, 2)": 1}
    assert site.served() == {path: 1}
    assert len([event for event in site.events() if event.what == "asked"]) == 5
    assert crawl.items() == {'{"form": 1}': 1}


def test_a_callback_that_raises(site: Site, make_crawl: MakeCrawl) -> None:
    """The page is kept with the traceback, and done when the mended spider has parsed it."""
    crawl = make(make_crawl, site, RAISES)
    crawl.run()
    (letter,) = exported(crawl)
    assert (letter["class"], letter["reason"]) == ("callback", "ValueError: no price")
    assert 'raise ValueError("no price")' in dlq(crawl, "show", str(letter["id"]))
    (crawl.directory / "mended").touch()
    dlq(crawl, "replay", "--class", "callback")
    crawl.run()
    assert exported(crawl) == []
    assert site.served() == {"/ok/good": 1, "/ok/bad": 2}


def test_while_the_crawl_runs(site: Site, make_crawl: MakeCrawl) -> None:
    """Looking works and leaves nothing behind; changing is refused with the owner named."""
    crawl = make(make_crawl, site, SLOW)
    process = crawl.start()
    deadline = time.monotonic() + 20
    while not (process.poll() is None and "1 found" in _listed(crawl)):
        assert time.monotonic() < deadline
    try:
        (letter,) = exported(crawl)
        assert letter["class"] == "server"
        assert '"class": "server"' in dlq(crawl, "show", str(letter["id"]))
        for change in (["replay"], ["purge", "--all"]):
            refused = dlq(crawl, *change, status=2)
            assert f"pid {process.pid}" in refused
            assert len(refused.splitlines()) == 1
        left = [entry.name for entry in (crawl.directory / ".scrapy" / "ha" / "s").iterdir()]
        assert not [name for name in left if "dead-letters" in name]
    finally:
        crawl.end(process, kill_when=lambda: True)


def _listed(crawl: Crawl) -> str:
    if not (crawl.directory / ".scrapy" / "ha" / "s" / "frontier" / "db" / "CURRENT").exists():
        time.sleep(0.1)
        return ""
    return dlq(crawl, "list")


def test_replays_at_a_rate(site: Site, make_crawl: MakeCrawl) -> None:
    """So that a host that has just come back is not asked for everything at once. It counts from now."""
    source = ALWAYS_503.replace(
        'yield Request(f"{self.site}/status/503/page")',
        'for n in range(4): yield Request(f"{self.site}/fails/2/503/{n}")',
    )
    crawl = make(make_crawl, site, source, kill="no")
    crawl.run()
    assert len(exported(crawl)) == 4
    assert "4 will be tried again, over 4 s" in dlq(crawl, "replay", "--rate", "1/s")
    crawl.run()
    assert exported(crawl) == []
    times = sorted(event.time for event in site.events() if event.what == "asked" and event.attempt == 3)
    assert len(times) == 4
    assert 0.9 <= times[-1] - times[-2] <= 1.3
