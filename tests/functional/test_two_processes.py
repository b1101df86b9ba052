"""One directory, one process."""

from __future__ import annotations

import time

from functional.harness import SIGKILLED, MakeCrawl, StartSite

SPIDER = """
    class S(Spider):
        name = "s"

        async def start(self):
            for n in range(100):
                yield Request(f"{self.site}/ok/{n}")
                while n == 50 and os.path.exists("wait"):
                    await asyncio.sleep(0.05)

        def parse(self, response):
            yield {"page": response.url}
"""
PAGES = {f"/ok/{n}" for n in range(100)}


def test_a_second_process_is_refused_and_the_first_unharmed(
    start_site: StartSite, make_crawl: MakeCrawl
) -> None:
    site = start_site()
    directory = "shared/ha"
    first = make_crawl(SPIDER, "first", arguments=[f"-asite={site.url}", "-sHA_DIR=../shared/ha"])
    second = make_crawl(SPIDER, "second", arguments=[f"-asite={site.url}", "-sHA_DIR=../shared/ha"])
    wait = first.directory / "wait"
    wait.touch()
    process = first.start()
    while not site.served():
        assert process.poll() is None
        time.sleep(0.02)
    refused = second.run()
    assert process.poll() is None
    assert refused.status > 0
    (line,) = [line for line in refused.lines("ERROR") if directory in line]
    assert str(process.pid) in line

    wait.unlink()
    assert first.end(process).reason == "finished"
    assert site.served() == dict.fromkeys(PAGES, 1)
    assert first.items().total() == len(PAGES)
    assert second.items().total() == 0


def test_opens_at_once_after_a_kill(start_site: StartSite, make_crawl: MakeCrawl) -> None:
    site = start_site(delay=0.05)
    crawl = make_crawl(SPIDER, arguments=[f"-asite={site.url}"])
    for enough in (20, 40, 60):
        assert crawl.run(kill_when=lambda enough=enough: len(site.served()) >= enough).status == SIGKILLED
    assert crawl.run().reason == "finished"
    assert site.served().keys() == PAGES
    assert crawl.items().total() == len(PAGES)
