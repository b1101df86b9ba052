"""Hosts that ask for patience, or are down, are left in peace; the others go on, and nothing is lost."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from functional.harness import SIGKILLED, MakeCrawl, Site, StartSite
from functional.late_server import coming_up, free_port

PAGES = """
    class S(Spider):
        name = "s"

        async def start(self):
            for url in self.urls.split():
                yield Request(url, errback=self.failed)

        def parse(self, response):
            yield {"page": response.url}

        def failed(self, failure):
            yield {"failed": failure.request.url}
"""


def asked(site: Site, ending: str) -> list[float]:
    return [event.time for event in site.events() if event.what == "asked" and event.page.endswith(ending)]


def test_retry_after_holds_the_whole_host_and_no_other(start_site: StartSite, make_crawl: MakeCrawl) -> None:
    """R1: 429 with Retry-After: 3. A second page of the host waits too; it is kept to over a kill."""
    site = start_site(hosts="127.0.0.1,127.0.0.2")
    other = site.url.replace("127.0.0.1", "127.0.0.2")
    urls = [f"{site.url}/fails/1/429/first?after=3", f"{site.url}/ok/second", f"{other}/slow/0.5/other"]
    crawl = make_crawl(
        PAGES,
        settings={"CONCURRENT_REQUESTS_PER_DOMAIN": 1, "HA_PACE_ENABLED": False},
        arguments=[f"-aurls={' '.join(urls)}"],
    )
    killed = crawl.run(kill_when=lambda: bool(asked(site, "other")) and bool(asked(site, "first?after=3")))
    assert killed.status == SIGKILLED
    assert crawl.run().reason == "finished"
    (refused,) = [event.time for event in site.events() if event.what == "429"]
    _, again = asked(site, "first?after=3")
    assert again - refused >= 3.0
    (second,) = asked(site, "second")
    assert second - refused >= 3.0
    assert asked(site, "other")[0] - refused < 2.5
    assert crawl.items().total() == 3


def test_a_server_that_is_down_for_five_seconds_costs_no_page(make_crawl: MakeCrawl) -> None:
    """R2, R7: 100 URLs, two retries. The breaker opens; at its end one request goes, then all."""
    port = free_port()
    crawl = make_crawl(
        PAGES,
        settings={"HA_RETRY_BASE": 2, "RETRY_TIMES": 2, "HA_BREAKER_COOLDOWN": 1},
        arguments=["-aurls=" + " ".join(f"http://127.0.0.1:{port}/{n}" for n in range(100))],
    )
    with coming_up(port, after=5.0) as times:
        run = crawl.run()
    assert run.reason == "finished"
    assert crawl.items().total() == 100
    assert all("failed" not in item for item in crawl.items())
    assert run.stats["ha/guard/opened"] >= 1
    assert run.stats["ha/guard/closed"] == 1
    assert "ha/scheduler/given_up" not in run.stats
    # Eight were on their way when it opened; then probes, one at a time.
    assert run.stats["downloader/request_count"] <= 100 + 2 * 8 + 5
    assert times[1] - times[0] >= 0.001


def test_a_network_that_is_down_uses_up_no_attempts(start_site: StartSite, make_crawl: MakeCrawl) -> None:
    """R5: 20 hosts refuse for 3 s, then answer. Nobody is given up."""
    hosts = [f"127.0.0.{n}" for n in range(10, 30)]
    port = free_port()
    crawl = make_crawl(
        PAGES,
        settings={"RETRY_TIMES": 1, "HA_OUTAGE_PROBE": 1, "HA_OUTAGE_SILENCE": 0.5, "HA_RETRY_BASE": 0.5},
        arguments=["-aurls=" + " ".join(f"http://{host}:{port}/{n}" for host in hosts for n in range(3))],
    )
    process = crawl.start()
    time.sleep(4)
    script = Path(__file__).with_name("many_hosts.py")
    server = subprocess.Popen([sys.executable, str(script), str(port), *hosts])
    try:
        run = crawl.end(process)
    finally:
        server.kill()
        server.wait()
    assert run.reason == "finished"
    assert crawl.items().total() == 60
    assert all("failed" not in item for item in crawl.items())
    assert run.stats["ha/guard/outage"] == run.stats["ha/guard/outage_over"] == 1
    assert "ha/scheduler/given_up" not in run.stats


def test_a_dead_host_is_given_up_in_the_end(start_site: StartSite, make_crawl: MakeCrawl) -> None:
    """R6: its requests are set aside unsent, the good host is not disturbed, and the crawl ends."""
    site = start_site()
    dead = f"http://127.0.0.9:{free_port()}"
    urls = [f"{dead}/{n}" for n in range(200)] + [f"{site.url}/ok/{n}" for n in range(50)]
    crawl = make_crawl(
        PAGES,
        settings={"HA_BREAKER_COOLDOWN": 0.5, "HA_BREAKER_DEADLINE": 2, "RETRY_TIMES": 1},
        arguments=["-aurls=" + " ".join(urls)],
    )
    run = crawl.run()
    assert run.reason == "finished"
    assert run.stats["ha/guard/dead"] == 1
    assert run.stats["response_received_count"] == 50
    assert run.stats["downloader/request_count"] < 50 + 40
    counts, _ = crawl.frontier()
    assert (counts.pending, counts.dead) == (0, 200)
    assert sum("failed" in item for item in crawl.items()) == 200


def test_an_open_breaker_is_kept_over_a_restart(make_crawl: MakeCrawl) -> None:
    port = free_port()
    crawl = make_crawl(
        PAGES,
        settings={"HA_BREAKER_COOLDOWN": 6, "HA_RETRY_BASE": 0.1},
        arguments=["-aurls=" + " ".join(f"http://127.0.0.1:{port}/{n}" for n in range(50))],
    )
    crawl.run(kill_when=lambda: crawl.said("127.0.0.1 fails", after=1.5))
    opened = time.time()
    with coming_up(port, after=0.0) as times:
        assert crawl.run().reason == "finished"
    assert times[0] - opened >= 3.0
    assert crawl.items().total() == 50


def test_broken_pages_cost_a_host_nothing(site: Site, make_crawl: MakeCrawl) -> None:
    """One page in ten is always 500: all are tried to the end, and the others never wait for them."""
    urls = [f"{site.url}/{'status/500' if n % 10 == 0 else 'ok'}/{n}" for n in range(400)]
    crawl = make_crawl(
        PAGES, settings={"HA_RETRY_CAP": 0.5, "LOG_LEVEL": "INFO"}, arguments=[f"-aurls={' '.join(urls)}"]
    )
    run = crawl.run(timeout=50)
    assert run.reason == "finished"
    assert "ha/guard/opened" not in run.stats
    assert run.stats["downloader/response_status_count/500"] == 3 * 40
    assert run.stats["downloader/response_status_count/200"] == 360
    counts, dead = crawl.frontier()
    assert counts.pending == 0
    assert len(dead) == 40


def test_good_pages_behind_many_broken_ones(site: Site, make_crawl: MakeCrawl) -> None:
    """The host looks sick until a probe meets a good page: it is not always the same that is tried."""
    urls = [f"{site.url}/status/500/{n}" for n in range(40)] + [f"{site.url}/ok/{n}" for n in range(60)]
    crawl = make_crawl(
        PAGES,
        settings={
            "HA_RETRY_CAP": 0.5,
            "HA_BREAKER_COOLDOWN": 0.5,
            "HA_BREAKER_MAX_COOLDOWN": 2,
            "HA_BREAKER_DEADLINE": 40,
            "LOG_LEVEL": "INFO",
        },
        arguments=[f"-aurls={' '.join(urls)}"],
    )
    run = crawl.run(timeout=55)
    assert run.reason == "finished"
    assert run.stats["ha/guard/opened"] >= 1
    assert "ha/guard/dead" not in run.stats
    assert run.stats["downloader/response_status_count/200"] == 60
    assert run.stats["downloader/response_status_count/500"] == 3 * 40


def test_a_breaker_that_is_forced(site: Site, make_crawl: MakeCrawl) -> None:
    """HA_BREAKER_FORCE holds its host for as long as it is set, and no longer: nothing of it is kept."""
    crawl = make_crawl(
        """
        class S(Spider):
            name = "s"

            async def start(self):
                yield Request(self.site + "/ok/1")
                await asyncio.sleep(1)
                raise CloseSpider("enough")

            def parse(self, response):
                note("fetched")
        """,
        settings={"HA_SEED_ONCE": False},
        arguments=[f"-asite={site.url}"],
    )
    crawl.run("-s", 'HA_BREAKER_FORCE={"127.0.0.1": "open"}')
    assert not crawl.notes()
    crawl.run()
    assert crawl.notes() == {"fetched": 1}


def test_a_request_with_a_policy_of_its_own(site: Site, make_crawl: MakeCrawl) -> None:
    """meta["ha_retry"]: one is tried five times, one never again, one is a POST that may be repeated."""
    crawl = make_crawl(
        """
        class S(Spider):
            name = "s"

            async def start(self):
                often = {"backoff": "fixed", "base": 0.1, "jitter": "none", "retries": 4}
                yield Request(self.site + "/status/503/often", meta={"ha_retry": often})
                yield Request(self.site + "/status/503/never", meta={"ha_retry": "never"})
                once = {"retries": 1, "base": 0.1}
                yield Request(self.site + "/status/503/post", method="POST", meta={"ha_retry": once})
                again = {**once, "idempotent": True}
                yield Request(self.site + "/status/503/repeated", method="POST", meta={"ha_retry": again})
        """,
        arguments=[f"-asite={site.url}"],
    )
    run = crawl.run()
    assert run.reason == "finished"
    assert [len(asked(site, name)) for name in ("often", "never", "post", "repeated")] == [5, 1, 1, 2]
    assert "Not retrying <POST" in run.log
    assert "may have been processed" in run.log
