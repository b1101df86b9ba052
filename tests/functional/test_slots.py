"""A slow host does not stand in front of the others."""

from __future__ import annotations

import pytest
from functional.harness import MakeCrawl, StartSite

SLOW = "127.0.0.2"
FAST = [f"127.0.0.{n}" for n in range(3, 8)]
SLOW_PAGES = 48
FAST_PAGES = 40
PER_DOMAIN = 8

SPIDER = f"""
    class S(Spider):
        name = "s"

        async def start(self):
            for n in range({SLOW_PAGES}):
                yield Request(f"http://{SLOW}:{{self.port}}/slow/0.8/{{n}}")
            for n in range({FAST_PAGES}):
                for host in {FAST}:
                    yield Request(f"http://{{host}}:{{self.port}}/ok/{{n}}")

        def parse(self, response):
            yield {{"page": response.url}}
"""


def test_a_slow_host_never_fills_the_downloader(start_site: StartSite, make_crawl: MakeCrawl) -> None:
    """The slow host was first in the queue; all others are done before half of it is."""
    try:
        site = start_site(hosts=",".join([SLOW, *FAST]), delay=0.02)
    except RuntimeError:
        pytest.skip("only 127.0.0.1 is a loopback address here")
    crawl = make_crawl(
        SPIDER,
        settings={"CONCURRENT_REQUESTS": 2 * PER_DOMAIN, "CONCURRENT_REQUESTS_PER_DOMAIN": PER_DOMAIN},
        arguments=[f"-aport={site.port}"],
    )
    assert crawl.run().reason == "finished"
    assert crawl.items().total() == SLOW_PAGES + FAST_PAGES * len(FAST)

    hanging = most = slow_done = 0
    slow_done_before_last_fast = 0
    for event in site.events():
        if event.page.startswith(SLOW):
            hanging += 1 if event.what == "asked" else -1
            most = max(most, hanging)
            slow_done += event.what == "200"
        elif event.what == "200":
            slow_done_before_last_fast = slow_done
    assert most == PER_DOMAIN
    assert slow_done_before_last_fast <= SLOW_PAGES // 2
