"""All benchmarks, and their report in REPORT.md.

The exit status is 1 when a target is missed, which says something only on a machine that is
otherwise idle. ``--quick`` runs tiny sizes, to see that the programs work, and judges nothing.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import crawl
import deadhost
import decisions
import hotpath
import measure
import memory
import seen
import tombstones
import variants

PROGRAMS = {
    "crawl": crawl,
    "hotpath": hotpath,
    "decisions": decisions,
    "memory": memory,
    "tombstones": tombstones,
    "seen": seen,
    "deadhost": deadhost,
}
PACKAGES = (
    "scrapy-ha",
    "Scrapy",
    "Twisted",
    "lxml",
    "parsel",
    "plyvel",
    "plyvel-next",
    "msgspec",
    "pybloom-live",
    "rbloom",
)


def versions() -> str:
    found = [f"Python {platform.python_version()}"]
    for name in PACKAGES:
        try:
            found.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            continue
    return ", ".join(found)


def machine() -> str:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    parts = [processor(), f"{cores} cores", f"{platform.system()} {platform.release()}"]
    if hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        memory_size = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        parts.insert(2, f"{memory_size / 2**30:.0f} GiB of memory")
    parts.append(f"files on {filesystem(tempfile.gettempdir())}")
    if hasattr(os, "getloadavg"):
        parts.append(f"load {os.getloadavg()[0]:.1f} at the start")
    return ", ".join(parts)


def processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def filesystem(directory: str) -> str:
    command = ["stat", "-f", "-c", "%T", directory]
    try:
        return subprocess.run(command, capture_output=True, check=True, encoding="utf-8").stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "an unknown file system"


def report(sections: list[measure.Section], quick: bool, about: list[tuple[str, str]]) -> str:
    legend = measure.table(
        ("scheduler", "what it is"), [(f"`{name}`", what) for name, what in variants.ABOUT.items()]
    )
    head = ["# Benchmarks", measure.table(("", ""), about), legend]
    if quick:
        head.insert(1, "A quick run, to see that the programs work: the figures mean nothing.")
    return "\n\n".join(head + [section.markdown() for section in sections])


def options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "programs", nargs="*", metavar="program", help=f"of {', '.join(PROGRAMS)}; default: all"
    )
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--rounds", type=int, help="rounds of the programs that take turns")
    parser.add_argument(
        "--report", type=Path, help="default: REPORT.md beside the programs; with --quick none"
    )
    parser.add_argument("--figures", type=Path, help="where to write the figures as JSON")
    return parser


def run(given: argparse.Namespace) -> int:
    about = [("machine", machine()), ("versions", versions()), ("date", time.strftime("%Y-%m-%d"))]
    arguments = [*given.programs, *(["--quick"] if given.quick else [])]
    arguments += [f"--rounds={given.rounds}"] if given.rounds else []
    about.append(("to repeat", f"`{' '.join(['python benchmarks/run.py', *arguments])}`"))
    sections = []
    for name in given.programs or PROGRAMS:
        program = PROGRAMS[name]
        chosen = program.options().parse_args(program.QUICK if given.quick else [])
        if given.rounds and "rounds" in chosen:
            chosen.rounds = given.rounds
        sections.append(program.run(chosen))
    text = report(sections, given.quick, about)
    print(text)
    path = given.report or (None if given.quick else Path(__file__).with_name("REPORT.md"))
    if path is not None:
        path.write_text(text, encoding="utf-8")
    if given.figures is not None:
        given.figures.write_text(
            json.dumps({section.title: section.figures for section in sections}, indent=1)
        )
    missed = [target for section in sections for target in section.targets if not target.held]
    return 1 if missed and not given.quick else 0


if __name__ == "__main__":
    parser = options()
    given = parser.parse_args()
    if unknown := set(given.programs) - set(PROGRAMS):
        parser.error(f"there is no program {', '.join(sorted(unknown))}; there are {', '.join(PROGRAMS)}")
    try:
        sys.exit(run(given))
    except measure.ChildFailed as error:
        sys.exit(str(error))
