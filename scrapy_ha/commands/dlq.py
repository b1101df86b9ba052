"""``scrapy ha dlq``: the requests that a crawl gave up."""

from __future__ import annotations

import argparse
import json
import math
import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib import import_module
from itertools import islice
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from scrapy.utils.misc import load_object

from scrapy_ha.commands._output import output
from scrapy_ha.commands._sub import UsageError, add_crawl, crawl
from scrapy_ha.deadletter import DeadLetter
from scrapy_ha.errors import BadRecord, StoreError
from scrapy_ha.loop import completed
from scrapy_ha.pipelines.jsonlines import to_line
from scrapy_ha.serialize import describe_request, without_meta
from scrapy_ha.settings import read
from scrapy_ha.state import META_KEY
from scrapy_ha.typing import Dead, Replay

if TYPE_CHECKING:
    from pathlib import Path

    from scrapy.settings import BaseSettings

    from scrapy_ha.frontier.leveldb import LevelDBFrontier

BATCH = 1000
"""Requests that are replayed or purged in one step."""
ITEM_LINE_LIMIT = 2**20
"""Bytes of one line of the file of refused items that are shown."""

_DURATION = re.compile(r"(\d+(?:\.\d+)?)([smhdw]?)")
_SECONDS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
_RATE = re.compile(r"(\d+(?:\.\d+)?)(?:/([smh]))?")

_REPLAY_HELP = """\
Make requests that were given up ready again, with fresh attempts and past the duplicate filter. The
next start of the crawl sends them, and nothing else if the crawl was complete. A record stays until its
replay has succeeded; a request whose replay is still waiting is not replayed again. Not while the crawl
runs."""
_EXPORT_HELP = """\
Write the records with their requests to FILE.jsonl, one JSON object per line, in UTF-8; bodies in
Base64. Works while the crawl runs. The file appears when it is complete; until then it is
FILE.jsonl.part."""


@dataclass(frozen=True)
class Letter:
    """One request that was given up, with its record."""

    dead: Dead
    record: DeadLetter

    @classmethod
    def of(cls, dead: Dead) -> Letter:
        return cls(dead, DeadLetter.unpack(dead.record))

    def request(self) -> dict[str, Any]:
        """What the request is; empty when it cannot be read."""
        try:
            return describe_request(self.dead.payload)
        except BadRecord:
            return {}

    @property
    def url(self) -> str:
        return self.record.url or str(self.request().get("url", ""))

    def full(self) -> dict[str, Any]:
        """All that is known, as plain data."""
        record = {name: value for name, value in asdict(self.record).items() if value}
        record["class"] = record.pop("cls", "")
        for error in record.get("errors", ()):
            error["class"] = error.pop("cls")
        described = {
            "id": self.dead.id,
            "pending": self.dead.pending,
            **record,
            "url": self.url,
            "slot": self.dead.slot,
            "request": self.request() or None,
        }
        return described


class DlqCommand:
    def configure(self, parser: argparse.ArgumentParser) -> None:
        actions = parser.add_subparsers(metavar="ACTION", required=True)

        def add(name: str, action: Action, summary: str, description: str = "") -> argparse.ArgumentParser:
            one = actions.add_parser(name, help=summary, description=description or f"{summary}.")
            one.set_defaults(action=action)
            return one

        listed = add("list", _list, "list what was given up, in a table")
        _add_filters(listed)
        _add_items(listed)
        add_crawl(listed)
        shown = add("show", _show, "show one in full")
        shown.add_argument("id", metavar="ID", type=_identifier)
        add_crawl(shown)
        shown.set_defaults(ids=None, classes=None, host=None, older=None, newer=None, limit=None)
        replayed = add("replay", _replay, "try them again", _REPLAY_HELP)
        _add_filters(replayed)
        replayed.add_argument(
            "--rate",
            metavar="N/s",
            type=_rate,
            help="no faster than this, such as 5/s or 20/m, counted from now; default: at once",
        )
        add_crawl(replayed)
        purged = add(
            "purge", _purge, "forget them", "Forget requests that were given up; --all for all of them."
        )
        _add_filters(purged)
        purged.add_argument("--all", action="store_true", help="without any filter")
        add_crawl(purged)
        exported = add("export", _export, "write them to a file, as JSON lines", _EXPORT_HELP)
        exported.add_argument("file", metavar="FILE.jsonl", help='"-" for the standard output')
        _add_filters(exported)
        _add_items(exported)
        add_crawl(exported)

    def run(self, settings: BaseSettings, options: argparse.Namespace) -> int:
        status: int = options.action(settings, options)
        return status


