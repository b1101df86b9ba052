"""``process_item`` stores the document and hands the same item on, whatever the item is."""

from __future__ import annotations

import errno
import json
import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import scrapy
from scrapy.crawler import Crawler
from scrapy.exceptions import DropItem
from scrapy.settings import Settings
from scrapy.statscollectors import MemoryStatsCollector

from scrapy_ha.errors import HAError, SettingError, StoreFull, StoreLocked
from scrapy_ha.loop import completed
from scrapy_ha.pipelines import MongoPipeline
from scrapy_ha.pipelines.reader import SpoolReader
from scrapy_ha.run import current_page, run_of
from scrapy_ha.serialize import decode_value


@pytest.fixture
def closed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Reasons with which the spider was closed; these crawlers have no engine."""
    reasons: list[str] = []
    monkeypatch.setattr(
        "scrapy_ha.pipelines.mongo.close_spider", lambda crawler, reason: reasons.append(reason)
    )
    return reasons


class Product(scrapy.Item):
    sku = scrapy.Field()
    file = scrapy.Field()


class ItemSpider(scrapy.Spider):
    name = "s"


def crawler_of(path: Path, **settings: Any) -> Crawler:
    # Without fsync nothing needs a running loop.
    crawler = Crawler(ItemSpider, Settings({"HA_DIR": str(path), "HA_FSYNC": "never", **settings}))
    crawler.stats = MemoryStatsCollector(crawler)
    crawler.spider = ItemSpider.from_crawler(crawler)
    return crawler


@contextmanager
def opened(crawler: Crawler) -> Iterator[MongoPipeline]:
    pipeline = MongoPipeline.from_crawler(crawler)
    pipeline.open_spider()
    try:
        yield pipeline
    finally:
        completed(pipeline._close())


def process(pipeline: MongoPipeline, item: Any) -> Any:
    return completed(pipeline.process_item(item))


def stored(path: Path) -> list[dict[str, Any]]:
    return [decode_value(record.payload) for record in SpoolReader(path / "spool").documents()]


def documents(path: Path) -> list[Any]:
    return [decode_value(record["doc"]) for record in stored(path)]


def dead_letters(path: Path) -> list[dict[str, Any]]:
    file = path / "spool" / "dead.jsonl"
    return [json.loads(line) for line in file.read_text("utf-8").splitlines()] if file.exists() else []


def test_the_very_same_item_goes_on_unchanged_and_survives_a_kill(tmp_path: Path) -> None:
    """At once, not only at the end."""
    with opened(crawler_of(tmp_path)) as pipeline:
        item = Product(sku="a")
        assert process(pipeline, item) is item
        assert dict(item) == {"sku": "a"}
        assert documents(tmp_path) == [{"sku": "a"}]


def test_what_is_stored_with_a_document(tmp_path: Path) -> None:
    crawler = crawler_of(tmp_path, HA_ITEM_KEY="sku")
    token = current_page.set(scrapy.Request("http://example.com/a"))
    try:
        with opened(crawler) as pipeline:
            process(pipeline, Product(sku="a"))
    finally:
        current_page.reset(token)
    (record,) = stored(tmp_path)
    assert abs(record.pop("at") - run_of(crawler).clock.time()) < 60
    assert decode_value(record.pop("doc")) == {"sku": "a"}
    assert record == {
        "id": "a",
        "type": f"{Product.__module__}.Product",
        "spider": "s",
        "url": "http://example.com/a",
    }


@pytest.mark.parametrize("key", [None, "sku", "sku,price", lambda item: item["sku"]])
def test_one_document_per_key_over_restarts(tmp_path: Path, key: Any) -> None:
    for _ in range(2):
        with opened(crawler_of(tmp_path, HA_ITEM_KEY=key)) as pipeline:
            for sku in "abca":
                process(pipeline, {"price": 1, "sku": sku})
                process(pipeline, {"sku": sku, "price": 1})
    assert sorted(document["sku"] for document in documents(tmp_path)) == ["a", "b", "c"]


def test_the_last_version_of_a_document_stays(tmp_path: Path) -> None:
    with opened(crawler_of(tmp_path, HA_ITEM_KEY="sku")) as pipeline:
        process(pipeline, {"sku": "a", "price": 1})
        process(pipeline, {"sku": "a", "price": 2})
    assert documents(tmp_path) == [{"sku": "a", "price": 2}]


class Hostile(dict):  # type: ignore[type-arg]
    def items(self) -> Any:
        raise RuntimeError("not readable")

    def __iter__(self) -> Any:
        raise RuntimeError("not readable")

    __repr__ = __iter__


def test_what_cannot_be_stored_is_set_aside_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """With the reason, counted, said once per kind; it goes on through the crawl as before."""
    crawler = crawler_of(tmp_path, HA_ITEM_KEY="sku")
    circular: dict[str, Any] = {"sku": "circular"}
    circular["self"] = circular
    bad = [
        Product(sku="file", file=sys.stdout),
        Product(file="no key"),
        Product(sku=None),
        circular,
        {"sku": "large", "text": "x" * (9 * 2**20)},
        {"sku": "k" * 70_000},
        {"sku": sys.stdout},
        Hostile(sku="hostile"),
        Product(sku="file", file=sys.stdout),
    ]
    with opened(crawler) as pipeline:
        for n, item in enumerate(bad):
            process(pipeline, {"sku": n})
            assert process(pipeline, item) is item
        process(pipeline, {"sku": "last"})
    assert [document["sku"] for document in documents(tmp_path)] == [*range(len(bad)), "last"]
    letters = dead_letters(tmp_path)
    assert len(letters) == len(bad)
    assert "file" in letters[0]["reason"]
    assert (
        letters[0]["item"]["sku"] == "file"
        if type(letters[0]["item"]) is dict
        else "file" in letters[0]["item"]
    )
    assert "'sku'" in letters[1]["reason"]
    assert letters[1]["kind"] == letters[2]["kind"] == "key:missing"
    assert all(letter["spider"] == "s" and letter["at"] for letter in letters)
    assert (tmp_path / "spool" / "dead.jsonl").stat().st_size < 2**20
    assert crawler.stats is not None
    assert crawler.stats.get_value("ha/spool/items") == len(bad) + 1
    assert crawler.stats.get_value("ha/spool/dead_letters") == len(bad)
    kinds = {letter["kind"] for letter in letters}
    assert len([r for r in caplog.records if r.levelno == logging.ERROR]) == len(kinds) < len(bad)


def test_a_dead_letter_after_a_cut_line_is_whole(tmp_path: Path) -> None:
    """Half a line, as a kill leaves it, does not spoil the next."""
    with opened(crawler_of(tmp_path, HA_ITEM_KEY="sku")) as pipeline:
        process(pipeline, {"n": 1})
        file = tmp_path / "spool" / "dead.jsonl"
        file.write_bytes(file.read_bytes()[:-10])
        process(pipeline, {"n": 2})
    _, whole = file.read_text().splitlines()
    assert json.loads(whole)["item"] == {"n": 2}


@pytest.mark.parametrize("keyless", [False, True])
def test_disk_full_means_not_stored_and_not_done(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    closed: list[str],
    keyless: bool,
) -> None:
    """One error; the item is dropped; and its page does not count as done, also when there is
    space again by then: later pipelines have not seen the item."""
    crawler = crawler_of(tmp_path, HA_ITEM_KEY="sku")
    run = run_of(crawler)
    with opened(crawler) as pipeline:
        process(pipeline, {"sku": "a"})
        page = scrapy.Request("http://example.com")
        run.settle(page)
        with monkeypatch.context() as patch:

            def full(handle: int, data: bytes) -> int:
                raise OSError(errno.ENOSPC, "No space left on device")

            patch.setattr(os, "write", full)
            bad = {} if keyless else {"sku": "b"}
            for _ in range(3):
                with pytest.raises(DropItem, match="No space left"):
                    process(pipeline, bad)
        with pytest.raises(StoreFull):
            run.settle(page)
        with pytest.raises(DropItem):
            process(pipeline, {"sku": "c"})
    (error,) = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert "disk_full" in error
    assert str(tmp_path) in error
    assert closed == ["disk_full"]
    assert crawler.stats is not None
    assert crawler.stats.get_value("ha/spool/not_stored") == 4
    assert documents(tmp_path)[0] == {"sku": "a"}


def test_the_scheduler_reports_for_its_own_pages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, closed: list[str]
) -> None:
    """It has the error from ``settle``: said here too, it would be said twice."""
    crawler = crawler_of(tmp_path)
    page = scrapy.Request("http://example.com")
    run_of(crawler).tracks = lambda request: request is page
    token = current_page.set(page)
    try:
        with opened(crawler) as pipeline:
            monkeypatch.setattr(os, "write", lambda handle, data: os.close(-1))
            with pytest.raises(DropItem):
                process(pipeline, {"a": 1})
            with pytest.raises(HAError):
                run_of(crawler).settle(page)
    finally:
        current_page.reset(token)
    assert closed == ["store_error"]
    assert not [record for record in caplog.records if record.levelno == logging.ERROR]


def test_a_second_crawl_on_the_directory_is_refused(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with opened(crawler_of(tmp_path)):
        second = MongoPipeline.from_crawler(crawler_of(tmp_path))
        with pytest.raises(StoreLocked):
            second.open_spider()
        completed(second._close())
    (error,) = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert f"pid {os.getpid()}" in error


def test_the_path_of_a_callable(tmp_path: Path) -> None:
    """With dots, or a colon before the name; a field whose name has a dot is given in a list."""
    for n, key in enumerate(("os.path.basename", "os.path:basename", ["a.b"])):
        with opened(crawler_of(tmp_path / str(n), HA_ITEM_KEY=key)) as pipeline:
            process(pipeline, Path("x/a") if n < 2 else {"a.b": "a"})
    assert [record["id"] for record in stored(tmp_path / "2")] == ["a"]


def test_a_bad_key_fails_at_the_start(tmp_path: Path) -> None:
    for value in ("no.such.callable", "os.path.nothing", "os.name", 7, ["a", 7]):
        with pytest.raises(SettingError, match="HA_ITEM_KEY"):
            MongoPipeline.from_crawler(crawler_of(tmp_path, HA_ITEM_KEY=value))


def test_mongo_uri_is_not_used_yet_and_never_shown(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with opened(crawler_of(tmp_path, MONGO_URI="mongodb://user:hunter2@127.0.0.1")) as pipeline:
        process(pipeline, {"a": 1})
    (warning,) = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert "MONGO_URI" in warning
    assert "hunter2" not in caplog.text
    assert documents(tmp_path) == [{"a": 1}]


def test_what_a_kill_left_is_counted_and_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with opened(crawler_of(tmp_path)) as pipeline:
        process(pipeline, {"a": 1})
    with (tmp_path / "spool" / "00000001.spool").open("ab") as file:
        file.write(b"torn")
    crawler = crawler_of(tmp_path)
    with opened(crawler) as pipeline:
        process(pipeline, {"a": 2})
    assert crawler.stats is not None
    assert crawler.stats.get_value("ha/spool/torn_bytes") == 4
    assert "last 4 bytes" in caplog.text
    assert documents(tmp_path) == [{"a": 1}, {"a": 2}]
