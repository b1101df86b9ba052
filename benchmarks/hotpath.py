"""Time of one call of the scheduler, with a thousand to a million requests queued.

The calls are made where the engine makes them: in a real crawl, from the callback of a page (a
``data:`` URL, so nothing goes over a network). The engine is paused meanwhile, and what it does
around the calls, putting requests into its set of those in progress and taking them out, is done
in its stead and timed apart. Requests are built before the clock starts, each with strings of
its own, as those of real pages are.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
from array import array
from collections import defaultdict, deque
from contextvars import copy_context
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

import measure
import variants
from scrapy import Request, Spider
from scrapy.exceptions import CloseSpider

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable
    from pathlib import Path

    from scrapy.http import Response

CHUNK = 100
"""Requests built at a time: a page's. The event loop runs between two chunks, as between pages."""
POPULAR = 1000
"""How many URLs the popular duplicates are drawn from."""
IN_FLIGHT = 16
TARGETS = {"duplicate, popular": 4.0, "duplicate, any": 4.0, "new": 25.0, "next": 25.0}
"""Microseconds. A popular duplicate is a URL that the crawl meets again and again, as most links
are; any duplicate was mostly seen once, some time ago."""
QUICK = ["--levels=500", "--calls=300", "--rounds=1", "--variants", "memory", "ha"]


class CallsSpider(Spider):
    name = "calls"
    levels: list[int]
    calls: int
    hosts: int

    async def start(self) -> AsyncIterator[Request]:
        yield Request("data:,")

    async def parse(self, response: Response) -> None:
        engine: Any = self.crawler.engine
        engine.pause()
        self._slot = engine._slot
        self._scheduler = self._slot.scheduler
        self._draw = random.Random(0)
        self._stored = 0
        self._queued = 0
        self._in_flight: deque[Request] = deque()
        self.figures: dict[int, dict[str, dict[str, float]]] = {}
        try:
            await self._measure()
        except Exception:
            self.logger.exception("The measurement failed")
        for request in self._in_flight:
            self._slot.remove_request(request)
        raise CloseSpider("measured")

    async def _measure(self) -> None:
        for level in self.levels:
            for chunk in chunks(range(level - self._queued)):
                await self._enqueue_new(len(chunk))
            times: dict[str, array[int]] = defaultdict(lambda: array("q"))
            for chunk in chunks(range(self.calls)):
                count = len(chunk)
                times["new"] += await self._enqueue_new(count)
                times["duplicate, popular"] += await self._enqueue_duplicates(
                    count, min(POPULAR, self._stored)
                )
                times["duplicate, any"] += await self._enqueue_duplicates(count, self._stored)
                self._take(count, times["next"], times["end"])
            self.figures[level] = {name: summary(taken) for name, taken in times.items()}

    async def parse_page(self, response: Response) -> None:
        """What the requests name as their callback; none is ever fetched."""

    def _request(self, n: int) -> Request:
        host = f"http://site{n % self.hosts}.test"
        return Request(
            f"{host}/p/{n}?c=1",
            callback=self.parse_page,
            headers={"Referer": f"{host}/p/{n // 10}"},
            meta={"depth": 3},
        )

    async def _enqueue_new(self, count: int) -> array[int]:
        taken = await self._enqueue(range(self._stored, self._stored + count), accepted=True)
        self._stored += count
        self._queued += count
        return taken

    async def _enqueue_duplicates(self, count: int, among: int) -> array[int]:
        return await self._enqueue([self._draw.randrange(among) for _ in range(count)], accepted=False)

    async def _enqueue(self, numbers: Iterable[int], accepted: bool) -> array[int]:
        await asyncio.sleep(0)
        enqueue = self._scheduler.enqueue_request
        taken = array("q")
        for request in [self._request(n) for n in numbers]:
            before = perf_counter_ns()
            done = enqueue(request)
            taken.append(perf_counter_ns() - before)
            if done is not accepted:
                raise RuntimeError(f"enqueue_request returned {done} for {request}")
        return taken

    def _take(self, count: int, taken: array[int], ended: array[int]) -> None:
        """Call ``next_request``, and end the requests that it gave, but for some in flight."""
        # What the engine starts belongs to no page.
        copy_context().run(self._take_and_end, count, taken, ended)
        self._queued -= count

    def _take_and_end(self, count: int, taken: array[int], ended: array[int]) -> None:
        take = self._scheduler.next_request
        for _ in range(count):
            before = perf_counter_ns()
            request = take()
            taken.append(perf_counter_ns() - before)
            if request is None:
                raise RuntimeError("next_request returned nothing although requests wait")
            self._slot.add_request(request)
            self._in_flight.append(request)
            if len(self._in_flight) > IN_FLIGHT:
                request = self._in_flight.popleft()
                before = perf_counter_ns()
                self._slot.remove_request(request)
                ended.append(perf_counter_ns() - before)


