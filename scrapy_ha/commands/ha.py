"""``scrapy ha``, and the table of its sub-commands."""

from __future__ import annotations

import argparse
import os
import sys
from typing import TYPE_CHECKING, ClassVar

from scrapy.commands import ScrapyCommand
from scrapy.utils.misc import load_object

from scrapy_ha.commands._sub import Parser
from scrapy_ha.errors import HAError

if TYPE_CHECKING:
    from scrapy_ha.commands._sub import SubCommand

SUBCOMMANDS = {
    "checkpoint": (
        "scrapy_ha.commands.checkpoint.CheckpointCommand",
        "the state that a crawl keeps: look at it, verify it, go back",
    ),
    "dlq": ("scrapy_ha.commands.dlq.DlqCommand", "requests given up: look at them, try them again"),
    "explain": (
        "scrapy_ha.commands.explain.ExplainCommand",
        "which failures are retried, when, and how often",
    ),
    "seen": ("scrapy_ha.commands.seen.SeenCommand", "URLs that were seen: look them up, forget them"),
    "spool": ("scrapy_ha.commands.spool.SpoolCommand", "items kept on disk: write them out"),
}
"""Name, class and help line of each. Scrapy loads this module for every command it runs, so the
classes are imported only when they are called."""


class Command(ScrapyCommand):
    requires_project = False
    requires_crawler_process = False
    default_settings: ClassVar = {"LOG_ENABLED": False}

    def syntax(self) -> str:
        return "<sub-command> [options]"

    def short_desc(self) -> str:
        return "Look at, export and replay what a crawl keeps; explain its retries"

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        super().add_options(parser)
        # Taken from Scrapy's parser, which would show its own help for every sub-command.
        parser.add_argument("-h", "--help", action="store_true", dest="ha_help", help=argparse.SUPPRESS)

    def run(self, args: list[str], opts: argparse.Namespace) -> None:
        if not args:
            print(_overview())
            return
        name, *rest = args
        if name not in SUBCOMMANDS:
            self._fail(f"there is no sub-command {name!r}; there are: {', '.join(SUBCOMMANDS)}")
            return
        path, description = SUBCOMMANDS[name]
        command: SubCommand = load_object(path)()
        parser = Parser(prog=f"scrapy ha {name}", description=f"{name}: {description}.")
        command.configure(parser)
        options = parser.parse_args([*rest, "-h"] if opts.ha_help else rest)
        assert self.settings is not None
        try:
            self.exitcode = command.run(self.settings, options)
        except HAError as error:
            self._fail(str(error))
        except BrokenPipeError:  # whoever reads it has had enough
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())

    def _fail(self, message: str) -> None:
        print(f"scrapy ha: {message}", file=sys.stderr)
        self.exitcode = 2


def _overview() -> str:
    lines = [f"  {name:<12} {description}" for name, (_, description) in SUBCOMMANDS.items()]
    return "\n".join(
        [
            "Usage: scrapy ha <sub-command> [options]",
            "",
            "Sub-commands:",
            *lines,
            "",
            "scrapy ha <sub-command> -h explains one. Scrapy's global options, such as -s, work too.",
        ]
    )
