"""Items without a server: kept by crawls that are killed, and written out by ``scrapy ha spool export``."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from functional.harness import SIGKILLED, Crawl, MakeCrawl, StartSite
from scrapy import version_info

from scrapy_ha.pipelines.spool import Spool

SPIDER = """
    class S(Spider):
        name = "s"

        async def start(self):
            for n in range(60):
                yield Request(f"{self.site}/ok/{n}")

        def parse(self, response):
            for part in range(5):
                yield {"page": response.url.rsplit("/", 1)[1], "part": part}
"""
ITEMS = sorted((f"{n}", part) for n in range(60) for part in range(5))

ITEMS_ONLY = """
    class S(Spider):
        name = "s"

        async def start(self):
            for n in range(20):
                yield {"n": n}
                ITEM

        def parse(self, response):
            pass
"""


def scrapy(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "scrapy", *arguments], cwd=cwd, capture_output=True, text=True, timeout=60
    )


def export(crawl: Crawl, *arguments: str, status: int = 0) -> str:
    return crawl.ha("spool", "export", *arguments, status=status)


def without_feed(crawl: Crawl) -> None:
    crawl.command = [part for part in crawl.command if part not in ("-o", "items.jsonl")]


def lines(file: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in file.read_text("utf-8").splitlines()]


def parts(file: Path) -> list[tuple[object, object]]:
    return sorted((line["page"], line["part"]) for line in lines(file))


def test_killed_crawls_and_one_export(start_site: StartSite, make_crawl: MakeCrawl) -> None:
    """Every item once, whatever was delivered again; the same command exports during the crawl."""
    site = start_site(delay=0.02)
    crawl = make_crawl(SPIDER, settings={"HA_SPOOL": True}, arguments=[f"-asite={site.url}"])
    for enough in (15, 30, 45):
        assert crawl.run(kill_when=lambda enough=enough: len(site.served()) >= enough).status == SIGKILLED
        export(crawl, "partial.jsonl")
        partial = parts(crawl.directory / "partial.jsonl")
        assert len(set(partial)) == len(partial)
        assert set(partial) <= set(ITEMS)
    last = crawl.run()
    assert last.reason == "finished"
    report = export(crawl, "all.jsonl")
    assert parts(crawl.directory / "all.jsonl") == ITEMS
    assert "300 documents" in report
    assert not (crawl.directory / "all.jsonl.part").exists()
    (said,) = [line for line in last.lines("INFO") if "scrapy ha spool export" in line]
    assert ".scrapy/ha/s/spool" in said


@pytest.mark.parametrize(
    ("fsync", "reactor"), [("always", True), ("always", False), ("interval", False), ("never", True)]
)
def test_with_another_scheduler(make_crawl: MakeCrawl, fsync: str, reactor: bool) -> None:
    """Alone, in a project without the add-on: it fsyncs by itself, and items survive a kill."""
    settings = {
        "ITEM_PIPELINES": {"scrapy_ha.pipelines.MongoPipeline": 900},
        "HA_FSYNC": fsync,
        "HA_FSYNC_INTERVAL": 0.01,
        "LOG_LEVEL": "INFO",
    }
    if not reactor:
        settings |= {"TWISTED_REACTOR": "twisted.internet.selectreactor.SelectReactor"}
    source = (
        ITEMS_ONLY.replace("ITEM", "if n == 10 and first_time('kill'): await self.seen(); die()")
        + """
        async def seen(self):
            while self.crawler.stats.get_value("item_scraped_count", 0) < 10:
                SLEEP
    """.replace(
            "SLEEP",
            "await asyncio.sleep(0.01)" if reactor else "from scrapy_ha.loop import sleep; await sleep(0.01)",
        )
    )
    crawl = make_crawl(source, settings=settings, activated=False)
    without_feed(crawl)
    assert crawl.run().status == SIGKILLED
    export(crawl, "killed.jsonl")
    assert len(lines(crawl.directory / "killed.jsonl")) >= 10
    ended = crawl.run()
    assert ended.reason == "finished"
    assert not ended.lines("ERROR")
    assert ended.stats["ha/spool/items"] == 20
    export(crawl, "all.jsonl")
    assert sorted(line["n"] for line in lines(crawl.directory / "all.jsonl")) == [*range(20)]


@pytest.mark.parametrize("activated", [True, False])
def test_disk_full_closes_the_crawl_with_its_reason(
    start_site: StartSite, make_crawl: MakeCrawl, activated: bool
) -> None:
    """One error line. With our scheduler the pages concerned are not done, and the next start
    fetches them again."""
    site = start_site()
    limit = """
    import errno
    from scrapy_ha.segments import files

    def full(handle, data):
        raise OSError(errno.ENOSPC, "No space left on device")

    class Limit:
        def process_item(self, item, spider=None):
            if item["part"] == 3 and item["page"] == "20" and first_time("full"):
                files.write = full
            return item
    """
    crawl = make_crawl(
        limit + SPIDER,
        settings={
            "ITEM_PIPELINES": {"project.main.Limit": 1, "scrapy_ha.pipelines.MongoPipeline": 900},
        },
        arguments=[f"-asite={site.url}"],
        activated=activated,
    )
    without_feed(crawl)
    full = crawl.run()
    assert full.reason == "disk_full", full.log[-3000:]
    error, *others = full.lines("ERROR")
    # The checkpoint, which the add-on puts in, meets the same disk at the end.
    assert all("The checkpoint could not be closed" in other for other in others)
    assert len(others) <= activated
    assert "spool" in error
    assert full.stats["ha/spool/not_stored"] > 0
    assert crawl.run().reason == "finished"
    export(crawl, "all.jsonl")
    assert parts(crawl.directory / "all.jsonl") == ITEMS


def test_a_second_crawl_is_refused(make_crawl: MakeCrawl) -> None:
    """With a line that names directory, pid and host; the first goes on unharmed."""
    wait = "while not os.path.exists('go'): await asyncio.sleep(0.01)"
    settings = {"ITEM_PIPELINES": {"scrapy_ha.pipelines.MongoPipeline": 900}, "HA_DIR": "ha"}
    crawl = make_crawl(ITEMS_ONLY.replace("ITEM", wait), settings=settings, activated=False)
    first = crawl.start()
    while not (crawl.directory / "ha" / "spool" / "lock").exists():
        assert first.poll() is None
        time.sleep(0.01)
    second = scrapy("crawl", "s", cwd=crawl.directory)
    (crawl.directory / "go").touch()
    assert f"ha/spool is in use by another process: pid {first.pid} on host" in second.stderr
    if version_info >= (2, 14):  # Scrapy 2.13 ends well when a pipeline cannot be opened
        assert second.returncode > 0
    assert crawl.end(first).reason == "finished"
    export(crawl, "all.jsonl")
    assert len(lines(crawl.directory / "all.jsonl")) == 20


# The command


def spool_of(path: Path, count: int) -> Path:
    """A crawl's directory with *count* documents of one field."""
    from scrapy_ha.serialize import encode_value

    spool = Spool(path / "spool", segment_bytes=5000)
    spool.open()
    for n in range(count):
        spool.append(b"%d" % n, encode_value({"doc": encode_value({"n": n})}))
    spool.close()
    return path