def chunks(numbers: range) -> Iterable[range]:
    return (numbers[n : n + CHUNK] for n in range(0, len(numbers), CHUNK))


def summary(taken: array[int]) -> dict[str, float]:
    """Microseconds."""
    ordered = sorted(taken)
    return {
        "median": statistics.median(ordered) / 1000,
        "p99": ordered[len(ordered) * 99 // 100] / 1000,
        "longest": ordered[-1] / 1000,
    }


def calls(variant: str, **arguments: Any) -> dict[str, Any]:
    def read(spider: CallsSpider, directory: Path) -> dict[str, Any]:
        return {"figures": list(spider.figures.items())}

    # Nothing may leave for a network, whatever happens.
    return variants.crawl(CallsSpider, variant, read, {"DOWNLOAD_HANDLERS": {"http": None}}, **arguments)


def run(given: argparse.Namespace) -> measure.Section:
    section = measure.Section(
        title="Calls of the scheduler",
        about=(
            f"Microseconds a call, of {given.calls:,} calls the median and the 99th percentile; of both the "
            f"median (min–max) of {given.rounds} rounds. Popular duplicates are drawn from {POPULAR:,} URLs, "
            "any duplicates from all that were stored. «end»: the engine takes a request that is done from "
            "those in progress. `none` shows what the measuring itself costs."
        ),
        columns=(
            "queued",
            "call",
            *(f"`{variant}`{extra}" for variant in given.variants for extra in ("", " p99")),
        ),
    )
    results: dict[tuple[int, str], dict[str, list[dict[str, float]]]] = defaultdict(lambda: defaultdict(list))
    for turn, variant in measure.rotated(given.variants, given.rounds):
        measured = measure.child(
            __file__, variant=variant, levels=given.levels, calls=given.calls, hosts=given.hosts
        )
        for level, figures in measured["figures"]:
            for name, figure in figures.items():
                results[level, name][variant].append(figure)
        measure.progress(f"calls, round {turn + 1}: {variant} {measured['wall']:.0f} s")
    for (level, name), by_variant in results.items():
        add_row(section, level, name, by_variant)
    return section


def add_row(
    section: measure.Section, level: int, name: str, by_variant: dict[str, list[dict[str, float]]]
) -> None:
    cells = [f"{level:,}", name]
    for variant, taken in by_variant.items():
        figures = {kind: [one[kind] for one in taken] for kind in taken[0]}
        cells += [measure.spread(figures["median"]), measure.spread(figures["p99"])]
        section.figures[f"{variant}/{name}/{level}"] = figures
        if variant == "ha" and name in TARGETS:
            limit = TARGETS[name]
            held = statistics.median(figures["median"]) <= limit
            what = f"{name}, {level:,} queued"
            section.targets.append(
                measure.Target(what, f"≤ {limit:g} µs", measure.spread(figures["median"]), held)
            )
    section.rows.append(cells)


def options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--levels", type=int, nargs="+", default=[1000, 100_000, 1_000_000], help="queued, ascending"
    )
    parser.add_argument("--calls", type=int, default=20_000, help="timed calls of each kind")
    parser.add_argument("--hosts", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--variants", nargs="+", choices=variants.ABOUT, default=["memory", "jobdir", "ha", "none"]
    )
    return parser


if __name__ == "__main__":
    measure.main(calls, options, run)
