"""HAFeedExporter on real files: the tests play the scheduler's role, and kill the exporter."""

from __future__ import annotations

import asyncio
import csv
import functools
import inspect
import io
import json
import marshal
import os
import pickle
import resource
import shutil
import tempfile
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import scrapy
from hypothesis import given, settings
from hypothesis import strategies as st
from scrapy import Field, Item, Request, Spider, signals
from scrapy.crawler import Crawler
from scrapy.exceptions import NotConfigured, ScrapyDeprecationWarning
from scrapy.exporters import BaseItemExporter, CsvItemExporter, JsonLinesItemExporter
from scrapy.extensions.feedexport import BlockingFeedStorage, FeedExporter, FileFeedStorage
from scrapy.http import Response
from scrapy.statscollectors import StatsCollector
from scrapy.utils.defer import deferred_from_coro

from scrapy_ha.errors import BadRecord, StoreError, StoreFull
from scrapy_ha.feeds import HAFeedExporter
from scrapy_ha.feeds.files import mend_last_line
from scrapy_ha.feeds.journal import Journal
from scrapy_ha.feeds.marks import Mark
from scrapy_ha.feeds.snapshot import snapshot
from scrapy_ha.run import current_page, run_of

FORMATS = ["jsonlines", "csv", "json", "xml", "pickle", "marshal"]
HAS_ASYNCIO_FEEDS = scrapy.version_info >= (2, 14)


def with_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run a coroutine test as Scrapy runs the exporter: on an asyncio loop, or, before 2.14, on Deferreds."""

    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        if HAS_ASYNCIO_FEEDS:
            asyncio.run(test(*args, **kwargs))
            return
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("scrapy.utils.defer.is_asyncio_reactor_installed", lambda: False)
            outcome: list[Any] = []
            deferred_from_coro(test(*args, **kwargs)).addBoth(outcome.append)
            if outcome[0] is not None:
                outcome[0].raiseException()

    return run


async def turn() -> None:
    """Let tasks that wait on the loop run."""
    if HAS_ASYNCIO_FEEDS:
        for _ in range(5):
            await asyncio.sleep(0)


class SomeSpider(Spider):
    name = "some"


@dataclass
class Store:
    """What the frontier keeps of a crawl."""

    resumed: bool = False
    marks: dict[str, bytes] = field(default_factory=dict)


class Worker:
    """One process of a crawl, as far as feeds are concerned.

    Args:
        store: ``None``: the scheduler is one that acknowledges nothing.
    """

    def __init__(
        self, home: Path, feeds: dict[Any, Any], store: Store | None, stock: bool = False, **more: Any
    ) -> None:
        self.crawler = Crawler(SomeSpider, {"FEEDS": feeds, "HA_DIR": str(home / "ha"), **more})
        self.crawler.stats = StatsCollector(self.crawler)
        self.crawler.spider = self.spider = SomeSpider.from_crawler(self.crawler)
        self.exporter: Any = (FeedExporter if stock else HAFeedExporter).from_crawler(self.crawler)
        self.run = run_of(self.crawler)
        self.store = store or Store()
        self.pages: set[Request] = set()
        if store is not None:
            self.run.tracks = self.pages.__contains__
            self.run.resumed, self.run.marks = store.resumed, dict(store.marks)
            store.resumed = True
        self.crawler.signals.send_catch_log(signals.spider_opened, spider=self.spider)

    def start_page(self, *items: Any) -> Request:
        page = Request("http://127.0.0.1/page")
        self.pages.add(page)
        for item in items:
            self.give(item, page)
        return page

    def give(self, item: Any, page: Request | None = None) -> None:
        token = current_page.set(page)
        try:
            response = Response("http://127.0.0.1/page")
            self.crawler.signals.send_catch_log(
                signals.item_scraped, item=item, response=response, spider=self.spider
            )
        finally:
            current_page.reset(token)

    def settle(self, page: Request) -> None:
        self.pages.discard(page)
        self.run.settle(page)

    def acknowledge(self) -> None:
        self.store.marks.update(self.run.collect_marks())

    def page(self, *items: Any) -> None:
        """A whole page."""
        self.settle(self.start_page(*items))
        self.acknowledge()

    def kill(self) -> None:
        """From here on nothing reaches the disk, whatever is still called."""
        nowhere = os.open(os.devnull, os.O_RDWR)
        for file in self.exporter._files._files:
            if not file.closed:
                os.dup2(nowhere, file.fileno())
        os.close(nowhere)

    async def close(self) -> None:
        await self.exporter.close_spider(self.spider)


def item(n: int, pad: str = "") -> dict[str, str]:
    return {"n": str(n), "text": f"ü,\"'<&\n{pad}"}


def read(path: Path, format_: str) -> list[int]:
    """The numbers of the items in a feed, which must be whole."""
    data = path.read_bytes()
    if format_ == "jsonlines":
        assert data.endswith(b"\n") or not data
        items = [json.loads(line) for line in data.splitlines()]
    elif format_ == "json":
        items = json.loads(data)
    elif format_ == "csv":
        rows = list(csv.DictReader(io.StringIO(data.decode(), newline="")))
        assert not rows or rows[0].keys() == {"n", "text"}
        items = rows
    elif format_ == "xml":
        items = [{one.tag: one.text for one in each} for each in ET.fromstring(data)]
    else:
        load: Any = pickle.load if format_ == "pickle" else marshal.load
        items, stream = [], io.BytesIO(data)
        while stream.tell() < len(data):
            items.append(load(stream))
    assert all(one["text"].startswith("ü,\"'<&\n") for one in items)
    return [int(one["n"]) for one in items]


@contextmanager
def no_space(size: int) -> Iterator[None]:
    """No file of this process can grow beyond *size* bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


