"""``scrapy ha seen``: the URLs that a crawl has seen."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any

from scrapy import Request, Spider
from scrapy.crawler import Crawler
from scrapy.settings import Settings
from scrapy.utils.misc import build_from_crawler, load_object

from scrapy_ha.commands._sub import UsageError, add_crawl, crawl
from scrapy_ha.fingerprint import KEY, Fingerprints
from scrapy_ha.loop import completed

if TYPE_CHECKING:
    import argparse
    from pathlib import Path

    from scrapy.settings import BaseSettings

_CHECK_HELP = """\
Say of each URL whether it was seen, and when. Works while the crawl runs. Exit status: 0: all were
seen; 1: some were not."""
_FORGET_HELP = """\
Have URLs new again, so that they are fetched when they are met again. Not while the crawl runs."""
_RESET_HELP = """\
Forget all URLs that this crawl has seen. Requests that wait stay, and are fetched. Not while the crawl
runs; HA_SEEN_RESET does the same at the start of one."""


class SeenCommand:
    def configure(self, parser: argparse.ArgumentParser) -> None:
        actions = parser.add_subparsers(metavar="ACTION", required=True)
        stats = actions.add_parser("stats", help="how many, and how much space they take")
        stats.set_defaults(action=_stats)
        check = actions.add_parser("check", help="whether URLs were seen", description=_CHECK_HELP)
        check.set_defaults(action=_check)
        forget = actions.add_parser("forget", help="have URLs new again", description=_FORGET_HELP)
        forget.set_defaults(action=_forget)
        reset = actions.add_parser("reset", help="forget all of them", description=_RESET_HELP)
        reset.add_argument("--yes", action="store_true", help="do not ask")
        reset.set_defaults(action=_reset)
        for action in (check, forget):
            action.add_argument("urls", metavar="URL", nargs="*", help="of a GET request")
            action.add_argument(
                "--key", metavar="TEXT", dest="keys", action="append", default=[], help=f'a meta["{KEY}"]'
            )
        for action in (stats, reset):
            add_crawl(action)
        for action in (check, forget):
            add_crawl(action, "--spider")

    def run(self, settings: BaseSettings, options: argparse.Namespace) -> int:
        settings, path = crawl(settings, options)
        status: int = options.action(settings, path, options)
        return status


def _stats(settings: BaseSettings, path: Path, options: argparse.Namespace) -> int:
    for store in _stores(path):
        with _read(store) as seen:
            count = seen.count()
            print(
                f"{store}: {count} URLs were seen, by fingerprints of {seen.identity or 'an unnamed maker'}"
            )
        files = [file for file in store.rglob("*") if file.is_file()]
        bloom = sum(file.stat().st_size for file in files if file.parent.name == "bloom")
        rest = sum(file.stat().st_size for file in files) - bloom
        print(f"  {rest / 1e6:.1f} MB on disk, and {bloom / 1e6:.1f} MB for the Bloom filter")
    return 0


def _check(settings: BaseSettings, path: Path, options: argparse.Namespace) -> int:
    wanted = _keys(settings, options)
    missing = False
    for name, key in wanted.items():
        times = []
        for store in _stores(path):
            with _read(store) as seen:
                times.append(seen.when(key))
        found = max((when for when in times if when is not None), default=None)
        missing |= found is None
        when = "" if found is None else time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(found))
        print(f"{name}: " + (f"seen, {when}" if when else "not seen"))
    return int(missing)


def _forget(settings: BaseSettings, path: Path, options: argparse.Namespace) -> int:
    wanted = _keys(settings, options)
    for name, key in wanted.items():
        forgotten = False
        for store in _stores(path):
            forgotten |= _write(store, key)
        print(f"{name}: " + ("forgotten" if forgotten else "was not seen"))
    return 0


def _reset(settings: BaseSettings, path: Path, options: argparse.Namespace) -> int:
    stores = _stores(path)
    if not options.yes:
        answer = input(f"Forget all URLs that were seen in {path}? [y/N] ")
        if answer.strip().lower() not in {"y", "yes"}:
            print("nothing was done")
            return 1
    for store in stores:
        _write(store, None)
        print(f"{store}: forgotten")
    return 0


def _keys(settings: BaseSettings, options: argparse.Namespace) -> dict[str, bytes]:
    """What the arguments name, and what the stores know it by."""
    if not options.urls and not options.keys:
        raise UsageError("name a URL or a --key")
    crawler = Crawler(Spider, Settings(settings))
    maker = build_from_crawler(load_object(settings["REQUEST_FINGERPRINTER_CLASS"]), crawler)
    fingerprints = Fingerprints(maker)
    found = {}
    try:
        requests = [(url, Request(url)) for url in options.urls]
    except ValueError as error:
        raise UsageError(str(error)) from error
    requests += [(f"key {key}", Request("http://localhost", meta={KEY: key})) for key in options.keys]
    for name, request in requests:
        key = fingerprints.key_of(request)
        assert key is not None
        found[name] = key
    return found


def _stores(path: Path) -> list[Path]:
    """The stores there are below the directory of a crawl, or that one itself."""
    is_database: Any = import_module("scrapy_ha.leveldb.copy").is_database
    found = [one for one in (path, path / "frontier", path / "seen") if is_database(one)]
    if not found:
        raise UsageError(f"there is no crawl in {path}: nothing was seen there")
    return found


@contextmanager
def _read(store: Path) -> Iterator[Any]:
    if _is_frontier(store):
        with import_module("scrapy_ha.frontier.reader").read_seen(store) as seen:
            yield seen
    else:
        with import_module("scrapy_ha.seen.reader").read_store(store) as seen:
            yield seen


def _write(store: Path, key: bytes | None) -> bool:
    """Forget *key*, or everything; whether it was seen."""
    if _is_frontier(store):
        frontier_class = load_object("scrapy_ha.frontier.leveldb.LevelDBFrontier")
        frontier = frontier_class(store, begin=False, reset_seen=key is None)
        completed(frontier.open())
        try:
            return bool(key is None or completed(frontier.forget([key])))
        finally:
            completed(frontier.close())
    return bool(import_module("scrapy_ha.seen.store").forget_in(store, key))


def _is_frontier(store: Path) -> bool:
    return b"scrapy_ha frontier" in (store / "FORMAT.json").read_bytes()[:1000]
