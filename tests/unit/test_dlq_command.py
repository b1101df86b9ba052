"""``scrapy ha dlq`` on a directory that no crawl has open, as a command and in parts."""

from __future__ import annotations

import json
import os
from base64 import b64decode
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from scrapy import Request, Spider
from scrapy.cmdline import execute
from scrapy.settings import Settings

from scrapy_ha.deadletter import DeadLetter
from scrapy_ha.frontier.leveldb import LevelDBFrontier
from scrapy_ha.loop import completed
from scrapy_ha.serialize import RequestCodec
from scrapy_ha.state import META_KEY, get_state
from scrapy_ha.typing import Entry, Settlement

Run = Callable[..., tuple[int, str, str]]
HOUR = 3600.0


class SomeSpider(Spider):
    name = "some"

    def parse_it(self, response: Any, k: int) -> None: ...


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs ``scrapy ha dlq`` on the crawl in *tmp_path*; exit status and output."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            execute(["scrapy", "ha", "dlq", *arguments, "--dir", str(tmp_path / "crawl")], Settings())
        captured = capsys.readouterr()
        return int(ended.value.code or 0), captured.out, captured.err

    return run


@pytest.fixture
def letters(tmp_path: Path) -> list[int]:
    """Five requests given up, of several classes, hosts and ages; their ids."""
    spider = SomeSpider()
    codec = RequestCodec(spider)
    frontier = LevelDBFrontier(tmp_path / "crawl" / "frontier")
    completed(frontier.open())
    now = frontier.clock.time()
    meta = {"own": (1, 2), META_KEY: {"attempts": {"dns": 3}}, "retry_times": 2}
    rich = Request(
        "http://a.test/form",
        spider.parse_it,
        "POST",
        {"X": "y"},
        b"a=1\xff",
        meta=meta,
        cb_kwargs={"k": 1},
        priority=-1,
    )
    for url, cls, age, record_url in (
        ("http://a.test/form", "dns", 0.0, True),
        ("http://a.test/2", "server", 2 * HOUR, True),
        ("http://b.test/3", "server", 50 * HOUR, True),
        ("http://b.test/4", "poison", 50 * HOUR, False),
    ):
        request = rich if url == rich.url else Request(url)
        completed(frontier.offer([Entry(codec.encode(request), url.split("/")[2])]))
        (lease,) = completed(frontier.lease(1, {}, (), 60))
        letter = DeadLetter(cls, f"why {url[-1]}", now - age, url=url if record_url else "")
        completed(frontier.settle([Settlement(lease, dead=letter.pack())]))
    completed(frontier.offer([Entry(b"\xffgarbage", "\x1b[31mc.test")]))
    (lease,) = completed(frontier.lease(1, {}, (), 60))
    completed(frontier.settle([Settlement(lease, dead=b"\xffgarbage")]))
    ids = [dead.id for dead in completed(frontier.dead(10))]
    completed(frontier.close())
    return ids


def look(tmp_path: Path) -> LevelDBFrontier:
    frontier = LevelDBFrontier(tmp_path / "crawl" / "frontier")
    completed(frontier.open())
    return frontier


def test_list(run: Run, letters: list[int]) -> None:
    """All of them, with what is known; also one whose record is garbage."""
    status, out, _ = run("list")
    assert status == 0
    assert "5 found" in out
    for text in ("http://a.test/form", "dns", "why 2", "poison", "http://b.test/4", "unreadable"):
        assert text in out


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--class", "server"], [2, 3]),
        (["--class", "server", "--class", "dns"], [1, 2, 3]),
        (["--host", "b.test"], [3, 4]),
        (["--older-than", "1h"], [2, 3, 4, 5]),
        (["--newer-than", "1d"], [1, 2]),
        (["--older-than", "60m", "--newer-than", "1.5d"], [2]),
        (["--id", "1", "--id", "4"], [1, 4]),
        (["--limit", "2"], [1, 2]),
        (["--class", "server", "--host", "b.test", "--limit", "9"], [3]),
        (["--class", "tls"], []),
    ],
)
def test_filters(
    run: Run, letters: list[int], tmp_path: Path, arguments: list[str], expected: list[int]
) -> None:
    """All filters given must hold; the same for every action."""
    status, out, _ = run("export", "-", *arguments)
    assert status == 0
    assert [json.loads(line)["id"] for line in out.splitlines()] == expected
    assert f"{len(expected)} found" in run("list", *arguments)[1]
    assert f"{len(expected)} will be" in run("replay", *arguments)[1]
    frontier = look(tmp_path)
    assert [dead.id for dead in completed(frontier.dead(9)) if dead.pending] == expected
    completed(frontier.close())


@pytest.mark.parametrize(
    "arguments",
    [
        ["--older-than", "soon"],
        ["--older-than", "-1h"],
        ["--newer-than", "1 fortnight"],
        ["--id", "0"],
        ["--id", "x"],
        ["--limit", "-1"],
        ["--limit", str(2**70)],
    ],
)
def test_bad_filters(run: Run, letters: list[int], arguments: list[str]) -> None:
    """One line that names the argument."""
    status, _, err = run("list", *arguments)
    assert status == 2
    assert arguments[0] in err
    assert len(err.splitlines()) == 1


