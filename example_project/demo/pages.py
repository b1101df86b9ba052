"""The standard library's documentation as a website: one page per module, as pydoc renders it.

Links lead to the site's own URLs. As on a real site the same page is linked many times and not
always spelt the same: with the parameters of its query in another order, or with a fragment.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import pkgutil
import platform
import pydoc
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from html import escape, unescape
from pathlib import Path
from urllib.parse import urljoin, urlsplit

COVER = "/"
INDEX = "/index.html"
RENDER_SECONDS = 120.0
"""A worker that takes longer than this is ended, and what it was importing is left out."""

# Importing these opens a window or a browser, prints, or runs tests; some need a display.
_UNWANTED = {
    "__main__", "__phello__", "antigravity", "idlelib", "pydoc_data", "test", "tests", "this", "tkinter",
    "turtle", "turtledemo",
}  # fmt: skip
_LINK = re.compile(r'<a href="([^"]*)"[^>]*>(.*?)</a>', re.DOTALL)
_SITE_PAGE = re.compile(r"([\w.]+)\.html(#.*)?")


def modules() -> list[str]:
    """Names of the standard library's modules that can be looked at safely, found without importing."""
    names: list[str] = []
    for name in sorted(sys.stdlib_module_names):
        if name in _UNWANTED or name.startswith("_test"):
            continue
        try:
            spec = importlib.util.find_spec(name)
        except (ImportError, ValueError):  # of another platform; `__main__`
            continue
        if spec is not None:
            names.append(name)
            names += _submodules(spec.submodule_search_locations or (), name)
    return names


def _submodules(directories: Sequence[str], package: str) -> Iterator[str]:
    for found in pkgutil.iter_modules(list(directories)):
        if found.name not in _UNWANTED:
            name = f"{package}.{found.name}"
            yield name
            if found.ispkg:
                inside = [os.path.join(directory, found.name) for directory in directories]
                yield from _submodules(inside, name)


def prepare(cache: Path) -> Path:
    """The directory of the rendered pages, made under *cache* when this Python has none yet."""
    ready = cache / f"pydoc-{platform.python_version()}"
    if not ready.is_dir():
        print("Rendering the standard library's documentation, once ...", flush=True)
        cache.mkdir(parents=True, exist_ok=True)
        making = Path(tempfile.mkdtemp(prefix="making-", dir=cache))
        try:
            _render_all(modules(), making, workers=max(2, min(4, os.cpu_count() or 1)))
            making.rename(ready)
        finally:
            shutil.rmtree(making, ignore_errors=True)
    return ready


def load(directory: Path) -> dict[str, bytes]:
    """The whole site: path to page, cover and index included."""
    names = sorted(file.name[: -len(".html")] for file in directory.glob("*.html"))
    known = set(names)
    site = {COVER: _cover(), INDEX: _index(names)}
    for n, name in enumerate(names):
        neighbours = {"previous": names[n - 1], "next": names[(n + 1) % len(names)]}
        links = [f'<a href="{target}.html">{label}</a>' for label, target in neighbours.items()]
        navigation = f'<p><a href=".">index</a> | {" | ".join(links)}</p>'
        text = (directory / f"{name}.html").read_text("utf-8")
        text = text.replace("</head><body>", f"</head><body>{navigation}")
        text = text.replace("</body>", f"{navigation}</body>")
        site[f"/{name}.html"] = _own_links(text, known).encode("utf-8", "replace")
    return site


def reachable(site: Mapping[str, bytes]) -> set[str]:
    """Paths that a visitor can come to from the cover, by the links alone."""
    found = {COVER}
    waiting = [COVER]
    while waiting:
        path = waiting.pop()
        # All pages come from one renderer, which writes links in one way: no need for a parser.
        for href, _ in _LINK.findall(site[path].decode()):
            target = urlsplit(urljoin(path, unescape(href)))
            if not target.netloc and target.path in site and target.path not in found:
                found.add(target.path)
                waiting.append(target.path)
    return found


def _cover() -> bytes:
    """Where a visitor starts. Nothing links here: Scrapy fetches a start page again when it is linked."""
    return _page("Python's Standard Library", f'<p><a href="{INDEX}">Index of Modules</a></p>').encode()


def _index(names: Sequence[str]) -> bytes:
    """Modules and packages; a package's own modules stand on its page."""
    links = [f'<li><a href="{name}.html">{name}</a></li>' for name in names if "." not in name]
    return _own_links(_page("Index of Modules", f"<ul>{''.join(links)}</ul>"), set(names)).encode()


def _page(title: str, content: str) -> str:
    return (
        f'<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><title>Python: {title}</title></head>'
        f"<body><h1>{title}</h1>{content}</body></html>"
    )


def _own_links(text: str, known: set[str]) -> str:
    """*text* with links to pages of this site in one of their spellings, and none to files or to nothing."""
    count = 0

    def rewrite(match: re.Match[str]) -> str:
        nonlocal count
        href, label = match.groups()
        page = _SITE_PAGE.fullmatch(href)
        if href == ".":
            return f'<a href="{INDEX}">{label}</a>'
        if page and page[1] in known:
            count += 1
            return f'<a href="{escape(_spelling(page[1], count))}{page[2] or ""}">{label}</a>'
        return match[0] if href.startswith(("#", "https:")) else label

    return _LINK.sub(rewrite, text)


def _spelling(name: str, count: int) -> str:
    """URL of a page. Every third page has a query, which is the same in either order of its parameters."""
    if hashlib.sha256(name.encode()).digest()[0] % 3:
        return f"/{name}.html"
    return f"/{name}.html?" + ("lang=en&view=full" if count % 2 else "view=full&lang=en")


def _render_all(names: Sequence[str], directory: Path, workers: int) -> None:
    """Render in processes of their own: some modules have side effects when imported, some crash."""
    waiting = [list(names[n::workers]) for n in range(workers)]
    while any(waiting):
        command = [sys.executable, "-W", "ignore", os.path.abspath(__file__), str(directory)]
        running = [
            subprocess.Popen(
                [*command, *part],
                cwd=directory,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            for part in waiting
        ]
        try:
            for process in running:
                try:
                    process.wait(RENDER_SECONDS)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()
        finally:
            for process in running:
                process.kill()
        for part in waiting:
            # A worker that ended early did so at the first name without a file.
            left = [name for name in part if not any(directory.glob(f"{name}.[hs]*"))]
            part[:] = left[1:]


def _render(names: Sequence[str], directory: Path) -> None:
    """Write ``name.html`` for each module, or an empty ``name.skipped`` when it cannot be imported."""
    html = pydoc.HTMLDoc()
    for name in names:
        try:
            text = html.page(name, html.document(pydoc.safeimport(name), name))
        except (KeyboardInterrupt, MemoryError):
            raise
        except BaseException:  # a module may exit, or raise anything
            (directory / f"{name}.skipped").touch()
        else:
            (directory / f"{name}.html").write_text(text, "utf-8", "replace")


if __name__ == "__main__":
    _render(sys.argv[2:], Path(sys.argv[1]))
