"""Crawl a faulty website, kill the crawler on the way, and count what was lost.

The crawler is the ordinary command ``scrapy crawl docs -o items.jsonl`` in the ordinary project
next to this directory. It is killed with SIGKILL at fixed points of its way, and the same
command is started again. What was fetched comes from the server's log, never from the crawler.
Exit status 0: no page lost, every item stored once, no more fetched again than was in flight.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import pages
from server import Site, running

HERE = Path(__file__).resolve().parent
PROJECT = HERE.parent
WIDTH = 24
"""Of the progress bar."""
CLASSES = {"503": "server", "429": "throttled", "reset": "connection", "cut": "truncated"}
"""What scrapy_ha calls the failures that the server's log tells of."""
IN_FLIGHT = 16
"""``CONCURRENT_REQUESTS``, Scrapy's default."""


@dataclass
class Outcome:
    """What is known at the end."""

    site: set[str]
    """Paths of the pages that can be reached."""
    served: Counter[str]
    items: Counter[str]
    kills: int
    seconds: float
    reason: str
    """The finish reason of the last run, or what was wrong with it."""
    retries: Counter[str]
    """By class of failure, as the server saw them."""
    counted_retries: Counter[str]
    """The same by the crawler's stats, which tell of its last run only."""

    @property
    def lost(self) -> set[str]:
        return self.site - self.items.keys()

    @property
    def again(self) -> int:
        """How many whole pages the server sent in excess of one each."""
        return self.served.total() - len(self.served)

    @property
    def again_limit(self) -> int:
        return self.kills * IN_FLIGHT

    @property
    def twice(self) -> int:
        return self.items.total() - len(self.items)

    def failures(self) -> list[str]:
        """What did not hold, in words."""
        found = []
        if self.lost:
            found.append(f"{len(self.lost)} pages have no item, such as {min(self.lost)}")
        if self.twice:
            found.append(f"{self.twice} items are there more than once")
        if strange := self.items.keys() - self.site:
            found.append(f"{len(strange)} items are of no page of the site, such as {min(strange)}")
        if self.again > self.again_limit:
            found.append(f"{self.again} pages were fetched again, more than the {self.again_limit} in flight")
        if self.reason != "finished":
            found.append(f"the last run should end as finished, not so: {self.reason}")
        if not self.kills:
            # Twisted itself sends some requests again that were reset.
            classes = self.retries.keys() - {"connection"}
            miscounted = {name for name in classes if self.retries[name] != self.counted_retries[name]}
            found += [
                f"the crawler counted {self.counted_retries[name]} retries: {name}" for name in miscounted
            ]
        return found

    def table(self) -> str:
        retries = ", ".join(f"{name} {count}" for name, count in self.retries.most_common()) or "none"
        again = f"at most {self.again_limit}, in flight when killed" if self.kills else ""
        rows = [
            ("pages on the site", len(self.site), ""),
            ("pages fetched", len(self.served), ""),
            ("pages lost", len(self.lost), "without an item" if self.lost else ""),
            ("pages fetched again", self.again, again),
            ("items stored", self.items.total(), f"{self.twice} of them twice"),
            ("retries", self.retries.total(), f"by class: {retries}"),
            ("kills", self.kills, ""),
            ("seconds", round(self.seconds), ""),
        ]
        return "\n".join(f"  {name:<20}{count:>6}   {remark}".rstrip() for name, count, remark in rows)


class Progress:
    """A bar on a terminal, a line for every tenth of the way elsewhere."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.start = time.monotonic()
        self.bar = sys.stdout.isatty()
        self.printed = -1

    def show(self, done: int, note: str) -> None:
        rate = done / (time.monotonic() - self.start + 1e-9)
        text = f"{done:>4} of {self.total} pages, {rate:3.0f}/s, {note}"
        if self.bar:
            filled = WIDTH * done // self.total
            print(f"\r\x1b[K[{'#' * filled}{'.' * (WIDTH - filled)}] {text}", end="", flush=True)
        elif 10 * done // self.total > self.printed:
            self.printed = 10 * done // self.total
            print(text, flush=True)

    def say(self, text: str) -> None:
        print(f"\r\x1b[K{text}" if self.bar else text, flush=True)


class Crawler:
    """The command, and the process that runs it at the moment."""

    def __init__(self, url: str, directory: Path) -> None:
        self.directory = directory
        self.items = directory / "items.jsonl"
        self.command = [
            sys.executable, "-m", "scrapy", "crawl", "docs", "-a", f"url={url}/", "-o", str(self.items),
            "-s", f"HA_DIR={directory / 'ha'}",
        ]  # fmt: skip
        self.logs: list[Path] = []
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self.logs.append(self.directory / f"crawl-{len(self.logs) + 1}.log")
        environment = {name: value for name, value in os.environ.items() if not name.startswith("SCRAPY_")}
        with open(self.logs[-1], "wb") as log:
            self.process = subprocess.Popen(
                self.command,
                cwd=PROJECT,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C is for this program, which ends the crawler itself
            )

    def runs(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def reason(self) -> str:
        """The finish reason in the last log; without one how the process ended, and its last words."""
        log = self.logs[-1].read_text("utf-8", "replace").strip()
        found = re.findall(r"'finish_reason': '([^']*)'", log)
        assert self.process is not None
        return found[-1] if found else f"exit status {self.process.returncode}, {log.splitlines()[-1:]}"

    def stored(self) -> Counter[str]:
        """How many items there are of each page."""
        if not self.items.exists():
            return Counter()
        with open(self.items, encoding="utf-8") as lines:
            return Counter(urlsplit(json.loads(line)["url"]).path for line in lines)

    def counted_retries(self) -> Counter[str]:
        """The last run's own count of its retries by class of failure."""
        found = re.findall(r"'ha/retry/(\w+)': (\d+)", self.logs[-1].read_text("utf-8", "replace"))
        return Counter({name: int(count) for name, count in found if name in CLASSES.values()})