def test_export_outside_a_project(tmp_path: Path) -> None:
    """By directory: the crawl's or the spool's own. To a file or to the standard output."""
    crawl = spool_of(tmp_path / "crawl", 100)
    for directory in (crawl, crawl / "spool"):
        ended = scrapy("ha", "spool", "export", "all.jsonl", "--dir", str(directory), cwd=tmp_path)
        assert ended.returncode == 0, ended.stderr
        assert ended.stdout.startswith("100 documents, from 100 records in ")
        assert [line["n"] for line in lines(tmp_path / "all.jsonl")] == [*range(100)]
    piped = scrapy("ha", "spool", "export", "-", "--dir", str(crawl), cwd=tmp_path)
    assert [json.loads(line)["n"] for line in piped.stdout.splitlines()] == [*range(100)]
    assert "100 documents" in piped.stderr


def test_export_of_a_damaged_spool(tmp_path: Path) -> None:
    """Everything that is whole; the exit status and a line say that something is missing."""
    crawl = spool_of(tmp_path / "crawl", 300)
    segment = crawl / "spool" / "00000002.spool"
    data = bytearray(segment.read_bytes())
    data[1000] ^= 1
    segment.write_bytes(data)
    ended = scrapy("ha", "spool", "export", "all.jsonl", "--dir", str(crawl), cwd=tmp_path)
    assert ended.returncode == 1
    assert "DAMAGED" in ended.stdout
    assert "00000002.spool" in ended.stdout
    assert len(lines(tmp_path / "all.jsonl")) == 299


