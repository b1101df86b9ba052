"""The benchmark programs run, and measure what they say."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


def run(script: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(BENCHMARKS / script), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, encoding="utf-8")


def test_a_quick_run_reports_sane_figures(tmp_path: Path) -> None:
    """Far wider bounds than the targets: a wrong unit or a call that did nothing is noticed."""
    report, figures = tmp_path / "REPORT.md", tmp_path / "figures.json"
    done = run("run.py", "--quick", "--report", report, "--figures", figures)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == report.read_text("utf-8").strip()

    crawl, calls, decisions, memory, pops, seen, dead = json.loads(figures.read_text("utf-8")).values()
    assert set(crawl) == {"memory/10", "ha/10"}
    for measured in crawl.values():
        between(1, measured["pages_per_second"], 10_000)
        between(0.02, measured["speed_of_memory"], 50)
        between(20, measured["rss"], 1000)

    kinds = ("new", "duplicate, popular", "duplicate, any", "next", "end")
    assert set(calls) == {f"{variant}/{kind}/500" for variant in ("memory", "ha") for kind in kinds}
    for measured in calls.values():
        between(0.05, measured["median"], 5000)
        between(max(measured["median"]), measured["p99"], 1e6)
    assert calls["ha/duplicate, popular/500"]["median"] < calls["ha/new/500"]["median"]

    assert set(memory) == {"ha empty", "ha hosts=100"}
    between(0.1, memory["ha hosts=100"]["disk"], 100)
    between(5, memory["ha hosts=100"]["descriptors"], 100)
    between(-20, memory["ha hosts=100"]["over_empty"], 150)

    assert set(pops) == {"fifo", "lifo", "delayed"}
    for measured in pops.values():
        between(1, measured["first"], 5000)
        between(1, measured["last"], 5000)

    assert set(decisions) == {f"{variant}/{status}" for variant in ("scrapy", "ha") for status in (200, 503)}
    kinds = [name.split()[0] for name in seen if name.endswith("alone/20000")]
    assert "pybloom" in kinds
    for kind in kinds:
        between(0.05, seen[f"{kind} alone/20000"]["new"], 200)
        store = seen[f"{kind}, LevelDB without/20000"]
        between(0.05, store["new"], 200)
        between(20, store["disk"], 60)
        between(0.001, store["killed"], 10)
        between(10_000, store["rebuild"], 1e8)

    for measured in decisions.values():
        between(0.05, measured["median"], 5000)

    assert set(dead) == {"none", "refused", "hanging"}
    for case, measured in dead.items():
        between(0.5, measured["rate"], 10_000)
        between(0 if case == "none" else 1, measured["sent"], 50)

    assert report.read_text("utf-8").count("| target |") == 7


def between(least: float, values: list[float], most: float) -> None:
    assert values
    assert all(least <= value <= most for value in values), (least, values, most)


def test_a_crawl_that_misses_pages_is_no_figure() -> None:
    """The site has fewer pages than expected: the program fails and says why."""
    command = [sys.executable, str(BENCHMARKS / "site.py"), "--pages=3", "--links=2"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as site:
        assert site.stdout is not None
        url = f"http://127.0.0.1:{int(site.stdout.readline())}"
        done = run("crawl.py", "--child", json.dumps({"variant": "memory", "site": url, "pages": 5}))
    assert done.returncode != 0
    assert "memory parsed 3 pages of 5" in done.stderr
