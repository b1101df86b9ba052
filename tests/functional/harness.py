"""Throw-away Scrapy projects, crawled by real processes that are killed on the way."""

from __future__ import annotations

import ast
import asyncio
import json
import os
import re
import subprocess
import sys
import textwrap
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from scrapy_ha.frontier.leveldb import LevelDBFrontier
from scrapy_ha.typing import Counts, Dead

Site: TypeAlias = Any
"""A running ``site.py``, see ``example_project/demo/server.py``."""
StartSite: TypeAlias = Callable[..., Site]
MakeCrawl: TypeAlias = "Callable[..., Crawl]"

SIGKILLED = -9

PRELUDE = '''
import asyncio
import os
import signal

from scrapy import Request, Spider
from scrapy.exceptions import CloseSpider, DropItem, IgnoreRequest


def first_time(name):
    """Whether this is the first call with this name, over all runs of the project."""
    try:
        os.close(os.open(f"first-{name}", os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


def die():
    os.kill(os.getpid(), signal.SIGKILL)


def note(text):
    """Write a line that outlives the process."""
    with open("notes.txt", "a") as file:
        file.write(text + "\\n")


'''
"""What the source of every test's spider starts with."""


@dataclass(frozen=True)
class Run:
    """One process that ended."""

    status: int
    """Exit status; ``SIGKILLED`` when it was killed."""
    log: str

    @property
    def reason(self) -> str | None:
        return self.stats.get("finish_reason")

    @property
    def stats(self) -> dict[str, Any]:
        """The stats in the log, without those that are dates; empty when the process was killed."""
        dumped = re.search(r"Dumping Scrapy stats:\n(\{.*?\})$", self.log, re.DOTALL | re.MULTILINE)
        if dumped is None:
            return {}
        plain = re.sub(r"datetime\.datetime\([^()]*(\([^()]*\))?[^()]*\)", "None", dumped[1])
        stats: dict[str, Any] = ast.literal_eval(plain)
        return stats

    def lines(self, level: str) -> list[str]:
        return [line for line in self.log.splitlines() if f"] {level}: " in line]


class Crawl:
    """A project with one spider, named ``s``, and the command that crawls it.

    Args:
        directory: Of the project; made here.
        source: Of the module ``project.main``, with the spider and whatever else settings name;
            :data:`PRELUDE` goes before it.
        settings: Added to those of the project.
        arguments: Added to the command.
        activated: Whether the project has the one line of scrapy_ha.
    """

    def __init__(
        self,
        directory: Path,
        source: str,
        settings: Mapping[str, Any] | None = None,
        arguments: Sequence[str] = (),
        activated: bool = True,
    ) -> None:
        self.directory = directory
        self.items_file = directory / "items.jsonl"
        self.command = [sys.executable, "-m", "scrapy", "crawl", "s", "-o", "items.jsonl", *arguments]
        self.runs: list[Run] = []
        self._heard: dict[str, float] = {}
        self.processes: list[subprocess.Popen[bytes]] = []
        package = directory / "project"
        package.mkdir(parents=True)
        (directory / "scrapy.cfg").write_text("[settings]\ndefault = project.settings\n")
        (package / "__init__.py").touch()
        (package / "main.py").write_text(PRELUDE + textwrap.dedent(source))
        written = {
            "BOT_NAME": "project",
            "SPIDER_MODULES": ["project.main"],
            "TELNETCONSOLE_ENABLED": False,
            **({"ADDONS": {"scrapy_ha.Addon": 500}} if activated else {}),
            **(settings or {}),
        }
        lines = [f"{name} = {value!r}\n" for name, value in written.items()]
        (package / "settings.py").write_text("".join(lines))

    def start(self, *arguments: str) -> subprocess.Popen[bytes]:
        """Start the command; end it with :meth:`end`."""
        environment = {name: value for name, value in os.environ.items() if not name.startswith("SCRAPY_")}
        with open(self._log(len(self.runs)), "wb") as log:
            process = subprocess.Popen(
                [*self.command, *arguments],
                cwd=self.directory,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        self.processes.append(process)
        return process

    def end(
        self,
        process: subprocess.Popen[bytes],
        kill_when: Callable[[], bool] | None = None,
        timeout: float = 60.0,
    ) -> Run:
        """Wait for the end of *process*, or bring it about with SIGKILL.

        Raises:
            TimeoutError: It did not end in time, and was killed.
        """
        deadline = time.monotonic() + timeout
        try:
            while process.poll() is None:
                if kill_when is not None and kill_when():
                    break
                if time.monotonic() > deadline:
                    raise TimeoutError(f"still running after {timeout} s:\n{self._read()[-3000:]}")
                time.sleep(0.01)
        finally:
            process.kill()
            process.wait()
        self.runs.append(Run(process.returncode, self._read()))
        return self.runs[-1]

    def run(self, *arguments: str, kill_when: Callable[[], bool] | None = None, timeout: float = 60.0) -> Run:
        return self.end(self.start(*arguments), kill_when, timeout)

    def ha(self, *arguments: str, status: int = 0) -> str:
        """What ``scrapy ha`` with *arguments* prints in the project, both streams."""
        ended = subprocess.run(
            [sys.executable, "-m", "scrapy", "ha", *arguments],
            cwd=self.directory,
            env={name: value for name, value in os.environ.items() if not name.startswith("SCRAPY_")},
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert ended.returncode == status, ended.stdout + ended.stderr
        return ended.stdout + ended.stderr

    def said(self, text: str, after: float = 0.0) -> bool:
        """Whether the process that runs has logged *text*, so many seconds ago."""
        if text not in self._read():
            return False
        self._heard.setdefault(text, time.monotonic())
        return time.monotonic() >= self._heard[text] + after

    def close(self) -> None:
        """Kill what still runs, such as after a failed assertion."""
        for process in self.processes:
            process.kill()
            process.wait()

    def items(self) -> Counter[str]:
        """How many times each item was exported, by its JSON.

        Raises:
            json.JSONDecodeError: A line is not whole.
        """
        if not self.items_file.exists():
            return Counter()
        with open(self.items_file, encoding="utf-8") as file:
            return Counter(json.dumps(json.loads(line), sort_keys=True) for line in file)

    def notes(self) -> Counter[str]:
        """What the spider wrote with ``note()``, over all runs."""
        file = self.directory / "notes.txt"
        return Counter(file.read_text().splitlines()) if file.exists() else Counter()

    def frontier(self) -> tuple[Counts, list[Dead]]:
        """What the frontier holds, looked at while no crawl runs."""

        async def look() -> tuple[Counts, list[Dead]]:
            frontier = LevelDBFrontier(self.directory / ".scrapy" / "ha" / "s" / "frontier")
            await frontier.open()
            try:
                return await frontier.counts(), await frontier.dead(100)
            finally:
                await frontier.close()

        return asyncio.run(look())

    def _log(self, n: int) -> Path:
        return self.directory / f"run-{n}.log"

    def _read(self) -> str:
        return self._log(len(self.runs)).read_text("utf-8", "replace")


def refetched(served: Counter[str]) -> int:
    """Pages that the site sent in excess of one each."""
    return served.total() - len(served)
