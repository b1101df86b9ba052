"""Whether the embedded frontier stays fast when a million requests went through it.

LevelDB keeps what was deleted as a mark until it compacts; a reader that starts at the first key
walks over all of them.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import tempfile
import threading
from array import array
from pathlib import Path
from time import perf_counter, perf_counter_ns
from typing import Any

import measure

from scrapy_ha.frontier.leveldb import LevelDBFrontier
from scrapy_ha.loop import completed
from scrapy_ha.typing import Entry, Settlement

LIVE = 100
LIMIT = 3.0
"""How many times slower the last pops may be than the first."""
SYNC_EVERY = 1.0
MAINTAIN_EVERY = 10.0
"""Seconds, as in a crawl."""
CASES = {
    "fifo": "first in, first out",
    "lifo": "last in, first out",
    "delayed": "every request waits for its time first",
}
QUICK = ["--requests=2000", "--window=200"]


class Steps:
    """A clock that goes on by one second with every pop."""

    now = 1e9

    def time(self) -> float:
        return self.now


class Frontier:
    """A LevelDB frontier as the scheduler uses it: housekeeping in a thread, leases ended in order."""

    def __init__(self, directory: Path, case: str, clock: Steps) -> None:
        self._clock = clock
        self._store = LevelDBFrontier(directory, clock=clock, order="lifo" if case == "lifo" else "fifo")
        self._delayed = case == "delayed"
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._keep_house)
        self._failure: Exception | None = None

    def __enter__(self) -> Frontier:
        completed(self._store.open())
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._stopped.set()
        self._thread.join()
        completed(self._store.close())
        if self._failure is not None:
            raise self._failure

    def push(self, n: int) -> None:
        due = Steps.now + n if self._delayed else 0.0
        completed(self._store.offer((Entry(b"x" * 150, "site.test", n.to_bytes(20, "big"), due=due),)))

    def pop(self) -> int:
        """Nanoseconds that it took to lease a request, and to end the lease."""
        self._clock.now += 1
        before = perf_counter_ns()
        (lease,) = completed(self._store.lease(1, {}, (), 3600.0))
        completed(self._store.settle((Settlement(lease),)))
        return perf_counter_ns() - before

    def pending(self) -> int:
        return completed(self._store.counts()).pending

    def _keep_house(self) -> None:
        maintained = perf_counter()
        try:
            while not self._stopped.wait(SYNC_EVERY):
                completed(self._store.sync())
                if perf_counter() - maintained > MAINTAIN_EVERY:
                    completed(self._store.maintain())
                    maintained = perf_counter()
        except Exception as error:
            self._failure = error


def pops(case: str, requests: int, window: int) -> dict[str, Any]:
    directory = Path(tempfile.mkdtemp(prefix="benchmark-"))
    clock = Steps()
    taken = array("q")
    began = perf_counter()
    try:
        with Frontier(directory, case, clock) as frontier:
            for n in range(1, LIVE + 1):
                frontier.push(n)
            for n in range(LIVE + 1, requests + 1):
                frontier.push(n)
                taken.append(frontier.pop())
        closed = perf_counter()
        with Frontier(directory, case, clock) as frontier:
            frontier.pop()
            reopened = perf_counter() - closed
            for _ in range(LIVE - 1):
                frontier.pop()
            if frontier.pending():
                raise RuntimeError(f"{frontier.pending()} requests are left although all were popped")
        medians = [
            statistics.median(taken[n : n + window]) for n in range(0, len(taken) - window + 1, window)
        ]
        return {
            "first": medians[0] / 1000,
            "last": statistics.median(taken[-window:]) / 1000,
            "worst": max(medians) / 1000,
            "p99": statistics.quantiles(taken, n=100)[-1] / 1000,
            "longest": max(taken) / 1e6,
            "reopened": reopened * 1000,
            "wall": perf_counter() - began,
        }
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def run(given: argparse.Namespace) -> measure.Section:
    section = measure.Section(
        title=f"Pops of the embedded frontier, {given.requests:,} requests through it",
        about=(
            f"{LIVE} requests live at any time. A pop is a lease and its end; medians of {given.window:,} "
            "pops; housekeeping runs in a thread as in a crawl. «Reopened»: opening the store at the end, "
            "and the first pop."
        ),
        columns=(
            "case",
            "first µs",
            "last µs",
            "slowest µs",
            "p99 µs",
            "longest ms",
            "reopened ms",
            "last / first",
        ),
    )
    for case in given.cases:
        result = measure.child(__file__, case=case, requests=given.requests, window=given.window)
        measure.progress(f"tombstones, {case}: {result.pop('wall'):.0f} s")
        ratio = result["last"] / result["first"]
        cells = [measure.number(value) for value in (*result.values(), ratio)]
        section.rows.append((CASES[case], *cells))
        section.figures[case] = {name: [value] for name, value in result.items()}
        section.targets.append(
            measure.Target(
                f"last pops against the first, {case}", f"≤ {LIMIT:g} ×", cells[-1], ratio <= LIMIT
            )
        )
    return section


def options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=1_000_000)
    parser.add_argument("--window", type=int, default=10_000, help="pops that a median is taken of")
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    return parser


if __name__ == "__main__":
    measure.main(pops, options, run)
