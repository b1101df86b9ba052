"""Whole crawls without a network: full disks, fsync policies, event loops, a million start requests."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import scrapy

SCRIPT = """
import json, os, resource, signal, sys

options = json.loads(sys.argv[1])
limit = options.pop("file_limit", None)
if limit:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
pages, die_at = options.pop("pages"), options.pop("die_at", None)

import scrapy
from scrapy.crawler import AsyncCrawlerProcess, CrawlerProcess

most = 0

class Spider(scrapy.Spider):
    name = "durable"
    parsed = 0

    async def start(self):
        global most
        for number in range(pages):
            yield scrapy.Request(f"data:,{number}")
            most = max(most, self.crawler.engine._slot.scheduler._waiting())

    def parse(self, response):
        self.parsed += 1
        if self.parsed == die_at:
            os.kill(os.getpid(), signal.SIGKILL)
        with open("parsed.txt", "a") as file:
            file.write(response.text + "\\n")
        yield {"n": response.text}

settings = {
    "ADDONS": {"scrapy_ha.Addon": 500}, "HA_DIR": "ha", "TELNETCONSOLE_ENABLED": False,
    "FEEDS": {"items.jsonl": {"format": "jsonlines", "overwrite": True}}, "LOG_LEVEL": "INFO", **options,
}
Process = CrawlerProcess if settings.get("TWISTED_REACTOR_ENABLED", True) else AsyncCrawlerProcess
process = Process(settings)
crawler = process.create_crawler(Spider)
process.crawl(crawler)
process.start()
stats = crawler.stats.get_stats()
print(json.dumps({"most": most, "reason": stats.get("finish_reason"), "stats": stats}, default=str))
"""


def crawl(directory: Path, **options: Any) -> tuple[int, dict[str, Any], str]:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, json.dumps({"pages": 300, **options})],
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    line = done.stdout.strip().splitlines()[-1:]
    return done.returncode, json.loads(line[0]) if line else {}, done.stderr


def items(directory: Path) -> Counter[str]:
    return Counter(json.loads(line)["n"] for line in (directory / "items.jsonl").read_text().splitlines())


ONCE = Counter({str(number): 1 for number in range(300)})


@pytest.mark.skipif(sys.platform == "win32", reason="limits of file size are POSIX's")
@pytest.mark.parametrize("limit", [8_000, 40_000])
def test_disk_full_stops_in_order_and_damages_nothing(tmp_path: Path, limit: int) -> None:
    """One error says which directory; with space again, the same command finishes the crawl (J5)."""
    status, result, log = crawl(tmp_path, file_limit=limit)
    assert status == 0, log
    assert result["reason"] == "disk_full", log
    errors = [line for line in log.splitlines() if " ERROR: " in line]
    assert len(errors) == 1, log
    assert "ha" in errors[0]
    assert "free some space" in errors[0]
    status, result, log = crawl(tmp_path)
    assert result["reason"] == "finished", log
    assert items(tmp_path) == ONCE


@pytest.mark.parametrize("policy", ["always", "interval", "never"])
def test_killed_and_resumed_under_each_fsync_policy(tmp_path: Path, policy: str) -> None:
    """A killed process costs nothing with any of them: every item once."""
    for die_at in (40, 90, None):
        status, result, log = crawl(tmp_path, HA_FSYNC=policy, HA_FSYNC_INTERVAL=0.05, die_at=die_at)
        assert status == (-9 if die_at else 0), log
    assert result["reason"] == "finished", log
    assert items(tmp_path) == ONCE
    parsed = Counter((tmp_path / "parsed.txt").read_text().split())
    assert parsed.keys() == ONCE.keys()
    assert parsed.total() - len(parsed) <= 2 * 16


@pytest.mark.parametrize(
    "loop",
    [
        {"TWISTED_REACTOR": "twisted.internet.selectreactor.SelectReactor"},
        pytest.param(
            {"TWISTED_REACTOR_ENABLED": False},
            marks=pytest.mark.skipif(
                scrapy.version_info < (2, 16), reason="this Scrapy needs Twisted's reactor"
            ),
        ),
    ],
    ids=["no asyncio", "no reactor"],
)
def test_works_on_every_event_loop(tmp_path: Path, loop: dict[str, Any]) -> None:
    """Killed and resumed, with Twisted's plain reactor and without Twisted's reactor."""
    status, _, log = crawl(tmp_path, die_at=50, **loop)
    assert status == -9, log
    _, result, log = crawl(tmp_path, **loop)
    assert result["reason"] == "finished", log
    assert items(tmp_path) == ONCE
    assert "Traceback" not in log


def test_start_requests_wait_for_room(tmp_path: Path) -> None:
    """However many there are, no more than HA_SEED_LIMIT wait (S19)."""
    _, result, log = crawl(tmp_path, HA_SEED_LIMIT=25)
    assert result["reason"] == "finished", log
    assert result["most"] <= 25
    assert items(tmp_path) == ONCE


START_ITEMS = """
import os, signal, sys
import scrapy
from scrapy.crawler import CrawlerProcess

class Spider(scrapy.Spider):
    name = "start"

    async def start(self):
        for number in range(20):
            yield {"n": f"start {number}"}
        if sys.argv[1] == "seeding":
            os.kill(os.getpid(), signal.SIGKILL)
        yield scrapy.Request("data:,page")

    def parse(self, response):
        if sys.argv[1] == "page":
            os.kill(os.getpid(), signal.SIGKILL)
        yield {"n": "page"}

process = CrawlerProcess({
    "ADDONS": {"scrapy_ha.Addon": 500}, "HA_DIR": "ha", "TELNETCONSOLE_ENABLED": False,
    "FEEDS": {"items.jsonl": {"format": "jsonlines"}}, "LOG_LEVEL": "INFO",
})
process.crawl(Spider)
process.start()
"""


def test_start_items_come_once(tmp_path: Path) -> None:
    """Items of start() are exported once, whether the kill comes during seeding or after it."""
    for moment, status in (("seeding", -9), ("page", -9), ("never", 0)):
        done = subprocess.run(
            [sys.executable, "-c", START_ITEMS, moment],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == status, done.stderr
    expected = Counter({**{f"start {number}": 1 for number in range(20)}, "page": 1})
    assert items(tmp_path) == expected
