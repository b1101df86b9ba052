"""A generated website in a process of its own, steered by the URLs that are asked for.

========================================  ===================================================
``/p/<n>``                                page *n* of *pages*, with links, see :func:`links`
``/ok/<name>``                            200
``/status/<code>/<name>``                 always that status
``/fails/<times>/<code>/<name>``          that status *times* times, then 200; with ``?after=s``
                                          the failures carry a Retry-After of *s* seconds
``/reset/<times>/<name>``                 a TCP reset *times* times, then 200
``/slow/<seconds>/<name>``                200, after a while
``/to/<path>``                            302 to ``/<path>``
``/sitemap/<name>/<n>``                   a sitemap of *n* pages, ``/ok/<name>-<i>``
========================================  ===================================================
"""

from __future__ import annotations

import argparse
import importlib.util
import random
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

ROOT = Path(__file__).resolve().parents[2]


def _load_server() -> Any:
    """The demo's server, which is not part of an installed package."""
    name = "example_server"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, ROOT / "example_project" / "demo" / "server.py")
        assert spec is not None
        assert spec.loader is not None
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]


server = _load_server()
Answer = server.Answer

SEEDS = 300
"""Pages that nothing has to link to; every other one is linked by one page in particular."""
UNLINKED = 100
"""Of these, the first ones are linked by no page at all."""


def links(n: int, pages: int) -> list[int]:
    """Where page *n* leads: two pages of its own, and eight that many pages link to."""
    own = [child for child in (SEEDS + 2 * n, SEEDS + 2 * n + 1) if child < pages]
    return own + random.Random(n).choices(range(UNLINKED, pages), k=8)


class GeneratedSite:
    def __init__(self, pages: int) -> None:
        self.pages = pages

    def __call__(self, asked: Any) -> Any:
        kind, _, rest = asked.path[1:].partition("/")
        answer = getattr(self, f"on_{kind}", None)
        return answer and answer(asked, rest)

    def on_p(self, asked: Any, rest: str) -> Any:
        n = int(rest)
        if n < self.pages:
            return _html(f"page {n}", "".join(f'<a href="/p/{to}">{to}</a>' for to in links(n, self.pages)))
        return None

    def on_ok(self, asked: Any, rest: str) -> Any:
        return _html(rest)

    def on_status(self, asked: Any, rest: str) -> Any:
        return replace(_html(rest), status=int(rest.partition("/")[0]))

    def on_fails(self, asked: Any, rest: str) -> Any:
        times, code, _ = rest.split("/")
        if asked.attempt > int(times):
            return _html(rest)
        after = parse_qs(asked.query).get("after")
        return Answer(status=int(code), headers={"Retry-After": after[0]} if after else {})

    def on_reset(self, asked: Any, rest: str) -> Any:
        return replace(_html(rest), sent="whole" if asked.attempt > int(rest.partition("/")[0]) else "reset")

    def on_slow(self, asked: Any, rest: str) -> Any:
        return replace(_html(rest), delay=float(rest.partition("/")[0]))

    def on_to(self, asked: Any, rest: str) -> Any:
        return Answer(status=302, headers={"Location": f"/{rest}"})

    def on_sitemap(self, asked: Any, rest: str) -> Any:
        name, count = rest.split("/")
        base = f"http://{asked.headers['host']}/ok/{name}"
        urls = "".join(f"<url><loc>{base}-{n}</loc></url>" for n in range(int(count)))
        text = f'<urlset xmlns="http://www.sitemaps.org/schemas/sitemap/0.9">{urls}</urlset>'
        return Answer(text.encode(), headers={"Content-Type": "application/xml"})


def _html(title: str, content: str = "") -> Any:
    filler = "<p>text</p>" * 50
    return Answer(f"<html><head><title>{title}</title></head><body>{content}{filler}</body></html>".encode())


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--log", type=Path, required=True)
    parser.add_argument("--pages", type=int, default=0)
    parser.add_argument("--delay", type=float, default=0.0)
    parser.add_argument("--hosts", default="127.0.0.1")
    given = parser.parse_args()
    server.serve(GeneratedSite(given.pages), None, given.log, given.delay, given.hosts.split(","))