# Exactly once

ENDINGS = ["before", "settled", "acknowledged", "graceful"]

COUNTS = st.integers(0, 5)
RUNS = st.lists(
    st.tuples(st.lists(COUNTS, max_size=4), COUNTS, st.sampled_from(ENDINGS), st.booleans()),
    min_size=1,
    max_size=5,
)
"""Of each run: how many items its pages give, how many the page under way at its end gives, how it
ends, and whether tasks of the loop got to run before that."""


@pytest.mark.parametrize("overwrite", [False, True], ids=["append", "overwrite"])
@pytest.mark.parametrize("format_", FORMATS)
@given(
    runs=RUNS,
    batch=st.integers(0, 4),
    pad=st.sampled_from(["", "x" * 40_000]),
    indent=st.sampled_from([None, 0, 2]),
)
@settings(max_examples=30)
def test_every_item_once(
    format_: str,
    overwrite: bool,
    runs: list[tuple[list[int], int, str, bool]],
    batch: int,
    pad: str,
    indent: int | None,
) -> None:
    """Wherever runs end, all runs together hold each item of each acknowledged page once, in order,
    in whole files of the right size."""
    home = Path(tempfile.mkdtemp())
    uri = f"{home}/out-%(batch_id)d-%(batch_time)s" if batch else f"{home}/out-%(time)s"
    options = {"format": format_, "overwrite": overwrite, "batch_item_count": batch, "indent": indent}
    counter = iter(range(10**6))
    expected: list[int] = []
    store = Store()

    @with_loop
    async def crawl(pages: list[int], last: int, ending: str, let_run: bool) -> None:
        worker = Worker(home, {uri: options}, store)
        for count in pages:
            numbers = [next(counter) for _ in range(count)]
            worker.page(*(item(n, pad) for n in numbers))
            expected.extend(numbers)
        numbers = [next(counter) for _ in range(last)]
        page = worker.start_page(*(item(n, pad) for n in numbers))
        if ending != "before":
            worker.settle(page)
            if ending != "settled":
                worker.acknowledge()
                expected.extend(numbers)
        if let_run:
            await turn()
        if ending == "graceful":
            await worker.close()
        else:
            worker.kill()

    try:
        for run in runs:
            crawl(*run)
        crawl([], 0, "graceful", False)
        paths = list(home.glob("out-*"))
        if not batch:
            assert len(paths) <= 1
            assert [n for path in paths for n in read(path, format_)] == expected
            return
        batches = {int(path.name.split("-")[1]): read(path, format_) for path in paths}
        assert len(batches) == len(paths), "a batch was written to two files"
        assert [n for _, numbers in sorted(batches.items()) for n in numbers] == expected
        assert all(len(numbers) == batch for n, numbers in batches.items() if n < max(batches))
    finally:
        shutil.rmtree(home)


@pytest.mark.parametrize("format_", ["json", "xml"])
@with_loop
async def test_whole_after_every_page(tmp_path: Path, format_: str) -> None:
    """A file is valid without a graceful end, also the one of a batch that is just full."""
    feeds = {f"{tmp_path}/%(batch_id)d": {"format": format_, "batch_item_count": 3}}
    worker = Worker(tmp_path, feeds, Store())
    worker.page(item(0), item(1))
    assert read(tmp_path / "1", format_) == [0, 1]
    worker.page(item(2), item(3))
    assert (read(tmp_path / "1", format_), read(tmp_path / "2", format_)) == ([0, 1, 2], [3])