def fetched(site: Site) -> Counter[str]:
    """How many times the server sent each page as a whole, whatever the spelling of its URL."""
    found: Counter[str] = Counter()
    for page, count in site.served().items():
        found[urlsplit(page).path] += count
    return found


def retried(site: Site) -> Counter[str]:
    """Failures after which the page was asked for again, by class."""
    found: Counter[str] = Counter()
    failed: dict[str, str] = {}
    for event in site.events():
        if event.what in CLASSES:
            failed[event.page] = CLASSES[event.what]
        elif event.what == "asked" and event.page in failed:
            found[failed.pop(event.page)] += 1
    return found


def kill_points(kills: int) -> list[float]:
    """Parts of the way at which to kill: 1/4 and 3/5 for two."""
    return [0.25 + 0.7 * n / kills for n in range(kills)]


def crawl(site: Site, crawler: Crawler, reachable: set[str], kills: int, seconds: float) -> Outcome:
    points = [round(part * len(reachable)) for part in kill_points(kills)]
    progress = Progress(len(reachable))
    killed = 0
    crawler.start()
    try:
        while crawler.runs():
            done = len(fetched(site))
            progress.show(done, f"kills {killed} of {kills}")
            if killed < kills and done >= points[killed]:
                crawler.kill()
                killed += 1
                progress.say(f"{done:>4} of {len(reachable)} pages: kill -9, and the same command again")
                crawler.start()
            if time.monotonic() - progress.start > seconds:
                progress.say(f"The crawl takes longer than {seconds:.0f} s: giving up.")
                break
            time.sleep(0.05)
    finally:
        crawler.kill()
    taken = time.monotonic() - progress.start
    served = fetched(site)
    progress.show(len(served), f"kills {killed} of {kills}")
    progress.say("")
    return Outcome(
        reachable,
        served,
        crawler.stored(),
        killed,
        taken,
        crawler.reason(),
        retried(site),
        crawler.counted_retries(),
    )


def demo(directory: Path, kills: int, seed: int, seconds: float) -> bool:
    """Whether all held; prints what happened."""
    rendered = pages.prepare(PROJECT / ".scrapy" / "demo")
    reachable = pages.reachable(pages.load(rendered))
    arguments = [str(rendered), "--seed", str(seed)]
    with running(HERE / "front.py", *arguments, log=directory / "server.log") as site:
        crawler = Crawler(site.url, directory)
        print(f"{len(reachable)} pages at {site.url}/, faults from seed {seed}. Crawling with:")
        print(f"  scrapy {' '.join(crawler.command[3:])}\n", flush=True)
        outcome = crawl(site, crawler, reachable, kills, seconds)
    print(outcome.table())
    failures = outcome.failures()
    if outcome.kills < kills:
        failures.append(f"the crawl ended after {outcome.kills} of {kills} kills")
    if failures:
        print("\nThis did not hold: " + "; ".join(failures) + f".\nLogs are in {directory}", flush=True)
    else:
        print("\nNo page lost, no item twice.", flush=True)
    return not failures


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--kills", type=int, default=2, help="how often to kill the crawler (default: 2)")
    parser.add_argument("--seed", type=int, default=1, help="what the site's faults are drawn from")
    parser.add_argument("--timeout", type=float, default=300.0, help="seconds after which to give up")
    given = parser.parse_args(arguments)
    if given.kills < 0:
        parser.error("--kills must be 0 or more")
    # An end by SIGTERM ends the child processes as well.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    directory = Path(tempfile.mkdtemp(prefix="scrapy-ha-demo-"))
    held = False
    try:
        held = demo(directory, given.kills, given.seed, given.timeout)
    except KeyboardInterrupt:
        print(f"\nInterrupted. Logs are in {directory}", file=sys.stderr)
        return 130
    finally:
        if held:
            shutil.rmtree(directory, ignore_errors=True)
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
