"""What the benchmark programs share: child processes, spreads over rounds, tables.

Every figure is taken in a child process of its own, so that no variant meets the caches, the
heap or the open files of another. Variants take turns within one run: absolute figures of a
busy machine drift, ratios within a round hold.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


class ChildFailed(Exception):
    """A child process ended with an error; the message is the end of what it said."""


@dataclass
class Target:
    """What must hold, and whether it did."""

    what: str
    limit: str
    measured: str
    held: bool


@dataclass
class Section:
    """The outcome of one program."""

    title: str
    about: str
    columns: Sequence[str]
    rows: list[Sequence[str]] = field(default_factory=list)
    targets: list[Target] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    figures: dict[str, Any] = field(default_factory=dict)
    """The rows as plain numbers, for programs."""

    def markdown(self) -> str:
        parts = [f"## {self.title}", self.about, table(self.columns, self.rows)]
        if self.notes:
            parts.append("\n".join(f"- {note}" for note in self.notes))
        if self.targets:
            judged = [(t.what, t.limit, t.measured, "held" if t.held else "**missed**") for t in self.targets]
            parts.append(table(("target", "limit", "measured", "verdict"), judged))
        return "\n\n".join(parts) + "\n"


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def number(value: float) -> str:
    """Three significant digits, thousands separated."""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def spread(values: Sequence[float]) -> str:
    """The median, and the smallest and the largest where there are several."""
    median = number(statistics.median(values))
    return median if len(values) == 1 else f"{median} ({number(min(values))}–{number(max(values))})"


def rotated(variants: Sequence[str], rounds: int) -> Iterator[tuple[int, str]]:
    """Each variant once per round, in another order every time."""
    for turn in range(rounds):
        first = turn % len(variants)
        for variant in (*variants[first:], *variants[:first]):
            yield turn, variant


def child(script: str, **arguments: Any) -> dict[str, Any]:
    """What the program *script* measures in a new process, called with *arguments*.

    Raises:
        ChildFailed: It did not end well.
    """
    command = [sys.executable, script, "--child", json.dumps(arguments)]
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, encoding="utf-8", errors="replace"
    )
    if done.returncode:
        raise ChildFailed(
            f"{Path(script).name} {arguments}: exit status {done.returncode}\n{done.stderr[-3000:]}"
        )
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def main(
    measure: Callable[..., dict[str, Any]],
    options: Callable[[], argparse.ArgumentParser],
    run: Callable[[argparse.Namespace], Section],
) -> None:
    """The program itself: one measurement when called as a child, else all of them and a table."""
    if sys.argv[1:2] == ["--child"]:
        print(json.dumps(measure(**json.loads(sys.argv[2]))), flush=True)
        return
    try:
        print(run(options().parse_args()).markdown())
    except ChildFailed as error:
        sys.exit(str(error))


def progress(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def peak_rss() -> float:
    """The most memory that this process has had, in MB."""
    try:
        # ru_maxrss of a child starts at what its parent had; this does not.
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) / 1024
    except OSError:
        pass
    unit = 1024 if sys.platform != "darwin" else 1024 * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit
