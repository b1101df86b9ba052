from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest
from functional.harness import Crawl, MakeCrawl, Site, StartSite
from functional.site import server

SCRIPT = Path(__file__).with_name("site.py")


@pytest.fixture
def start_site(tmp_path: Path) -> Iterator[StartSite]:
    """Starts ``site.py`` with the given options; ends it with the test."""
    with ExitStack() as stack:

        def start(**options: object) -> Site:
            arguments = [f"--{name}={value}" for name, value in options.items()]
            return stack.enter_context(server.running(SCRIPT, *arguments, log=tmp_path / "site.log"))

        yield start


@pytest.fixture
def site(start_site: StartSite) -> Site:
    return start_site()


@pytest.fixture
def make_crawl(tmp_path: Path) -> Iterator[MakeCrawl]:
    """Makes a project, see :class:`Crawl`; what runs of it is ended with the test."""
    with ExitStack() as stack:

        def make(source: str, name: str = "crawl", **options: Any) -> Crawl:
            return stack.enter_context(closing(Crawl(tmp_path / name, source, **options)))

        yield make