@with_loop
async def test_pages_do_not_mix(tmp_path: Path) -> None:
    """What a page under way gave is not written with that of another."""
    worker = Worker(tmp_path, {tmp_path / "out": {"format": "json"}}, Store())
    under_way = worker.start_page(item(1))
    worker.page(item(2))
    assert read(tmp_path / "out", "json") == [2]
    worker.settle(under_way)
    assert read(tmp_path / "out", "json") == [2, 1]


@with_loop
async def test_page_found_by_its_response(tmp_path: Path) -> None:
    """Where the context is lost, the response tells the page."""
    worker = Worker(tmp_path, {tmp_path / "out": {"format": "json"}}, Store())
    page = worker.start_page()
    response = Response("http://127.0.0.1", request=page)
    worker.crawler.signals.send_catch_log(
        signals.item_scraped, item=item(1), response=response, spider=worker.spider
    )
    assert not (tmp_path / "out").exists()
    worker.settle(page)
    assert read(tmp_path / "out", "json") == [1]


@with_loop
async def test_one_object_filled_again_and_again(tmp_path: Path) -> None:
    """An item is written as it was when it was given."""
    worker = Worker(tmp_path, {tmp_path / "out": {"format": "json"}}, Store())
    page = worker.start_page()
    one: dict[str, Any] = {"tags": []}
    for n in range(3):
        one["tags"].append(n)
        worker.give(one, page)
    worker.settle(page)
    assert [each["tags"] for each in json.loads((tmp_path / "out").read_bytes())] == [[0], [0, 1], [0, 1, 2]]


class SomeItem(Item):
    n = Field()


@dataclass
class SomeData:
    n: Any


@pytest.mark.parametrize("make", [SomeItem, SomeData, dict])
def test_snapshots(make: Any) -> None:
    """Of every kind of item, as deep as there are containers, and no deeper."""
    crawler = object()
    inner = make(n=[1, (crawler, {2})])
    before = make(n={"inner": inner})
    taken = snapshot(before)
    assert taken == before
    assert type(taken) is type(before)
    value: Any = inner["n"] if isinstance(inner, (dict, Item)) else inner.n
    value.append(3)
    assert taken != before
    copied: Any = taken["n"] if isinstance(taken, (dict, Item)) else taken.n
    copied = copied["inner"]["n"] if isinstance(copied["inner"], (dict, Item)) else copied["inner"].n
    assert copied[1][0] is crawler


def test_snapshot_of_what_cannot_be_copied() -> None:
    """It is taken as it is."""
    endless: list[Any] = []
    endless.append(endless)
    assert snapshot(endless) is endless


# As in Scrapy


def many_feeds(home: Path) -> dict[Any, dict[str, Any]]:
    """In every format, with every option that Scrapy has, some onto files that exist."""
    feeds: dict[Any, dict[str, Any]] = {}
    for format_ in FORMATS:
        feeds[home / f"plain.{format_}"] = {"format": format_}
        feeds[home / "sub" / f"odd.{format_}"] = {
            "format": format_,
            "indent": 4,
            "encoding": "utf-16",
            "fields": {"text": "T", "n": "N"},
            "store_empty": False,
        }
        feeds[home / f"filtered.{format_}"] = {
            "format": format_,
            "item_classes": [SomeItem],
            "overwrite": True,
        }
        feeds[f"{home}/%(batch_id)d.{format_}"] = {"format": format_, "batch_item_count": 2}
        (home / f"plain.{format_}").write_bytes(b"before")
        (home / f"filtered.{format_}").write_bytes(b"before")
    return feeds


async def crawl_with_many_feeds(home: Path, store: Store | None, stock: bool, count: int) -> Any:
    """What is in the files, in the stats and in the signals after an undisturbed run."""
    home.mkdir()
    worker = Worker(home, many_feeds(home), store, stock=stock)
    closed: list[tuple[str, int]] = []

    def slot_closed(slot: Any) -> None:
        closed.append((slot.uri.rpartition("/")[2], slot.itemcount))

    worker.crawler.signals.connect(slot_closed, signals.feed_slot_closed)
    for n in range(count):
        if stock:
            worker.give(item(n))
            worker.give(SomeItem(n=n))
        else:
            worker.page(item(n), SomeItem(n=n))
    await worker.close()
    shutil.rmtree(home / "ha", ignore_errors=True)
    files = {path.relative_to(home): path.read_bytes() for path in home.rglob("*") if path.is_file()}
    assert worker.crawler.stats is not None
    stats = worker.crawler.stats.get_stats()
    return files, {name: stats[name] for name in stats if "feedexport" in name}, Counter(closed)