def test_show_and_export_are_complete(run: Run, letters: list[int], tmp_path: Path) -> None:
    """The request in full, without its spider."""
    status, out, _ = run("show", "1")
    assert status == 0
    shown = json.loads(out)
    run("export", str(tmp_path / "out.jsonl"))
    lines = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert lines[0] == shown
    request = shown["request"]
    assert (shown["class"], shown["reason"], shown["slot"]) == ("dns", "why m", "a.test")
    assert (request["method"], request["callback"], request["cb_kwargs"]) == ("POST", "parse_it", {"k": 1})
    assert b64decode(request["body"]) == b"a=1\xff"
    assert request["headers"] == {"X": ["y"]}
    assert request["meta"]["own"] == [1, 2]
    assert lines[4]["request"] is None


def test_show_of_none(run: Run, letters: list[int]) -> None:
    """It is said, with the directory."""
    status, _, err = run("show", "99")
    assert status == 2
    assert "99" in err


def test_nothing_reaches_the_terminal_that_it_acts_upon(run: Run, tmp_path: Path) -> None:
    """Reasons and URLs come from servers."""
    frontier = look(tmp_path)
    completed(frontier.offer([Entry(b"x", "s")]))
    (lease,) = completed(frontier.lease(1, {}, (), 60))
    evil = "\x1b]0;owned\x07"
    letter = DeadLetter(evil, evil, 1e300, url=f"http://a.test/{evil}", traceback=evil)
    completed(frontier.settle([Settlement(lease, dead=letter.pack())]))
    completed(frontier.close())
    for arguments in (["list"], ["show", "1"]):
        status, out, _ = run(*arguments)
        assert status == 0
        assert "\x1b" not in out
        assert "\x07" not in out


def test_a_replay_starts_with_fresh_attempts(run: Run, letters: list[int], tmp_path: Path) -> None:
    """What earlier attempts left in the request is gone, all else is there."""
    run("replay", "--id", "1", "--id", "5")
    frontier = look(tmp_path)
    leases = completed(frontier.lease(9, {}, (), 60))
    request = RequestCodec(SomeSpider()).decode(leases[0].payload)
    assert get_state(request) == {}
    assert request.meta == {"own": (1, 2)}
    assert (request.body, request.cb_kwargs, request.method) == (b"a=1\xff", {"k": 1}, "POST")
    assert leases[1].payload == b"\xffgarbage"
    completed(frontier.close())


def test_purge(run: Run, letters: list[int]) -> None:
    """By filters, or all: never all by mistake."""
    assert run("purge")[0] == 2
    assert run("purge", "--all", "--class", "dns")[0] == 2
    assert "5 found" in run("list")[1]
    assert "2 forgotten" in run("purge", "--class", "server")[1]
    assert "3 found" in run("list")[1]
    assert "3 forgotten" in run("purge", "--all")[1]
    assert "0 found" in run("list")[1]


def test_more_than_one_batch(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit counts over all of them, and due times go on."""
    monkeypatch.setattr("scrapy_ha.commands.dlq.BATCH", 10)
    frontier = look(tmp_path)
    completed(frontier.offer([Entry(b"x", "s") for _ in range(45)]))
    leases = completed(frontier.lease(45, {}, (), 60))
    dead = DeadLetter("dns", "", frontier.clock.time()).pack()
    completed(frontier.settle([Settlement(lease, dead=dead) for lease in leases]))
    completed(frontier.close())
    assert "33 will be tried again, over 330 s" in run("replay", "--limit", "33", "--rate", "6/m")[1]
    frontier = look(tmp_path)
    counts = completed(frontier.counts())
    assert (counts.pending, counts.dead) == (33, 12)
    completed(frontier.close())
    assert "12 forgotten" in run("purge", "--all")[1]


@pytest.mark.parametrize("action", [["list"], ["show", "1"], ["replay"], ["purge", "--all"], ["export", "-"]])
def test_no_crawl_there(run: Run, tmp_path: Path, action: list[str]) -> None:
    """It is said, and no directory is made."""
    status, _, err = run(*action)
    assert status == 2
    assert str(tmp_path / "crawl") in err
    assert not (tmp_path / "crawl").exists()


@pytest.mark.parametrize("action", [["list"], ["replay"], ["purge", "--all"], ["export", "out.jsonl"]])
def test_a_foreign_directory(run: Run, tmp_path: Path, action: list[str]) -> None:
    """It is left as it is."""
    foreign = tmp_path / "crawl" / "frontier"
    foreign.mkdir(parents=True)
    (foreign / "thesis.txt").write_text("three years of work")
    status, _, err = run(*action)
    assert status == 2
    assert str(foreign) in err
    assert os.listdir(foreign) == ["thesis.txt"]
    assert not list(tmp_path.glob("out*"))


def test_refused_items(run: Run, tmp_path: Path) -> None:
    """They stand in the spool's own file, of which whole lines are shown."""
    assert "0 found" in run("list", "--items")[1]
    spool = tmp_path / "crawl" / "spool"
    spool.mkdir(parents=True)
    (spool / "dead.jsonl").write_bytes(b'{"reason": "no key", "item": "\x1b"}\n{"reason": "b"}\n{"cut')
    status, out, _ = run("list", "--items")
    assert (status, out.count("reason")) == (0, 2)
    assert "\x1b" not in out
    run("export", str(tmp_path / "items.jsonl"), "--items", "--limit", "1")
    assert (tmp_path / "items.jsonl").read_bytes() == b'{"reason": "no key", "item": "\x1b"}\n'


def test_an_export_that_cannot_be_written(run: Run, letters: list[int], tmp_path: Path) -> None:
    status, _, err = run("export", str(tmp_path / "no" / "such" / "file"))
    assert status == 2
    assert "cannot be written" in err
