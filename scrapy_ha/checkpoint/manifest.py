"""Which snapshots a checkpoint directory has, and what it is at all."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from scrapy_ha.errors import StoreDamaged
from scrapy_ha.segments import files

FORMAT = 1
"""Of the directory. Raised with every change that an older version could not read."""
KIND = "scrapy_ha checkpoint"
MIGRATIONS: dict[int, Callable[[Path], None]] = {}
"""What brings a directory of the format to the next one. Every format but the last has one."""
FORMAT_FILE, MANIFEST_FILE = "FORMAT.json", "MANIFEST.json"
_CHUNK = 1 << 20


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One snapshot, as the manifest has it."""

    number: int
    """Of the first segment of the log that comes after it."""
    size: int
    sha256: str
    records: int
    time: float
    """When it was made, epoch seconds."""

    @property
    def name(self) -> str:
        return f"{self.number:08}.snapshot"

    def is_whole(self, directory: Path) -> bool:
        """Whether its file is what was written."""
        path = directory / self.name
        try:
            return path.stat().st_size == self.size and digest(path) == self.sha256
        except OSError:
            return False


def digest(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal."""
    sha = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            sha.update(chunk)
    return sha.hexdigest()


def read_manifest(directory: Path) -> list[Snapshot] | None:
    """The snapshots, oldest first; ``None``: the manifest is damaged."""
    path = directory / MANIFEST_FILE
    if not path.exists():
        return []
    try:
        content = json.loads(path.read_bytes())
        return [
            Snapshot(
                number=int(one["number"]),
                size=int(one["size"]),
                sha256=str(one["sha256"]),
                records=int(one["records"]),
                time=float(one["time"]),
            )
            for one in content["snapshots"]
        ]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None


def write_manifest(directory: Path, snapshots: list[Snapshot]) -> None:
    """Put it in the place of the old one, in one step that survives a power cut."""
    content = {"snapshots": [asdict(one) for one in snapshots]}
    write_whole(directory / MANIFEST_FILE, json.dumps(content, indent=1).encode())


def check_format(directory: Path, crawl: str | None) -> bool:
    """Whether *directory* is a checkpoint's already, of a format that is known; it stays untouched.

    Raises:
        StoreDamaged: It is something else, of a newer format, or another crawl's.
    """
    if not directory.exists():
        return False
    if not directory.is_dir():
        raise StoreDamaged(f"{directory} is not a directory; the checkpoint needs one of its own (HA_DIR)")
    marker = directory / FORMAT_FILE
    if not marker.exists():
        others = sorted(path.name for path in directory.iterdir() if path.name not in _BEFORE)
        if others:
            raise StoreDamaged(
                f"{directory} holds files that are not a checkpoint's (such as {others[0]!r}); it was left "
                "as it is. Set HA_DIR to another directory, or move the files away."
            )
        return False
    try:
        content: dict[str, Any] = json.loads(marker.read_bytes())
        kind, version, owner = content["kind"], content["format"], content.get("crawl")
    except (ValueError, KeyError, TypeError, RecursionError):
        raise StoreDamaged(f"{marker} is damaged. It was left as it is; bring back a copy of it.") from None
    if kind != KIND or not isinstance(version, int):
        raise StoreDamaged(f"{marker} says that this is {str(kind)[:80]!r}, not {KIND!r}")
    if version > FORMAT:
        raise StoreDamaged(
            f"{directory} has format {version}, and this version of scrapy_ha knows up to {FORMAT}. It was "
            "left as it is. Use a newer scrapy_ha, or another directory (HA_DIR)."
        )
    if crawl is not None and owner not in (None, crawl):
        raise StoreDamaged(
            f"{directory} holds the checkpoint of another crawl, {str(owner)[:80]!r}; this one is {crawl!r}. "
            "It was left as it is. Give each crawl a directory (HA_DIR) or a name (HA_NAMESPACE) of its own."
        )
    return True


def migrate(directory: Path) -> None:
    """Bring *directory*, which :func:`check_format` has accepted and nobody else has open, up to date."""
    version: int = json.loads((directory / FORMAT_FILE).read_bytes())["format"]
    for format_ in range(version, FORMAT):
        MIGRATIONS[format_](directory)


def write_format(directory: Path, crawl: str | None, versions: dict[str, str]) -> None:
    """Say what *directory* is, and which versions wrote it last."""
    content = {"kind": KIND, "format": FORMAT, "crawl": crawl, **versions}
    write_whole(directory / FORMAT_FILE, json.dumps(content).encode())


def write_whole(path: Path, data: bytes) -> None:
    """Have *path* hold *data*: either it does after a power cut, or what it held before."""
    new = path.with_name(path.name + ".new")
    handle = files.create(new)
    try:
        files.write(handle, data)
        files.fsync_handle(handle)
    finally:
        files.close(handle)
    files.replace(new, path)
    files.fsync(path.parent)


_BEFORE = {"lock", f"{FORMAT_FILE}.new"}