@pytest.mark.parametrize("acknowledging", [False, True])
@pytest.mark.parametrize("count", [0, 5])
@with_loop
async def test_same_as_scrapy(tmp_path: Path, acknowledging: bool, count: int) -> None:
    """Files, stats and signals of a run that nothing disturbs, with any scheduler."""
    ours = await crawl_with_many_feeds(tmp_path / "ours", Store() if acknowledging else None, False, count)
    assert ours == await crawl_with_many_feeds(tmp_path / "stock", None, True, count)


def test_without_feeds_it_is_not_there() -> None:
    crawler = Crawler(SomeSpider)
    with pytest.raises(NotConfigured):
        HAFeedExporter.from_crawler(crawler)
    assert run_of(crawler).durables == []


@with_loop
async def test_feed_uri(tmp_path: Path) -> None:
    """The settings from before ``FEEDS``."""
    with pytest.warns(ScrapyDeprecationWarning, match="FEED_URI"):
        worker = Worker(tmp_path, {}, Store(), FEED_URI=str(tmp_path / "out"), FEED_FORMAT="jsonlines")
    worker.page(item(1))
    assert read(tmp_path / "out", "jsonlines") == [1]


@with_loop
async def test_items_that_cannot_be_exported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """They are lost and logged, as in Scrapy; the page ends all the same."""
    worker = Worker(tmp_path, {tmp_path / "out": {"format": "json"}}, Store())
    worker.page(item(1), {"n": object()}, item(2))
    assert "could not be exported" in caplog.text
    assert read(tmp_path / "out", "json") == [1, 2]


@with_loop
async def test_start_items(tmp_path: Path) -> None:
    """What belongs to no page is in the file with the next acknowledgement."""
    store = Store()
    worker = Worker(tmp_path, {tmp_path / "out": {"format": "json"}}, store)
    worker.give(item(0))
    worker.acknowledge()
    worker.give(item(1))
    worker.kill()
    worker = Worker(tmp_path, {tmp_path / "out": {"format": "json"}}, store)
    worker.page(item(2))
    assert read(tmp_path / "out", "json") == [0, 2]


# Begin or go on


@with_loop
async def test_overwriting_feeds_of_a_fresh_crawl(tmp_path: Path) -> None:
    """They wipe what is there; also when the first run was killed before any page was done."""
    path = tmp_path / "out"
    path.write_text("old\n")
    store = Store()
    feeds = {path: {"format": "jsonlines", "overwrite": True}}
    worker = Worker(tmp_path, feeds, store)
    worker.start_page(item(0))
    worker.kill()
    worker = Worker(tmp_path, feeds, store)
    worker.settle(worker.start_page(item(0)))
    worker.kill()
    Worker(tmp_path, feeds, store).page(item(0))
    assert read(path, "jsonlines") == [0]
    Worker(tmp_path, feeds, Store()).page(item(1))
    assert read(path, "jsonlines") == [1]


@with_loop
async def test_appending_feeds_keep_what_was_there(tmp_path: Path) -> None:
    """Before any acknowledgement as well: only what the crawl wrote is undone."""
    path = tmp_path / "out"
    path.write_text('{"n": "7", "text": "ü,\\"\'<&\\n"}\n')
    store = Store()
    feeds = {path: {"format": "jsonlines"}}
    worker = Worker(tmp_path, feeds, store)
    worker.settle(worker.start_page(item(0)))
    worker.kill()
    assert read(path, "jsonlines") == [7, 0]
    worker = Worker(tmp_path, feeds, store)
    assert read(path, "jsonlines") == [7]
    worker.page(item(0))
    assert read(path, "jsonlines") == [7, 0]


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize(("format_", "aside"), [("jsonlines", False), ("csv", False), ("json", True)])
@with_loop
async def test_feed_that_is_new_in_a_resumed_crawl(
    tmp_path: Path, overwrite: bool, format_: str, aside: bool
) -> None:
    """What its file holds is kept: lines go on, other formats begin anew beside it."""
    path = tmp_path / "out"
    store = Store()
    Worker(tmp_path, {tmp_path / "other": {"format": "json"}}, store).page(item(0))
    before = Worker(tmp_path, {path: {"format": format_}}, Store())
    before.page(item(1))
    await before.close()
    Journal(tmp_path / "ha" / "feeds.journal").begin(["feeds:other"])
    worker = Worker(tmp_path, {path: {"format": format_, "overwrite": overwrite}}, store)
    worker.page(item(2))
    if aside:
        assert read(tmp_path / "out.part-1", format_) == [1]
        assert read(path, format_) == [2]
    elif format_ == "jsonlines":
        assert read(path, format_) == [1, 2]
    else:
        assert path.read_bytes().count("ü".encode()) == 2


