"""``scrapy ha seen`` on both kinds of store, beside a crawl and alone."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import pytest
from scrapy import Request
from scrapy.settings import Settings
from scrapy.utils.request import fingerprint

from scrapy_ha.commands._sub import Parser, UsageError
from scrapy_ha.commands.seen import SeenCommand
from scrapy_ha.errors import StoreLocked
from scrapy_ha.frontier.leveldb import LevelDBFrontier
from scrapy_ha.loop import completed
from scrapy_ha.seen.store import SeenStore
from scrapy_ha.typing import Entry

URL, OTHER = "http://127.0.0.1/one", "http://127.0.0.1/other"
KEY = fingerprint(Request(URL))


class Frontiers:
    """The frontier of a crawl in a directory."""

    def __init__(self, directory: Path) -> None:
        self._frontier = LevelDBFrontier(directory / "frontier", identity="maker")

    def open(self) -> None:
        completed(self._frontier.open())

    def add(self, key: bytes) -> None:
        completed(self._frontier.offer([Entry(b"payload", "slot", key=key)]))

    def knows(self, key: bytes) -> bool:
        return bool(self._frontier.knows(key))

    def close(self) -> None:
        completed(self._frontier.close())


class Stores:
    """The store of the dupefilter in a directory."""

    def __init__(self, directory: Path) -> None:
        self._store = SeenStore(directory / "seen", capacity=100, identity="maker")

    def open(self) -> None:
        self._store.open()

    def add(self, key: bytes) -> None:
        self._store.add(key)

    def knows(self, key: bytes) -> bool:
        return key in self._store

    def close(self) -> None:
        self._store.close()


@pytest.fixture(params=[Frontiers, Stores])
def make(request: pytest.FixtureRequest) -> Any:
    return request.param


def run(directory: Path, *arguments: str) -> int:
    parser = Parser(prog="seen")
    command = SeenCommand()
    command.configure(parser)
    options: argparse.Namespace = parser.parse_args([*arguments, "--dir", str(directory)])
    return command.run(
        Settings({"REQUEST_FINGERPRINTER_CLASS": "scrapy.utils.request.RequestFingerprinter"}), options
    )


def test_beside_the_crawl(make: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Looking is possible while it runs; changing anything is not, and the owner is named."""
    store = make(tmp_path)
    store.open()
    store.add(KEY)
    assert run(tmp_path, "check", URL) == 0
    assert run(tmp_path, "check", URL, OTHER) == 1
    assert run(tmp_path, "stats") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"{URL}: seen, 20")
    assert lines[2] == f"{OTHER}: not seen"
    assert "1 URLs were seen, by fingerprints of maker" in lines[3]
    for action in (["forget", URL], ["reset", "--yes"]):
        with pytest.raises(StoreLocked):
            run(tmp_path, *action)
    assert store.knows(KEY)
    store.close()


def test_forgetting(make: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One URL, and then everything; it is new to the next run."""
    store = make(tmp_path)
    store.open()
    store.add(KEY)
    store.add(fingerprint(Request(OTHER)))
    store.close()
    assert run(tmp_path, "forget", URL, "http://127.0.0.1/never") == 0
    assert capsys.readouterr().out.splitlines() == [
        f"{URL}: forgotten",
        "http://127.0.0.1/never: was not seen",
    ]
    store = make(tmp_path)
    store.open()
    assert not store.knows(KEY)
    assert store.knows(fingerprint(Request(OTHER)))
    store.close()
    assert run(tmp_path, "reset", "--yes") == 0
    store = make(tmp_path)
    store.open()
    assert not store.knows(fingerprint(Request(OTHER)))
    store.close()


@pytest.mark.parametrize("answer", ["", "n", "no", "maybe"])
def test_reset_asks(make: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: str) -> None:
    """And does nothing without a yes."""
    store = make(tmp_path)
    store.open()
    store.add(KEY)
    store.close()
    monkeypatch.setattr("builtins.input", lambda prompt: answer)
    assert run(tmp_path, "reset") == 1
    assert run(tmp_path, "check", URL) == 0


def test_nothing_there(tmp_path: Path) -> None:
    """One clear line."""
    with pytest.raises(UsageError, match="there is no crawl in"):
        run(tmp_path, "stats")
    with pytest.raises(UsageError, match="name a URL or a --key"):
        run(tmp_path, "check")
    with pytest.raises(UsageError, match="scheme"):
        run(tmp_path, "check", "no url")