def test_export_of_records_that_hold_no_document(tmp_path: Path) -> None:
    """Whole frames with hostile contents: left out, counted."""
    from scrapy_ha.serialize import encode_value

    crawl = spool_of(tmp_path / "crawl", 2)
    spool = Spool(crawl / "spool")
    spool.open()
    for n, payload in enumerate((b"", b"\xff" * 100, encode_value([1]), encode_value({"doc": b"\x01"}))):
        spool.append(b"bad-%d" % n, payload)
    spool.append(b"3", encode_value({"doc": encode_value([1, 2])}))
    spool.append(b"4", encode_value({"doc": encode_value({"n": 2})}))
    spool.close()
    ended = scrapy("ha", "spool", "export", "all.jsonl", "--dir", str(crawl), cwd=tmp_path)
    assert ended.returncode == 1
    assert "UNREADABLE: 5 documents" in ended.stdout
    assert [line["n"] for line in lines(tmp_path / "all.jsonl")] == [0, 1, 2]


def test_a_killed_export_leaves_no_half_file(tmp_path: Path) -> None:
    """The file that was there before stays; the next export is not disturbed by what is left."""
    crawl = spool_of(tmp_path / "crawl", 50_000)
    target = tmp_path / "all.jsonl"
    target.write_text('{"n": "before"}\n')
    process = subprocess.Popen(
        [sys.executable, "-m", "scrapy", "ha", "spool", "export", "all.jsonl", "--dir", str(crawl)],
        cwd=tmp_path,
    )
    part = tmp_path / "all.jsonl.part"
    while not (part.exists() and part.stat().st_size):
        assert process.poll() is None
        time.sleep(0.001)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    assert lines(target) == [{"n": "before"}]
    ended = scrapy("ha", "spool", "export", "all.jsonl", "--dir", str(crawl), cwd=tmp_path)
    assert ended.returncode == 0
    assert len(lines(target)) == 50_000
    assert not part.exists()


def test_an_export_that_cannot_be_written(tmp_path: Path) -> None:
    crawl = spool_of(tmp_path / "crawl", 10_000)
    for target in ("missing/all.jsonl", "crawl", "/dev/full"):
        if target.startswith("/dev") and not os.path.exists(target):
            continue
        ended = scrapy("ha", "spool", "export", target, "--dir", str(crawl), cwd=tmp_path)
        assert ended.returncode == 2
        assert len(ended.stderr.splitlines()) == 1
        assert target in ended.stderr


def test_which_crawl_inside_a_project(make_crawl: MakeCrawl) -> None:
    """The spider's own settings count; with several spiders one has to be named."""
    crawl = make_crawl(
        """
        class S(Spider):
            name = "s"
            custom_settings = {"JOBDIR": "own"}

        class T(Spider):
            name = "t"
        """
    )
    spool_of(crawl.directory / "own", 3)
    spool_of(crawl.directory / ".scrapy" / "ha" / "t", 4)
    spool_of(crawl.directory / "given", 5)
    assert "3 documents" in export(crawl, "f.jsonl", "s")
    assert "4 documents" in export(crawl, "f.jsonl", "t")
    assert "5 documents" in export(crawl, "f.jsonl", "--dir", "given")
    assert "5 documents" in export(crawl, "f.jsonl", "-s", "HA_DIR=given")
    assert "s, t" in export(crawl, "f.jsonl", status=2)
    assert "no spider 'u'" in export(crawl, "f.jsonl", "u", status=2)
    assert "not both" in export(crawl, "f.jsonl", "s", "--dir", "given", status=2)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nonsense"], "there is no sub-command 'nonsense'; there are: checkpoint, dlq"),
        (["spool"], "ACTION"),
        (["spool", "nonsense"], "nonsense"),
        (["spool", "export"], "FILE.jsonl"),
        (["spool", "export", "f.jsonl"], "--dir"),
        (["spool", "export", "f.jsonl", "--dri", "x"], "--dri"),
        (["spool", "export", "f.jsonl", "--dir", "missing"], "There is no spool in missing"),
    ],
)
def test_wrong_arguments_get_one_line(tmp_path: Path, arguments: list[str], said: str) -> None:
    ended = scrapy("ha", *arguments, cwd=tmp_path)
    assert ended.returncode == 2
    (line,) = ended.stderr.splitlines()
    assert said in line
    assert not ended.stdout
    assert not list(tmp_path.iterdir())


def test_help(tmp_path: Path) -> None:
    """Of the command, and of each sub-command its own."""
    for arguments in ([], ["-h"]):
        ended = scrapy("ha", *arguments, cwd=tmp_path)
        assert ended.returncode == 0
        assert "spool" in ended.stdout
    ended = scrapy("ha", "spool", "export", "-h", cwd=tmp_path)
    assert ended.returncode == 0
    assert "--dir" in ended.stdout
    assert "ha " in scrapy("-h", cwd=tmp_path).stdout
