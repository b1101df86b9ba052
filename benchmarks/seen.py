"""What it costs to know whether a URL was seen: each tier alone, and one in front of the other.

Keys are SHA-1 digests, as Scrapy's fingerprinter gives them. New ones are asked for and not added, so
that the store stays as it is; those that were seen are drawn from all of it, which is the worst case, and
from the latest thousand, as most links of a crawl are.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import replace
from hashlib import sha1
from importlib.util import find_spec
from pathlib import Path
from time import perf_counter, perf_counter_ns
from typing import Any

import measure
from scrapy import Request
from scrapy.utils.request import RequestFingerprinter

from scrapy_ha.fingerprint import Fingerprints
from scrapy_ha.seen import store as stores
from scrapy_ha.seen.bloom import LayeredBloom
from scrapy_ha.seen.store import SeenStore
from scrapy_ha.seen.tier import BloomTier

ERROR_RATE = 0.01
BATCH = 100
"""Keys added in one step, as the links of a page are."""
RUN = 50
"""Calls timed together: one alone takes little more than reading the clock."""
POPULAR = 1000
POLICY_BITS = 10
KINDS = ("pybloom", "rbloom") if find_spec("rbloom") else ("pybloom",)
LAYOUTS: dict[str, tuple[str | None, bool]] = {
    "LevelDB, without its Bloom policy": (None, False),
    "LevelDB, with it": (None, True),
    "pybloom, LevelDB without": ("pybloom", False),
    "pybloom, LevelDB with": ("pybloom", True),
    "rbloom, LevelDB without": ("rbloom", False),
    "rbloom, LevelDB with": ("rbloom", True),
}
"""Kind of the filter in front, and whether LevelDB keeps filters of its own."""
USED = {"pybloom": "pybloom, LevelDB without", "rbloom": "rbloom, LevelDB without"}
"""What the dupefilter has: measured at full size."""
LIMITS = {"pybloom": 3.0, "rbloom": 1.0}
"""Microseconds for a new key, by kind."""
QUICK = ["--count=20000", "--some=5000", "--calls=500", "--rounds=1"]


class NoFilter:
    """Stands where the filter is, and lets everything through."""

    rebuilt = False
    wants_saving = False

    def __init__(self) -> None:
        self.bloom = LayeredBloom(1, 0.5, "pybloom")

    def open(self, old: str, new: str, keys: Callable[[], Iterator[bytes]]) -> None: ...

    def perhaps(self, key: bytes) -> bool:
        return True

    def settle(self, had: bool) -> None: ...

    def add(self, key: bytes) -> None: ...

    def close(self) -> None: ...


def keys(start: int, stop: int) -> Iterator[bytes]:
    return (sha1(n.to_bytes(8, "big")).digest() for n in range(start, stop))


def per_call(ask: Callable[[bytes], object], asked: list[bytes], answer: bool) -> list[float]:
    """Microseconds a call, for each :data:`RUN` of them."""
    taken = []
    for at in range(0, len(asked), RUN):
        run = asked[at : at + RUN]
        before = perf_counter_ns()
        said = [ask(key) for key in run]
        taken.append((perf_counter_ns() - before) / len(run) / 1000)
        if said.count(answer) < 0.9 * len(run):
            raise RuntimeError(f"{said.count(answer)} of {len(run)} keys were said to be seen: {answer}")
    return taken


def median(ask: Callable[[bytes], object], asked: list[bytes], answer: bool) -> float:
    return statistics.median(per_call(ask, asked, answer))


def drawn(count: int, among: range) -> list[bytes]:
    draw = random.Random(0)
    return [next(keys(n, n + 1)) for n in (draw.randrange(among.start, among.stop) for _ in range(count))]


def resident() -> float:
    """MB of memory that this process has now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def filter_alone(kind: str, count: int, calls: int) -> dict[str, float]:
    """A full one."""
    directory = Path(tempfile.mkdtemp(prefix="benchmark-"))
    try:
        tier = BloomTier(directory, capacity=count, error_rate=ERROR_RATE, kind=kind)
        tier.open("", "token", lambda: iter(()))
        tier.bloom.add_many(keys(0, count - calls))
        last = list(keys(count - calls, count))
        before = perf_counter()
        for key in last:
            tier.add(key)
        added = perf_counter() - before
        popular = drawn(calls, range(max(0, count - POPULAR), count))
        return {
            "new": median(tier.perhaps, list(keys(count, count + calls)), False),
            "popular": median(tier.perhaps, popular, True),
            "any": median(tier.perhaps, drawn(calls, range(count)), True),
            "add": added / calls * 1e6,
            "memory": tier.bloom.memory / 2**20,
        }
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def fingerprint(calls: int) -> dict[str, float]:
    fingerprints = Fingerprints(RequestFingerprinter())
    requests = [Request(f"http://site.test/p/{n}?c=1") for n in range(POPULAR)]
    for request in requests:
        fingerprints.get(request)
    taken = []
    for _ in range(max(1, calls // POPULAR)):
        again = [Request(request.url) for request in requests]
        before = perf_counter_ns()
        for request in again:
            fingerprints.get(request)
        taken.append((perf_counter_ns() - before) / len(again) / 1000)
    return {"cached": statistics.median(taken)}


def opened(path: Path, layout: str, count: int) -> SeenStore:
    kind, policy = LAYOUTS[layout]
    bits = POLICY_BITS if policy else 0
    stores.KIND = replace(stores.KIND, options={**stores.KIND.options, "bloom_filter_bits": bits})
    store = SeenStore(path, capacity=count, error_rate=ERROR_RATE, kind=kind or "pybloom")
    if kind is None:
        store.tier = NoFilter()  # type: ignore[assignment]
    store.open()
    return store


def fill(path: str, layout: str, count: int, calls: int) -> dict[str, float]:
    """Fill a store, measure, print what was measured, and be killed with the store open."""
    idle = resident()
    store = opened(Path(path), layout, count)
    spent = longest = 0.0
    for start in range(0, count, BATCH):
        some = list(keys(start, min(start + BATCH, count)))
        before = perf_counter()
        store.add_many(some)
        if store.tier.wants_saving:
            write = store.tier.begin_save()
            longest = max(longest, perf_counter() - before)
            write()
        spent += perf_counter() - before
    popular = drawn(calls, range(max(0, count - POPULAR), count))
    result = {
        "new": median(store.__contains__, list(keys(count, count + calls)), False),
        "popular": median(store.__contains__, popular, True),
        "any": median(store.__contains__, drawn(calls, range(count)), True),
        "add": spent / count * 1e6,
        "hold": longest * 1000,
        "memory": measure.peak_rss() - idle,
    }
    print(json.dumps(result), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
    return result


def reopen(path: str, layout: str, count: int, rebuild: bool) -> dict[str, float]:
    before = perf_counter()
    store = opened(Path(path), layout, count)
    taken = perf_counter() - before
    if store.tier.rebuilt is not rebuild:
        raise RuntimeError(f"the filter was made anew: {store.tier.rebuilt}")
    sample = drawn(1000, range(count))
    if not all(key in store for key in sample):
        raise RuntimeError("a key is missing")
    store.close()
    return {"seconds": taken}


def on_disk(path: Path) -> int:
    """Bytes of the store that was closed."""
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())


def one(what: str, **arguments: Any) -> dict[str, float]:
    return {"filter": filter_alone, "fingerprint": fingerprint, "fill": fill, "reopen": reopen}[what](
        **arguments
    )


def killed(**arguments: Any) -> dict[str, float]:
    """What :func:`fill` measures."""
    command = [sys.executable, __file__, "--child", json.dumps({"what": "fill", **arguments})]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, encoding="utf-8")
    if done.returncode != -signal.SIGKILL:
        raise measure.ChildFailed(f"seen.py {arguments}: {done.returncode}\n{done.stderr[-3000:]}")
    result: dict[str, float] = json.loads(done.stdout)
    return result


def layout(name: str, count: int, calls: int) -> dict[str, float]:
    directory = Path(tempfile.mkdtemp(prefix="benchmark-"))
    path = directory / "seen"
    arguments: dict[str, Any] = {"path": str(path), "layout": name, "count": count}
    try:
        result = killed(**arguments, calls=calls)
        result["killed"] = measure.child(__file__, what="reopen", **arguments, rebuild=False)["seconds"]
        if LAYOUTS[name][0] is not None:
            shutil.rmtree(path / "bloom")
            seconds = measure.child(__file__, what="reopen", **arguments, rebuild=True)["seconds"]
            result["rebuild"] = count / seconds
        result["disk"] = on_disk(path) / count  # last, as LevelDB compacts what it was given at the end
        return result
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def run(given: argparse.Namespace) -> measure.Section:
    section = measure.Section(
        title="What was seen",
        about=(
            f"Microseconds a call, medians of {given.calls:,} calls; of those the median (min–max) of "
            f"{given.rounds} rounds. New keys are asked for and not added; popular ones are drawn from the "
            f"latest {POPULAR:,}, any from all. Memory: the peak of all that is resident, less what an empty "
            f"process has. The process is killed when it has measured («open»: the next start), and its "
            "filter's files are removed («rebuilt»: keys a second of the start after that)."
        ),
        columns=(
            "keys",
            "tiers",
            "new µs",
            "popular µs",
            "any µs",
            "add µs",
            "memory MB",
            "bytes a key on disk",
            "open s",
            "rebuilt keys/s",
        ),
    )
    cases: list[tuple[int, str]] = [(given.count, f"{kind} alone") for kind in KINDS]
    cases += [(given.some, name) for name, (kind, _) in LAYOUTS.items() if kind in (None, *KINDS)]
    cases += [(given.count, USED[kind]) for kind in KINDS]
    results: dict[tuple[int, str], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for turn in range(given.rounds):
        for count, name in cases:
            before = perf_counter()
            if name in LAYOUTS:
                figures = layout(name, count, given.calls)
            else:
                kind = name.split()[0]
                figures = measure.child(__file__, what="filter", kind=kind, count=count, calls=given.calls)
            for figure, value in figures.items():
                results[count, name][figure].append(value)
            measure.progress(f"seen, round {turn + 1}: {name} {count:,} {perf_counter() - before:.0f} s")
    shown = ("new", "popular", "any", "add", "memory", "disk", "killed", "rebuild")
    for (count, name), taken in results.items():
        cells = [measure.spread(taken[figure]) if figure in taken else "" for figure in shown]
        section.rows.append((f"{count:,}", name, *cells))
        section.figures[f"{name}/{count}"] = dict(taken)
    cached = measure.child(__file__, what="fingerprint", calls=given.calls)["cached"]
    section.figures["fingerprint"] = {"cached": [cached]}
    section.notes.append(
        "The store asks its cache of the latest keys before the filter, as most links of a crawl are "
        "popular; a new key pays for both."
    )
    for kind in KINDS:
        judge(section, kind, results[given.count, f"{kind} alone"], results[given.count, USED[kind]])
    section.targets.append(
        measure.Target("fingerprint of a URL met before", "≤ 1 µs", measure.number(cached), cached <= 1)
    )
    return section


def judge(
    section: measure.Section, kind: str, alone: dict[str, list[float]], store: dict[str, list[float]]
) -> None:
    def most(what: str, limit: float, unit: str, taken: list[float]) -> None:
        held = statistics.median(taken) <= limit
        section.targets.append(
            measure.Target(f"{kind}: {what}", f"≤ {limit:g} {unit}", measure.spread(taken), held)
        )

    most("new key, asked of the filter", LIMITS[kind], "µs", alone["new"])
    most("popular key, asked of the store", 6, "µs", store["popular"])
    most("memory", 150, "MB", store["memory"])
    most("disk", 35, "bytes a key", store["disk"])
    most("open after kill -9", 2, "s", store["killed"])
    rate = store["rebuild"]
    section.targets.append(
        measure.Target(
            f"{kind}: filter made anew",
            "≥ 500,000 keys/s",
            measure.spread(rate),
            statistics.median(rate) >= 500_000,
        )
    )


def options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=10_000_000, help="keys of what is used")
    parser.add_argument("--some", type=int, default=1_000_000, help="keys that the layouts are compared with")
    parser.add_argument("--calls", type=int, default=20_000, help="timed calls of each kind")
    parser.add_argument("--rounds", type=int, default=3)
    return parser


if __name__ == "__main__":
    measure.main(one, options, run)
