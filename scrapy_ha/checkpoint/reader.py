"""Looks at a checkpoint without opening it, and takes one back to an older snapshot."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from scrapy_ha.checkpoint.manifest import Snapshot, check_format, read_manifest, write_manifest
from scrapy_ha.checkpoint.store import CLEAN
from scrapy_ha.checkpoint.wal import LOG, SNAPSHOT, Record, read_segment
from scrapy_ha.errors import StoreDamaged, StoreError
from scrapy_ha.lock import DirectoryLock
from scrapy_ha.segments import files
from scrapy_ha.segments.format import Format, Gap, NewerVersion, scan


@dataclass(slots=True)
class Findings:
    """What :meth:`CheckpointReader.verify` came across."""

    records: int = 0
    """Whole ones."""
    torn_bytes: int = 0
    """At the very end: a record that is being written, or whose writing a kill cut short."""
    damages: list[str] = field(default_factory=list)
    """What is wrong, and where."""


class CheckpointReader:
    """What the checkpoint in *path* holds at this moment; needs no lock.

    Raises:
        StoreDamaged: It is none, or of a newer format, or its manifest is damaged.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        if not check_format(path, None):
            raise StoreDamaged(f"{path} is no checkpoint")
        snapshots = read_manifest(path)
        if snapshots is None:
            raise StoreDamaged(f"{path}: the manifest is damaged; the next start of the crawl makes it anew")
        self.snapshots = snapshots
        """Oldest first."""

    def log(self) -> list[Path]:
        """The segments since the newest snapshot."""
        first = self.snapshots[-1].number if self.snapshots else 0
        return [
            one for one in files.list_segments(self.path, LOG.suffix) if files.segment_number(one) >= first
        ]

    def records(self, number: int | None = None) -> Iterator[Record]:
        """Those of snapshot *number*, or of the newest one and of the log since then.

        Raises:
            StoreError: There is no such snapshot, or it cannot be read.
        """
        try:
            if number is not None:
                yield from self._of(self._snapshot(number))
                return
            if self.snapshots:
                yield from self._of(self.snapshots[-1])
            for segment in self.log():
                for record in read_segment(segment, LOG):
                    if record.kind != CLEAN:
                        yield record
        except (OSError, NewerVersion) as error:
            raise StoreError(f"{self.path} cannot be read: {error}") from error

    def verify(self) -> Findings:
        """Read everything."""
        findings = Findings()
        for snapshot in self.snapshots:
            if snapshot.is_whole(self.path):
                findings.records += snapshot.records
            else:
                findings.damages.append(f"{snapshot.name} is missing, or is not what was written")
        first = self.snapshots[0].number if self.snapshots else 0
        segments = files.list_segments(self.path, LOG.suffix)
        for segment in segments:
            if files.segment_number(segment) >= first:
                self._verify(segment, LOG, segment is segments[-1], findings)
        return findings

    def _verify(self, segment: Path, form: Format, last: bool, findings: Findings) -> None:
        try:
            with segment.open("rb", buffering=1 << 20) as file:
                for found in scan(file, segment.stat().st_size, form):
                    if not isinstance(found, Gap):
                        findings.records += 1
                    elif found.tail and last:
                        findings.torn_bytes += found.end - found.start
                    else:
                        findings.damages.append(f"{segment.name}, bytes {found.start} to {found.end}")
        except (OSError, NewerVersion) as error:
            findings.damages.append(f"{segment.name} cannot be read: {error}")

    def _of(self, snapshot: Snapshot) -> Iterator[Record]:
        for record in read_segment(self.path / snapshot.name, SNAPSHOT):
            if record.kind != CLEAN:
                yield record

    def _snapshot(self, number: int) -> Snapshot:
        for snapshot in self.snapshots:
            if snapshot.number == number:
                return snapshot
        known = ", ".join(str(snapshot.number) for snapshot in self.snapshots)
        raise StoreError(f"There is no snapshot {number} in {self.path}; there are: {known or 'none'}")


def restore(path: Path, number: int) -> list[Path]:
    """Have snapshot *number* be the newest in the checkpoint at *path*, and nothing come after it.

    When the process dies meanwhile, the checkpoint is that of a moment between then and now; do it again.

    Returns:
        The files that came after it, under the names that they have from now on.

    Raises:
        StoreLocked: A crawl has it open.
        StoreError, StoreDamaged: There is no such snapshot, or it is not whole. Nothing was changed.
    """
    CheckpointReader(path)  # before a lock file is made in what is no checkpoint
    lock = DirectoryLock(path)
    lock.acquire()
    try:
        reader = CheckpointReader(path)
        chosen = reader._snapshot(number)
        if not chosen.is_whole(path):
            raise StoreDamaged(f"{path / chosen.name} is missing, or is not what was written")
        write_manifest(path, [one for one in reader.snapshots if one.number <= number])
        later = [path / one.name for one in reader.snapshots if one.number > number]
        later += [one for one in files.list_segments(path, LOG.suffix) if files.segment_number(one) >= number]
        aside = []
        for file in reversed(later):  # so that the log has no hole at any moment
            name = files.free_name(file, "before-restore")
            files.replace(file, name)
            aside.append(name)
        files.fsync(path)
        return aside
    except OSError as error:
        raise StoreError(f"{path} cannot be changed: {error}") from error
    finally:
        lock.release()