Action = Callable[["BaseSettings", argparse.Namespace], int]


def _add_filters(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--class", metavar="CLASS", dest="classes", action="append", help="failure class; repeatable"
    )
    parser.add_argument("--host", metavar="HOST", help="of the URL, or the download slot")
    parser.add_argument(
        "--older-than", metavar="AGE", dest="older", type=_duration, help="such as 90s, 2h, 7d"
    )
    parser.add_argument("--newer-than", metavar="AGE", dest="newer", type=_duration)
    parser.add_argument(
        "--id", metavar="ID", dest="ids", type=_identifier, action="append", help="repeatable"
    )
    parser.add_argument("--limit", metavar="N", type=_identifier, help="no more than this")


def _add_items(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--items", action="store_true", help="the items that could not be stored, instead")


# Actions


def _list(settings: BaseSettings, options: argparse.Namespace) -> int:
    if options.items:
        return _print_items(settings, options)
    number = 0
    for letter in _matching(_frontier(settings, options)[1], options):
        if not number:
            print(f"{'ID':>8}  {'GIVEN UP':<19}  {'CLASS':<12}  URL, REASON")
        number += 1
        note = " (pending again)" if letter.dead.pending else ""
        print(
            f"{letter.dead.id:>8}  {_moment(letter.record.time):<19}  {_plain(letter.record.cls):<12}  "
            f"{_plain(letter.url) or '(no URL)'}{note}"
        )
        print(f"{'':>45}{_plain(letter.record.reason)}")
    print(f"{number} found")
    return 0


def _show(settings: BaseSettings, options: argparse.Namespace) -> int:
    path = _frontier(settings, options)[1]
    for dead in _reader().read_dead(path):
        if dead.id == options.id:
            letter = Letter.of(dead)
            shown = letter.full()
            traceback = shown.pop("traceback", "")
            sys.stdout.write(json.dumps(json.loads(to_line(shown)), indent=2) + "\n")
            if traceback:
                print("\n".join(map(_plain, traceback.splitlines())))
            return 0
    raise UsageError(f"there is no request {options.id} among those given up in {path}")


def _replay(settings: BaseSettings, options: argparse.Namespace) -> int:
    interval = 0.0 if options.rate is None else 1 / options.rate
    replayed = 0
    with _opened(settings, options) as frontier:
        start = frontier.clock.time()
        for letters in _batches(frontier, options):
            replays: list[Replay] = []
            for letter in letters:
                due = start + (replayed + len(replays)) * interval if interval else 0.0
                replays.append(Replay(letter.dead.id, due, _fresh(letter.dead.payload)))
            replayed += completed(frontier.replay(replays))
        completed(frontier.sync())
    over = f", over {replayed * interval:.0f} s" if interval and replayed else ""
    if replayed:
        print(f"{replayed} will be tried again{over}. The next start of the crawl sends them.")
    else:
        print("0 will be tried again: none matches, or they wait for that already")
    return 0


def _purge(settings: BaseSettings, options: argparse.Namespace) -> int:
    filters = (options.classes, options.host, options.older, options.newer, options.ids, options.limit)
    if options.all is (filters != (None,) * len(filters)):
        raise UsageError("say which ones to forget by filters (see -h), or all of them with --all")
    purged = 0
    with _opened(settings, options) as frontier:
        for letters in _batches(frontier, options):
            purged += completed(frontier.purge([letter.dead.id for letter in letters]))
        completed(frontier.sync())
    print(f"{purged} forgotten" if purged else "0 forgotten: none matches, or they are to be tried again")
    return 0


def _export(settings: BaseSettings, options: argparse.Namespace) -> int:
    written = 0
    try:
        with output(options.file) as file:
            if options.items:
                for line in _item_lines(settings, options):
                    file.write(line)
                    written += 1
            else:
                for letter in _matching(_frontier(settings, options)[1], options):
                    file.write(to_line(letter.full()))
                    written += 1
    except OSError as error:
        raise StoreError(f"{options.file} cannot be written: {error.strerror or error}") from error
    print(f"{written} written", file=sys.stderr if options.file == "-" else sys.stdout)
    return 0


# Which ones


def _frontier(settings: BaseSettings, options: argparse.Namespace) -> tuple[BaseSettings, Path]:
    """The settings of the crawl, and the directory of its frontier."""
    settings, path = crawl(settings, options)
    if options.dir is None or not _reader().is_frontier(path):
        path = path / "frontier"
    if not path.exists():
        raise UsageError(f"there is no crawl in {path.parent}: nothing was given up there")
    return settings, path


def _reader() -> Any:
    """The module that reads the store; without the store's client library it is an error of ours."""
    return import_module("scrapy_ha.frontier.reader")


def _matching(path: Path, options: argparse.Namespace) -> Iterator[Letter]:
    letters = (Letter.of(dead) for dead in _reader().read_dead(path))
    found = filter(_filter(options, time.time()), letters)
    return islice(found, options.limit)


def _filter(options: argparse.Namespace, now: float) -> Callable[[Letter], bool]:
    def matches(letter: Letter) -> bool:
        record = letter.record
        return (
            (options.ids is None or letter.dead.id in options.ids)
            and (options.classes is None or record.cls in options.classes)
            and (options.older is None or record.time <= now - options.older)
            and (options.newer is None or record.time >= now - options.newer)
            and (options.host is None or options.host in (letter.dead.slot, _host(letter.url)))
        )

    return matches


@contextmanager
def _opened(settings: BaseSettings, options: argparse.Namespace) -> Iterator[LevelDBFrontier]:
    """The frontier itself, which no crawl has open."""
    settings, path = _frontier(settings, options)
    frontier_class: type[LevelDBFrontier] = load_object("scrapy_ha.frontier.leveldb.LevelDBFrontier")
    frontier = frontier_class(
        path,
        max_deliveries=read(settings, "HA_MAX_DELIVERIES"),
        order=read(settings, "HA_QUEUE_ORDER"),
        begin=False,
    )
    completed(frontier.open())
    try:
        yield frontier
    finally:
        completed(frontier.close())


def _batches(frontier: LevelDBFrontier, options: argparse.Namespace) -> Iterator[list[Letter]]:
    """Those in the dead state that match, some at a time."""
    matches = _filter(options, frontier.clock.time())
    left = math.inf if options.limit is None else options.limit
    after = 0
    while left and (page := completed(frontier.dead(BATCH, after))):
        after = page[-1].id
        letters = [letter for letter in map(Letter.of, page) if not letter.dead.pending and matches(letter)]
        letters = letters[: int(min(left, BATCH))]
        left -= len(letters)
        if letters:
            yield letters


def _fresh(payload: bytes) -> bytes | None:
    """*payload* without what earlier attempts left in it; ``None`` when it cannot be read."""
    try:
        return without_meta(payload, META_KEY, "retry_times")
    except BadRecord:
        return None


# Items


def _item_lines(settings: BaseSettings, options: argparse.Namespace) -> Iterator[bytes]:
    """Lines of the file in which the spool keeps items that it could not store."""
    path = crawl(settings, options)[1]
    file = path / "dead.jsonl"
    if options.dir is None or not file.is_file():
        file = path / "spool" / "dead.jsonl"
    if not file.is_file():
        return
    with file.open("rb") as lines:
        number = 0
        while (options.limit is None or number < options.limit) and (line := lines.readline(ITEM_LINE_LIMIT)):
            if line.endswith(b"\n"):  # else it is being written, or was cut
                number += 1
                yield line


def _print_items(settings: BaseSettings, options: argparse.Namespace) -> int:
    number = 0
    for line in _item_lines(settings, options):
        print(_plain(line.decode("utf-8", "replace").rstrip("\n")))
        number += 1
    print(f"{number} found")
    return 0


# Text


def _host(url: str) -> str | None:
    try:
        return urlsplit(url).hostname
    except ValueError:
        return None


def _moment(seconds: float) -> str:
    try:
        return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds)) if seconds else "?"
    except (ValueError, OverflowError, OSError):
        return "?"


def _plain(text: str) -> str:
    """*text* without what a terminal would act upon."""
    return "".join(c if c.isprintable() else "?" for c in text)


def _identifier(text: str) -> int:
    if not (text.isascii() and text.isdigit() and 0 < int(text) < 2**63):
        raise argparse.ArgumentTypeError(f"{text!r} is no number such as list shows")
    return int(text)


def _duration(text: str) -> float:
    found = _DURATION.fullmatch(text.strip().lower())
    if found is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no duration such as 90s, 15m, 2h, 7d")
    return float(found[1]) * _SECONDS[found[2]]


def _rate(text: str) -> float:
    found = _RATE.fullmatch(text.strip().lower())
    if found is None or not float(found[1]):
        raise argparse.ArgumentTypeError(f"{text!r} is no rate such as 5/s or 20/m")
    return float(found[1]) / _SECONDS[found[2] or "s"]
