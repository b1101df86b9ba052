"""The retry middleware in real crawls, against a server that misbehaves."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeAlias

import pytest
import scrapy
from faultserver import FaultServer, reply

RunCrawl: TypeAlias = Callable[..., dict[str, Any]]
Reports: TypeAlias = Callable[[str], dict[str, Any]]
"""Gives the report of a handler's crawl."""

NEW = scrapy.version_info >= (2, 19)
HANDLERS = ["twisted", *(["aiohttp"] if NEW and find_spec("aiohttp") else [])]
LOOPS = ["twisted", "twisted-select", *HANDLERS[1:]]
OPTIONAL = ["httpx"] if NEW and (find_spec("httpx2") or find_spec("httpx")) else []

CLASSES = {
    "dns": "dns",
    "refused": "refused",
    "slam": "connection",
    "rst": "connection",
    "tls-slam": "connection",
    "tls-rst": "connection",
    "tls-to-plain": "tls",
    "hang": "timeout",
    "stall": "timeout",
    "tls-hang": "timeout",
    "truncated": "truncated",
    "truncated-chunks": "truncated",
    "truncated-rst": "truncated",
    "garbage": "protocol",
    "bad-gzip": "decode",
    "no-tunnel": "proxy",
    "proxy-refused": "proxy",
    "scheme": "permanent",
}

NOT_FOR_THE_MIDDLEWARE = {"bad-gzip", "scheme"}
"""Scrapy hands it no exception of another middleware's ``process_response``; and it does not retry
what is permanent."""

LESS_IS_SAID = {("httpx", "truncated-rst"): "connection"}
"""httpx does not say that the reset came in the middle of a body."""

HTTP2 = [fault for fault in CLASSES if fault.startswith("tls-")] if find_spec("h2") else []


@pytest.fixture(scope="module")
def server() -> Iterator[FaultServer]:
    with FaultServer() as running:
        yield running


@pytest.fixture
def run_crawl(tmp_path: Path) -> RunCrawl:
    return lambda *args: _run_crawl(tmp_path, *args)


