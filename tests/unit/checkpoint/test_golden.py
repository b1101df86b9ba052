"""A checkpoint of every format that was released is read by this release and by those to come."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from scrapy_ha.checkpoint import manifest
from scrapy_ha.checkpoint.ledger import Ledger, Scheduled, pending
from scrapy_ha.checkpoint.store import CheckpointStore
from scrapy_ha.errors import StoreDamaged
from scrapy_ha.serialize import decode_value

GOLDEN = Path(__file__).parents[2] / "golden"


def copied(tmp_path: Path, name: str) -> Path:
    return Path(shutil.copytree(GOLDEN / name, tmp_path / name))


def test_format_1(tmp_path: Path) -> None:
    """One snapshot, and a log after it, as 0.1.0 wrote them before it was killed."""
    done: list[bytes] = []
    store = CheckpointStore(copied(tmp_path, "checkpoint-1"), crawl="golden")
    found = store.open()
    assert (found.fresh, found.damaged, found.recovery.aside) == (False, [], [])
    ledger = Ledger(done.extend)
    ledger.read(store.read())
    left = [Scheduled.unpack(record.payload) for record in pending(store.read(), ledger)]
    assert not store.clean
    store.close()
    assert left == [
        Scheduled(b"request 2", b"", 0, b"seed"),
        Scheduled(b"request 4", b"", 1, b"seed"),
        Scheduled(b"request 5", b"key 5", 1),
        Scheduled(b"request 6", b"key 6"),
    ]
    assert decode_value(ledger.parts["spider.state"]) == [1, {"page": 3, "names": {"a", "b"}}]
    assert ledger.marks == {"feed:items.jl": b"360"}
    assert (ledger.seeded, ledger.finished, ledger.bad) == (True, False, 0)
    assert done == [b"key 3"]


def test_an_older_format_is_brought_up_to_date(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By one migration after the other; what they leave bears the newest format."""
    path = copied(tmp_path, "checkpoint-1")
    steps: list[tuple[int, Path]] = []
    monkeypatch.setattr(manifest, "FORMAT", 3)
    monkeypatch.setattr(
        manifest,
        "MIGRATIONS",
        {1: lambda path: steps.append((1, path)), 2: lambda path: steps.append((2, path))},
    )
    store = CheckpointStore(path)
    store.open()
    assert steps == [(1, path), (2, path)]
    store.close()
    monkeypatch.setattr(manifest, "FORMAT", 2)
    with pytest.raises(StoreDamaged, match="format 3"):
        CheckpointStore(path).open()
