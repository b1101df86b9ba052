"""Crawls killed again and again at random moments, from the first tenth of a second on."""

from __future__ import annotations

import json
import os
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from functional.conftest import SCRIPT
from functional.harness import SIGKILLED, MakeCrawl, Site, refetched
from functional.site import SEEDS, UNLINKED, server

ROUNDS = int(os.environ.get("CHAOS_ROUNDS", "5"))
PAGES = 1500
CONCURRENCY = 16
LONGEST = 3.0
"""Seconds from the start of a process to its end."""

SPIDER = f"""
    class S(Spider):
        name = "s"

        async def start(self):
            for n in range({SEEDS}):
                yield Request(f"{{self.site}}/p/{{n}}", dont_filter=n < {UNLINKED})
            note("seeded")

        def parse(self, response):
            yield {{"page": int(response.url.rpartition("/")[2])}}
            yield from response.follow_all(css="a")
"""


SCRAPYS = {"SCHEDULER": "scrapy.core.scheduler.Scheduler"}
SCHEDULERS: dict[str, dict[str, Any]] = {
    "ours": {},
    "memory": {**SCRAPYS, "DUPEFILTER_CLASS": "scrapy.dupefilters.RFPDupeFilter"},
    "jobdir": {**SCRAPYS, "JOBDIR": "job"},
}
"""Scrapy's own with the checkpoint, in memory and on disk, with Scrapy's filter and with ours."""


@pytest.mark.timeout(120 + 10 * ROUNDS)
@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_kills_at_random_moments_lose_nothing(tmp_path: Path, make_crawl: MakeCrawl, scheduler: str) -> None:
    """As many crawls as it takes for ``CHAOS_ROUNDS`` kills; each loses nothing and doubles nothing."""
    seed = int(os.environ.get("KILL_SEED", random.randrange(10**6)))
    print(f"the moments come from KILL_SEED={seed}")
    draw = random.Random(seed)
    kills = crawls = again = 0
    while kills < ROUNDS:
        crawls += 1
        options = (f"--pages={PAGES}", "--delay=0.02")
        with server.running(SCRIPT, *options, log=tmp_path / f"site-{crawls}.log") as site:
            killed, refetches = crawl_and_kill(
                site, make_crawl, f"crawl-{crawls}", draw, ROUNDS - kills, SCHEDULERS[scheduler]
            )
        kills += killed
        again += refetches
    print(
        f"{scheduler}: {kills} kills in {crawls} crawls of {PAGES} pages: 0 lost, {again} fetched again, "
        f"of {kills * CONCURRENCY} allowed"
    )


def crawl_and_kill(
    site: Site,
    make_crawl: MakeCrawl,
    name: str,
    draw: random.Random,
    most: int,
    settings: dict[str, Any],
) -> tuple[int, int]:
    """One crawl to its end; how often it was killed, *most* times at most, and what it fetched again."""
    crawl = make_crawl(
        SPIDER,
        name=name,
        settings={
            "CONCURRENT_REQUESTS": CONCURRENCY,
            "CONCURRENT_REQUESTS_PER_DOMAIN": CONCURRENCY,
            "LOG_LEVEL": "INFO",
            **settings,
        },
        arguments=[f"-asite={site.url}"],
    )
    while True:
        kill = after(draw.uniform(0.1, LONGEST)) if len(crawl.runs) < most else None
        run = crawl.run(kill_when=kill)
        # A kill from this line on may meet a crawl that is complete: the next run would be another crawl.
        if run.status != SIGKILLED or "Closing spider (finished)" in run.log:
            break
    killed = sum(one.status == SIGKILLED for one in crawl.runs)
    served = site.served()
    assert "Closing spider (finished)" in run.log, run.log[-3000:]
    assert served.keys() == {f"/p/{n}" for n in range(PAGES)}
    assert crawl.items() == {json.dumps({"page": page}): 1 for page in range(PAGES)}
    assert refetched(served) <= killed * CONCURRENCY
    return killed, refetched(served)


def after(seconds: float) -> Callable[[], bool]:
    end = time.monotonic() + seconds
    return lambda: time.monotonic() >= end