@pytest.mark.parametrize("format_", FORMATS)
@pytest.mark.parametrize("what", ["deleted", "rotated", "replaced", "shortened", "edited"])
@with_loop
async def test_file_that_someone_touched(
    tmp_path: Path, what: str, format_: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing of another file is cut off or overwritten; the crawl goes on, and says so."""
    path = tmp_path / "out"
    store = Store()
    feeds = {path: {"format": format_, "overwrite": True}}
    worker = Worker(tmp_path, feeds, store)
    worker.page(item(0), item(1))
    worker.kill()
    other = Worker(tmp_path / "other", {tmp_path / "another": {"format": format_}}, Store())
    other.page(*(item(n) for n in range(10, 20)))
    await other.close()
    content = {
        "deleted": b"",
        "rotated": b"",
        "replaced": (tmp_path / "another").read_bytes(),
        "shortened": path.read_bytes()[: len(path.read_bytes()) // 2],
        "edited": path.read_bytes().replace(b"1", b"3"),
    }[what]
    if what == "rotated":
        path.rename(tmp_path / "out.1")
    path.unlink(missing_ok=True)
    if content:
        path.write_bytes(content)
    caplog.clear()
    worker = Worker(tmp_path, feeds, store)
    worker.page(item(2))
    await worker.close()
    assert "is not as the interrupted crawl left it" in caplog.text
    if what == "rotated":
        assert (tmp_path / "out.1").stat().st_size
    if not content:
        assert read(path, format_) == [2]
    elif format_ not in ("jsonlines", "csv"):
        assert (tmp_path / "out.part-1").read_bytes() == content
        assert read(path, format_) == [2]
    else:
        last_line = content.rfind(b"\n") + 1
        assert path.read_bytes().startswith(content[:last_line])
        if format_ == "jsonlines":
            assert read(path, format_)[-1] == 2


@pytest.mark.parametrize(
    ("data", "whole", "mended"),
    [
        (b"", True, b""),
        (b"a\nb\n", False, b"a\nb\n"),
        (b"a\nb", True, b"a\nb\n"),
        (b"a\nb", False, b"a\n"),
        (b"b", False, b""),
        (b"a\n" + b"b" * (1 << 20), False, b"a\n" + b"b" * (1 << 20) + b"\n"),
    ],
)
def test_mending(tmp_path: Path, data: bytes, whole: bool, mended: bytes) -> None:
    """A last line without its end is ended if it is whole or too long to tell, and cut off if not."""
    path = tmp_path / "out"
    path.write_bytes(data)
    cut = mend_last_line(str(path), lambda line: whole)
    assert path.read_bytes() == mended
    assert cut == max(len(data) - len(mended), 0)


@with_loop
async def test_columns_are_those_of_the_header(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A CSV file goes on with the columns it began with, whatever items and settings say now."""
    path = tmp_path / "out.csv"
    store = Store()
    Worker(tmp_path, {path: {"format": "csv"}}, store).page({"b": 1, "a": 2})
    Worker(tmp_path, {path: {"format": "csv"}}, store).page({"a": 4, "b": 3})
    Worker(tmp_path, {path: {"format": "csv", "fields": ["a"]}}, store).page({"a": 6, "b": 5})
    assert path.read_text().split() == ["b,a", "1,2", "3,4", "5,6"]
    assert "keeps the columns" in caplog.text


@pytest.mark.skipif(
    "dropped fields" not in inspect.getsource(CsvItemExporter), reason="Scrapy has no such warning"
)
@with_loop
async def test_dropped_columns_are_warned_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Scrapy's warning comes also where the columns were found by an earlier run."""
    feeds = {tmp_path / "out": {"format": "csv"}}
    store = Store()
    Worker(tmp_path, feeds, store).page({"a": 1})
    Worker(tmp_path, feeds, store).page({"a": 1, "b": 2})
    assert "dropped fields ['b']" in caplog.text


@with_loop
async def test_subclasses_of_the_projects_exporters_and_storages(tmp_path: Path) -> None:
    """They stay in use, and are covered."""
    opened: list[str] = []

    class Opening(JsonLinesItemExporter):
        def start_exporting(self) -> None:
            self.file.write(b'{"n": "-1", "text": "\\u00fc,\\"\'<&\\n"}\n')

    class Storing(FileFeedStorage):
        def store(self, file: Any) -> None:
            opened.append(self.path)
            return super().store(file)

    more = {"FEED_EXPORTERS": {"own": Opening}, "FEED_STORAGES": {"file": Storing}}
    uri = (tmp_path / "out").as_uri()
    store = Store()
    worker = Worker(tmp_path, {uri: {"format": "own"}}, store, **more)
    worker.page(item(1))
    worker.kill()
    worker = Worker(tmp_path, {uri: {"format": "own"}}, store, **more)
    worker.page(item(2))
    await worker.close()
    assert read(tmp_path / "out", "jsonlines") == [-1, 1, 2]
    assert opened == [str(tmp_path / "out")]
    assert worker.crawler.stats is not None
    assert worker.crawler.stats.get_value("feedexport/success_count/Storing") == 1


@with_loop
async def test_encodings_with_a_bom(tmp_path: Path) -> None:
    """The mark of the byte order stands at the beginning of the file, and nowhere else."""
    xml, csv_ = tmp_path / "out.xml", tmp_path / "out.csv"
    store = Store()
    feeds = {path: {"format": path.suffix[1:], "encoding": "utf-16"} for path in (xml, csv_)}
    for n in range(3):
        worker = Worker(tmp_path, feeds, store)
        worker.page(item(n))
        assert [int(one[0].text or "") for one in ET.fromstring(xml.read_bytes())] == list(range(n + 1))
        worker.kill()
    text = csv_.read_bytes().decode("utf-16")
    assert "\ufeff" not in text
    assert [row["n"] for row in csv.DictReader(io.StringIO(text, newline=""))] == ["0", "1", "2"]


# Not covered


class Foreign(BaseItemExporter):
    """A format that nothing is known of."""

    def __init__(self, file: Any, **kwargs: Any) -> None:
        super().__init__(dont_fail=True, **kwargs)
        self.file = file

    def export_item(self, item: Any) -> None:
        self.file.write(item["n"].encode())


class OwnOpen(FileFeedStorage):
    def open(self, spider: Any) -> Any:
        return super().open(spider)


GZIP = "scrapy.extensions.postprocessing.GzipPlugin"
UNCOVERED: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("postprocessing", {"format": "json", "postprocessing": [GZIP]}, {}),
    ("Foreign", {"format": "foreign"}, {"FEED_EXPORTERS": {"foreign": Foreign}}),
    ("OwnOpen", {"format": "json"}, {"FEED_STORAGES": {"": OwnOpen, "file": OwnOpen}}),
]


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize(("why", "options", "more"), UNCOVERED, ids=[one[0] for one in UNCOVERED])
@with_loop
async def test_what_is_not_covered(
    tmp_path: Path, why: str, options: Any, more: Any, overwrite: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """One warning at the start; a resumed crawl renames the file that it cannot continue."""
    path = tmp_path / "out"
    store = Store()
    contents = []
    for n in range(3):
        caplog.clear()
        worker = Worker(tmp_path, {path: {**options, "overwrite": overwrite}}, store, **more)
        (warning,) = [one for one in caplog.messages if "not covered" in one]
        assert why in warning
        worker.page(item(n))
        await worker.close()
        contents.append(path.read_bytes())
    assert [(tmp_path / f"out.part-{n}").read_bytes() for n in (1, 2)] == contents[:2]


class Elsewhere(BlockingFeedStorage):
    """A remote storage."""

    def __init__(self, uri: str, *, feed_options: Any = None) -> None:
        self.uri = uri

    def store(self, file: Any) -> None:
        file.seek(0)
        stored.append((self.uri, read_all(file)))

    def _store_in_thread(self, file: Any) -> None: ...


stored: list[tuple[str, bytes]] = []


def read_all(file: Any) -> bytes:
    data: bytes = file.read()
    file.close()
    return data


@with_loop
async def test_batches_elsewhere_go_on_counting(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A resumed crawl does not overwrite the batches that are there. The password is kept nowhere."""
    stored.clear()
    store = Store()
    feeds = {"else://me:secret@127.0.0.1/%(batch_id)d.jsonl": {"format": "jsonlines", "batch_item_count": 2}}
    more = {"FEED_STORAGES": {"else": Elsewhere}}
    worker = Worker(tmp_path, feeds, store, **more)
    worker.page(item(0), item(1), item(2))
    await turn()
    worker.kill()
    assert not any(b"secret" in name.encode() + mark for name, mark in store.marks.items())
    assert "secret" not in (tmp_path / "ha" / "feeds.journal").read_text()
    ours = [record.getMessage() for record in caplog.records if record.name.startswith("scrapy_ha")]
    assert any("Elsewhere gets a file only when it is complete" in line for line in ours)
    assert not any("secret" in line for line in ours)
    worker = Worker(tmp_path, feeds, store, **more)
    worker.page(item(3), item(4))
    await turn()
    assert [uri for uri, _ in stored] == [f"else://me:secret@127.0.0.1/{n}.jsonl" for n in (1, 2)]


@with_loop
async def test_standard_output(tmp_path: Path, caplog: pytest.LogCaptureFixture, capfdbinary: Any) -> None:
    """It gets what a page gave when the page is done."""
    worker = Worker(tmp_path, {"stdout:": {"format": "jsonlines"}}, Store())
    assert "standard output cannot be taken back" in caplog.text
    page = worker.start_page({"n": 1})
    assert capfdbinary.readouterr().out == b""
    worker.settle(page)
    assert capfdbinary.readouterr().out == b'{"n": 1}\n'


@with_loop
async def test_what_is_no_ordinary_file(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    worker = Worker(tmp_path, {"/dev/null": {"format": "json"}}, Store(resumed=True))
    worker.page(item(1))
    assert "no ordinary file" in caplog.text


@with_loop
async def test_more_items_than_are_held(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """They are written early, with one warning; other pages stay exact."""
    path = tmp_path / "out"
    store = Store()
    feeds = {path: {"format": "jsonlines"}}
    worker = Worker(tmp_path, feeds, store, HA_FEEDS_HOLD_LIMIT="3")
    worker.start_page(*map(item, range(7)))
    worker.page(item(7))
    assert read(path, "jsonlines") == [0, 1, 2, 3, 4, 5, 7]
    assert caplog.text.count("HA_FEEDS_HOLD_LIMIT") == 1
    worker.settle(worker.start_page(item(8)))
    worker.kill()
    Worker(tmp_path, feeds, store).page(item(8))
    assert read(path, "jsonlines") == [0, 1, 2, 3, 4, 5, 7, 8]


# Faults


@pytest.mark.parametrize("format_", FORMATS)
@with_loop
async def test_no_space(tmp_path: Path, format_: str) -> None:
    """The page is not done, nor is any later one; the file stays at its last good page, whole."""
    path = tmp_path / "out"
    store = Store()
    worker = Worker(tmp_path, {path: {"format": format_}}, store)
    worker.page({"n": "1", "text": "ü,\"'<&\n"})
    before = path.read_bytes()
    page, later = worker.start_page(item(2, "x" * 100)), worker.start_page(item(3))
    with no_space(len(before) + 50), pytest.raises(StoreFull, match="out cannot grow"):
        worker.settle(page)
    assert path.read_bytes() == before
    with pytest.raises(StoreFull):
        worker.settle(later)
    with pytest.raises(StoreFull):
        worker.acknowledge()
    await worker.close()
    assert path.read_bytes() == before
    worker = Worker(tmp_path, {path: {"format": format_}}, store)
    worker.page(item(2))
    assert read(path, format_) == [1, 2]


@with_loop
async def test_no_space_in_one_of_two_feeds(tmp_path: Path) -> None:
    """What cannot be in all feeds of a page is cut back in all, and no later page is written to any."""
    feeds = {tmp_path / "small": {"format": "csv"}, tmp_path / "large": {"format": "xml"}}
    worker = Worker(tmp_path, {**feeds, "/dev/null": {"format": "json"}}, Store())
    worker.page(item(1))
    before = [path.read_bytes() for path in feeds]
    page, later = worker.start_page(item(2)), worker.start_page(item(3))
    with no_space(len(before[1]) + 10), pytest.raises(StoreFull):
        worker.settle(page)
    with pytest.raises(StoreFull):
        worker.settle(later)
    worker.give(item(4))
    await worker.close()
    assert [path.read_bytes() for path in feeds] == before
    assert [slot.itemcount for slot in worker.exporter.slots if slot.uri == "/dev/null"] == [2]


@with_loop
async def test_no_space_for_the_first_file(tmp_path: Path) -> None:
    """Nothing half written stays: a file that could not be begun is empty, then begun afresh."""
    path = tmp_path / "out"
    store = Store()
    worker = Worker(tmp_path, {path: {"format": "json"}}, store)
    page = worker.start_page(item(1, "x" * 200))
    with no_space(150), pytest.raises(StoreFull):
        worker.settle(page)
    await worker.close()
    assert not path.exists() or not path.stat().st_size
    Worker(tmp_path, {path: {"format": "json"}}, store).page(item(1))
    assert read(path, "json") == [1]


@with_loop
async def test_file_that_cannot_be_opened(tmp_path: Path) -> None:
    """The page is not done: its items are nowhere."""
    (tmp_path / "sub").write_text("a file where a directory is needed")
    worker = Worker(tmp_path, {tmp_path / "sub" / "out": {"format": "json"}}, Store())
    with pytest.raises(StoreError, match="sub"):
        worker.settle(worker.start_page(item(1)))


@with_loop
async def test_journal_that_cannot_be_written(tmp_path: Path) -> None:
    """An error at the start, where Scrapy only logs it, is met by the first page."""
    (tmp_path / "ha").write_text("a file where a directory is needed")
    worker = Worker(tmp_path, {tmp_path / "out": {"format": "json"}}, Store())
    with pytest.raises(StoreError, match="ha"):
        worker.settle(worker.start_page())


@with_loop
async def test_fsync(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files that were written since the last time, closed batches too, new ones with their directory."""
    synced: list[str] = []
    real = os.fsync

    def fsync(fd: int) -> None:
        synced.append(os.path.relpath(os.readlink(f"/proc/self/fd/{fd}"), tmp_path))
        real(fd)

    monkeypatch.setattr(os, "fsync", fsync)
    feeds = {f"{tmp_path}/%(batch_id)d": {"format": "json", "batch_item_count": 2}}
    worker = Worker(tmp_path, feeds, Store())
    worker.page(item(0), item(1), item(2))
    await turn()
    worker.run.fsync()
    assert sorted(synced) == [".", "1", "2", "ha/feeds.journal"]
    synced.clear()
    worker.run.fsync()
    assert synced == []
    worker.page(item(3))
    (tmp_path / "2").rename(tmp_path / "moved")
    worker.run.fsync()


# What is stored


def test_marks_come_back() -> None:
    for fields in (None, ["a", "b"], {"a": "A"}):
        mark = Mark("file:///ü", 3, 17, 12345, b"\x00\xff", fields)
        assert Mark.load(mark.dump()) == mark


NAMES = st.sampled_from(["version", "uri", "batch_id", "items", "position", "last", "fields", "other"])
VALUES = st.recursive(
    st.none() | st.integers(-1, 2) | st.text(), lambda inner: st.lists(inner) | st.dictionaries(NAMES, inner)
)


@given(st.binary() | VALUES.map(lambda value: json.dumps(value).encode()))
def test_foreign_marks(stored: bytes) -> None:
    """Whatever is stored, it is refused or a mark."""
    try:
        mark = Mark.load(stored)
    except BadRecord:
        return
    assert Mark.load(mark.dump()) == mark


@with_loop
async def test_mark_that_cannot_be_read(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It is reported; what the file holds is kept."""
    path = tmp_path / "out"
    store = Store()
    feeds = {path: {"format": "json", "overwrite": True}}
    Worker(tmp_path, feeds, store).page(item(1))
    store.marks = dict.fromkeys(store.marks, b"\xff{")
    Worker(tmp_path, feeds, store).page(item(2))
    assert "cannot be read" in caplog.text
    kept = [read(one, "json") for one in tmp_path.glob("out*")]
    assert [2] in kept


def test_journal_undoes_what_came_later(tmp_path: Path) -> None:
    """In files that are still the same; a line cut by a kill counts as absent."""
    old, new, other, untouched = (tmp_path / name for name in ("old", "new", "other", "untouched"))
    for path in (old, other, untouched):
        path.write_bytes(b"123")
    journal = Journal(tmp_path / "journal")
    journal.begin(["b", "a"])
    journal.note(str(untouched), False)
    stands = journal.size
    for path in (old, new, other):
        journal.note(str(path), False)
    for path in (old, new, other, untouched):
        with path.open("ab") as file:
            file.write(b"456")
    other.rename(tmp_path / "moved")
    other.write_bytes(b"another file")
    with journal.path.open("ab") as file:
        file.write(b'{"path": "')

    again = Journal(tmp_path / "journal")
    assert again.undo(stands) == {"a", "b"}
    assert old.read_bytes() == b"123"
    assert not new.exists()
    assert other.read_bytes() == b"another file"
    assert untouched.read_bytes() == b"123456"
    assert again.size == stands == journal.path.stat().st_size


@given(st.binary(max_size=200), st.integers(0, 300))
def test_foreign_journal(noted: bytes, stands: int) -> None:
    """Whatever stands there, nothing is executed and nothing breaks."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "journal"
        path.write_bytes(noted)
        journal = Journal(path)
        journal.undo(stands)
        assert journal.size == path.stat().st_size


def test_absent_journal(tmp_path: Path) -> None:
    assert Journal(tmp_path / "none").undo(10) == frozenset()
