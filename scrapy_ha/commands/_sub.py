"""What a sub-command of ``scrapy ha`` is made of."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

from scrapy.utils.misc import load_object
from scrapy.utils.project import inside_project

from scrapy_ha.errors import HAError
from scrapy_ha.settings import directory, read

if TYPE_CHECKING:
    from scrapy.settings import BaseSettings


class SubCommand(Protocol):
    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Declare arguments."""

    def run(self, settings: BaseSettings, options: argparse.Namespace) -> int:
        """Do it; the exit status: 0 fine, 1 done but something needs attention, 2 not done.

        Raises:
            HAError: Not done; the message is shown as it is.
        """


class UsageError(HAError):
    """The arguments do not say what to work on."""


class Parser(argparse.ArgumentParser):
    """Says what is wrong in one line, without the usage before it."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message} (see {self.prog} -h)\n")


def add_crawl(parser: argparse.ArgumentParser, spider: str = "spider") -> None:
    """Declare the arguments that name a crawl, see :func:`crawl_directory`.

    Args:
        spider: What names the spider: the argument of this name or, with dashes, that option.
    """
    may: dict[str, Any] = {} if spider.startswith("-") else {"nargs": "?"}
    text = "inside a project; may be left out if it has only one"
    parser.add_argument(spider, metavar="SPIDER", help=text, **may)
    parser.add_argument(
        "--dir", metavar="DIR", type=Path, help="the directory of the crawl (HA_DIR, JOBDIR), in its place"
    )


def crawl_directory(settings: BaseSettings, options: argparse.Namespace) -> Path:
    """Where the stores of the crawl that the arguments name lie.

    Raises:
        UsageError: They name none.
    """
    return crawl(settings, options)[1]


def crawl(settings: BaseSettings, options: argparse.Namespace) -> tuple[BaseSettings, Path]:
    """The settings of the crawl that the arguments name, and where its stores lie.

    Raises:
        UsageError: They name none.
    """
    spider: str | None = options.spider
    if options.dir is not None:
        if spider is not None:
            raise UsageError("give either a spider or --dir, not both")
        return settings, Path(options.dir)
    if not inside_project():
        raise UsageError("outside a project, name the directory of the crawl with --dir")
    if spider is None and (read(settings, "HA_DIR") or settings.get("JOBDIR")):
        return settings, directory(settings, "")
    loader = load_object(settings["SPIDER_LOADER_CLASS"]).from_settings(settings.frozencopy())
    names = sorted(loader.list())
    if spider is None:
        if len(names) != 1:
            raise UsageError(f"name a spider, one of: {', '.join(names)}" if names else "there is no spider")
        (spider,) = names
    if spider not in names:
        raise UsageError(f"there is no spider {spider!r}; there are: {', '.join(names)}")
    settings = settings.copy()
    loader.load(spider).update_settings(settings)
    return settings, directory(settings, spider)
