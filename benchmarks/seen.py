"""What it costs to know whether a URL was seen: each tier alone, and one in front of the other.

Keys are SHA-1 digests, as Scrapy's fingerprinter gives them. New ones are asked for and not added, so
that the store stays as it is; those that were seen are drawn from all of it, which is the worst case, and
from the latest thousand, as most links of a crawl are.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from hashlib import sha1
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

ERROR_RATE = 0.01
BATCH = 100
"""Keys added in one step, as the links of a page are."""
RUN = 50
"""Calls timed together: one alone takes little more than reading the clock."""
POPULAR = 1000
POLICY_BITS = 10
KINDS = ("pybloom", "rbloom")
LAYOUTS: dict[str, tuple[str | None, bool]] = {
    "LevelDB, without its Bloom policy": (None, False),
    "LevelDB, with it": (None, True),
    "pybloom, LevelDB without": ("pybloom", False),
    "pybloom, LevelDB with": ("pybloom", True),
    "rbloom, LevelDB without": ("rbloom", False),
    "rbloom, LevelDB with": ("rbloom", True),
}
"""Kind of the filter in front, and whether LevelDB keeps filters of its own."""
WHOLE = ("pybloom, LevelDB without", "rbloom, LevelDB without")
"""Those that are used: measured at full size."""
LIMITS = {"pybloom": 3.0, "rbloom": 1.0}
"""Microseconds for a new key."""
QUICK = ["--count=20000", "--some=5000", "--calls=500"]


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
    bloom = LayeredBloom(count, ERROR_RATE, kind)
    began = perf_counter()
    for key in keys(0, count // 2):
        bloom.add(key)
    one_by_one = perf_counter() - began
    rest = list(keys(count // 2, count))
    began = perf_counter()
    bloom.add_many(rest)
    bulk = perf_counter() - began
    return {
        "new": median(bloom.__contains__, list(keys(count, count + calls)), False),
        "seen": median(bloom.__contains__, drawn(calls, range(count)), True),
        "add": one_by_one / (count // 2) * 1e6,
        "bulk": len(rest) / bulk,
        "memory": bloom.memory / count,
        "error": bloom.estimated_error(),
    }


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
    stores.KIND = replace(stores.KIND, options={"bloom_filter_bits": bits})
    store = SeenStore(path, capacity=count, error_rate=ERROR_RATE, kind=kind or "pybloom")
    if kind is None:
        store.tier = NoFilter()  # type: ignore[assignment]
    store.open()
    return store


def fill(path: str, layout: str, count: int, calls: int) -> dict[str, float]:
    """Fill a store, measure, and die with it open."""
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
    """Bytes that files take, not counting what is reserved and holds nothing yet."""
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file() and file.suffix != ".delta")


def one(what: str, **arguments: Any) -> dict[str, Any]:
    measures: dict[str, Callable[..., dict[str, float]]] = {
        "filter": filter_alone,
        "fingerprint": fingerprint,
        "fill": fill,
        "reopen": reopen,
    }
    return measures[what](**arguments)


def killed(**arguments: Any) -> dict[str, float]:
    """As :func:`measure.child` of :func:`fill`; the child is killed after the last call."""
    program = f"import json, os, sys; sys.path.insert(0, {str(Path(__file__).parent)!r}); import seen\n"
    program += "print(json.dumps(seen.fill(**json.loads(sys.argv[1]))), flush=True); os.kill(os.getpid(), 9)"
    done = subprocess.run(
        [sys.executable, "-c", program, json.dumps(arguments)], capture_output=True, encoding="utf-8"
    )
    if done.returncode != -9:
        raise measure.ChildFailed(f"seen.py {arguments}: {done.returncode}\n{done.stderr[-3000:]}")
    result: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return result


def layout(name: str, count: int, calls: int) -> dict[str, float]:
    directory = Path(tempfile.mkdtemp(prefix="benchmark-"))
    path = directory / "seen"
    arguments: dict[str, Any] = {"path": str(path), "layout": name, "count": count}
    try:
        result = killed(**arguments, calls=calls)
        result["after kill"] = measure.child(__file__, what="reopen", **arguments, rebuild=False)["seconds"]
        result["disk"] = on_disk(path) / count
        if LAYOUTS[name][0] is not None:
            shutil.rmtree(path / "bloom")
            seconds = measure.child(__file__, what="reopen", **arguments, rebuild=True)["seconds"]
            result["rebuild"] = count / seconds
        return result
    finally:
        shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    name, count = sys.argv[1:3]
    if name == "--child":
        measure.main(one, None, None)
    elif name == "filter":
        for kind in KINDS:
            print(kind, measure.child(__file__, what="filter", kind=kind, count=int(count), calls=20000))
        print(measure.child(__file__, what="fingerprint", calls=20000))
    else:
        print(name, layout(name, int(count), 20000))
