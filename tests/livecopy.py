"""A copy of files while somebody writes them: what a killed process would have left."""

from __future__ import annotations

import shutil
from pathlib import Path


def copy_live(source: Path, target: Path) -> None:
    """Copy the directory *source* to *target* as it is at one moment.

    LevelDB compacts in a thread of its own, so it is tried until nothing changed meanwhile.
    """
    while True:
        before = _listing(source)
        try:
            shutil.copytree(source, target)
        except shutil.Error:  # a file has gone
            pass
        else:
            if before is not None and _listing(source) == before:
                return
        shutil.rmtree(target)


def _listing(directory: Path) -> list[tuple[str, int, int]] | None:
    try:
        found = [(str(path), path.stat()) for path in sorted(directory.rglob("*"))]
    except FileNotFoundError:
        return None
    return [(path, stat.st_size, stat.st_mtime_ns) for path, stat in found]