def _run_crawl(directory: Path, crawl: str, handler: str, given: Any) -> dict[str, Any]:
    script = Path(__file__).with_name("retry_crawls.py")
    done = subprocess.run(
        [sys.executable, "-W", "error::scrapy.exceptions.ScrapyDeprecationWarning", str(script)]
        + [crawl, handler, json.dumps(given)],
        cwd=directory,
        # However slow the name server is to say that it does not know a name.
        env={**os.environ, "RES_OPTIONS": "timeout:1 attempts:1"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    report: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    report["log"] = done.stderr
    return report


@contextmanager
def side_by_side(
    crawl: str, handlers: Sequence[str], given: Callable[[str], Any], paths: pytest.TempPathFactory
) -> Iterator[Reports]:
    """One *crawl* for each handler, all at once: what they do most is wait."""
    with ThreadPoolExecutor(len(handlers)) as pool:
        reports = {
            handler: pool.submit(_run_crawl, paths.mktemp(crawl), crawl, handler, given(handler))
            for handler in handlers
        }
        yield lambda handler: reports[handler].result()


@pytest.fixture(scope="module")
def classes_under(server: FaultServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reports]:
    """What each fault was classified as under a download handler; one crawl for each handler."""

    def given_to(handler: str) -> Any:
        given: dict[str, tuple[str, str | None]] = {
            "no-tunnel": ("https://127.0.0.1:1/", server.url("no-tunnel")),
            "proxy-refused": ("http://127.0.0.1:1/", server.url("refused")),
        }
        given.update({fault: (server.url(fault), None) for fault in CLASSES if fault not in given})
        if handler == "http2":
            given = {fault: given[fault] for fault in HTTP2}
        return given

    handlers = [*HANDLERS, *OPTIONAL, *(["http2"] if HTTP2 else [])]
    with side_by_side("faults", handlers, given_to, tmp_path_factory) as reports:
        yield reports


@pytest.mark.parametrize(
    ("handler", "fault"),
    [
        *((handler, fault) for handler in [*HANDLERS, *OPTIONAL] for fault in CLASSES),
        *(("http2", fault) for fault in HTTP2),
    ],
)
def test_same_class_under_every_handler(handler: str, fault: str, classes_under: Reports) -> None:
    """By the exception that reaches the errback, and by what the middleware saw at all attempts."""
    cls = LESS_IS_SAID.get((handler, fault), CLASSES[fault])
    tries = 1 if cls == "tls" else 2  # that is never retried
    by_middleware = [None, None] if fault in NOT_FOR_THE_MIDDLEWARE else [cls, {cls: tries}]
    assert classes_under(handler)[fault] == [cls, *by_middleware]


@pytest.fixture(scope="module")
def waits(
    server: FaultServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[dict[str, tuple[str, str]], Reports]]:
    """For each loop the two sites that its crawl met, and its report."""
    patience = [reply(429, Retry_After="1")] * 2
    after_patience = [*patience, reply(200, b"at last")]
    sites = {
        loop: (
            server.site({"/page": after_patience, "/quick": [reply(200)], "/file": after_patience}),
            server.site({"/robots.txt": [*patience, reply(200)], "/obeys": [reply(200)]}),
        )
        for loop in LOOPS
    }

    def given_to(loop: str) -> Any:
        site, other = sites[loop]
        return {
            "pages": [site + "/page", site + "/quick"],
            "with_file": [site + "/quick"],
            "file": site + "/file",
            "behind_robots": other + "/obeys",
        }

    with side_by_side("waits", LOOPS, given_to, tmp_path_factory) as reports:
        yield sites, reports


@pytest.mark.parametrize("loop", LOOPS)
def test_waits_without_our_scheduler(
    loop: str, server: FaultServer, waits: tuple[dict[str, tuple[str, str]], Reports]
) -> None:
    """A page, a file and ``robots.txt`` are asked for again when the server said, and not in a loop."""
    sites, reports = waits
    site, other = sites[loop]
    pages = [site + "/page", site + "/quick"]
    report = reports(loop)
    assert sorted(report["parsed"]) == sorted([*pages, other + "/obeys"])
    for url in (site + "/page", site + "/file", other + "/robots.txt"):
        first, second, third = server.hits[url]
        assert second - first >= 1.0, url
        assert third - second >= 1.0, url
    assert server.hits[site + "/quick"][0] < server.hits[other + "/robots.txt"][1]
    assert server.hits[other + "/obeys"][0] > server.hits[other + "/robots.txt"][2]
    assert report["stats"]["file_status_count/downloaded"] == 1
    assert report["stats"]["ha/retry/retry_after"] == 6
    assert report["stats"]["ha/retry/throttled"] == 6
    assert report["reason"] == "finished"


@pytest.mark.parametrize("handler", HANDLERS)
def test_closing_ends_the_wait(handler: str, server: FaultServer, run_crawl: RunCrawl) -> None:
    """The spider closes within a second or so, and what waited is not sent early."""
    patience = [reply(503, Retry_After="50")]
    site = server.site({"/patient": patience, "/last": [reply(200)]})
    other = server.site({"/robots.txt": patience})
    given = {"patient": site + "/patient", "behind_robots": other + "/obeys", "last": site + "/last"}
    started = time.monotonic()
    report = run_crawl("closes", handler, given)
    assert time.monotonic() - started < 20
    assert time.monotonic() - server.hits[site + "/last"][0] < 4
    assert report["reason"] == "enough"
    assert len(server.hits[site + "/patient"]) == 1
    assert len(server.hits[other + "/robots.txt"]) == 1


SLOW = {f"/slow{n}": [reply(429, Retry_After="2"), reply(200)] for n in range(4)}
QUICK = {f"/quick{n}": [reply(200)] for n in range(20)}


@pytest.fixture(scope="module")
def keeps(
    server: FaultServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[dict[str, str], Reports]]:
    """For each handler the site that its crawl met, and its report."""
    pages = {**SLOW, "/down": [reply(500)], **QUICK}
    sites = {handler: server.site(pages) for handler in HANDLERS}

    def given_to(handler: str) -> Any:
        return {"pages": [sites[handler] + path for path in pages]}

    with side_by_side("frontier", HANDLERS, given_to, tmp_path_factory) as reports:
        yield sites, reports


@pytest.mark.parametrize("handler", HANDLERS)
def test_frontier_keeps_the_delay(
    handler: str, server: FaultServer, keeps: tuple[dict[str, str], Reports]
) -> None:
    """Four pages wait under a concurrency of two, and twenty others pass them; one given up is dead."""
    sites, reports = keeps
    site, report = sites[handler], reports(handler)
    assert sorted(report["parsed"]) == sorted(site + path for path in (*SLOW, *QUICK))
    for path in SLOW:
        first, second = server.hits[site + path]
        assert second - first >= 2.0
    last_quick = max(server.hits[site + path][0] for path in QUICK)
    assert last_quick < min(server.hits[site + path][1] for path in SLOW)
    assert len(server.hits[site + "/down"]) == 2
    assert report["stats"]["ha/scheduler/delayed"] == 5
    assert report["stats"]["ha/scheduler/dead"] == 1
    assert report["stats"]["ha/retry/gave_up/server"] == 1
    assert report["stats"]["retry/max_reached"] == 1
    assert report["reason"] == "finished"
