"""``scrapy ha checkpoint``, on the checkpoint of a crawl that was killed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from scrapy.settings import Settings

from scrapy_ha.checkpoint.ledger import DONE, PART, SCHEDULED, Ledger, Scheduled, fold, pack_done, pack_id
from scrapy_ha.checkpoint.store import CheckpointStore
from scrapy_ha.commands._sub import Parser, UsageError
from scrapy_ha.commands.checkpoint import CheckpointCommand
from scrapy_ha.errors import StoreError, StoreLocked
from scrapy_ha.serialize import encode_value


def run(directory: Path, *arguments: str) -> int:
    parser = Parser(prog="checkpoint")
    command = CheckpointCommand()
    command.configure(parser)
    return command.run(Settings(), parser.parse_args([*arguments, "--dir", str(directory)]))


def nothing(keys: list[bytes]) -> None:
    pass


@pytest.fixture
def store(tmp_path: Path) -> CheckpointStore:
    """Three snapshots, with one, two and three requests pending, and a state; and one more in the log."""
    store = CheckpointStore(tmp_path / "checkpoint")
    store.open()
    for n in range(1, 5):
        store.append(SCHEDULED, pack_id(n), Scheduled(b"no request", b"%d" % n).pack())
        store.append(PART, b"spider.state", encode_value([1, {"n": n}]))
        store.flush()
        if n < 4:
            store.begin_snapshot().run(lambda read: fold(read, nothing))
    return store


def test_beside_the_crawl(store: CheckpointStore, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Looking works while it runs; going back does not."""
    assert run(tmp_path, "list") == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[:3]] == ["2", "3", "4"]
    assert lines[3].startswith("3 snapshots; the log since the last has 1 segments")
    assert run(tmp_path, "verify") == 0
    assert run(tmp_path, "show", "--kind", "part") == 0
    shown = [json.loads(line) for line in capsys.readouterr().out.splitlines()[1:]]
    assert [one["data"] for one in shown] == [{"n": 3}, {"n": 4}]
    assert run(tmp_path, "show", "--snapshot", "2") == 0
    kinds = [json.loads(line)["kind"] for line in capsys.readouterr().out.splitlines()]
    assert sorted(kinds) == ["part", "scheduled"]
    with pytest.raises(StoreLocked):
        run(tmp_path, "restore", "2")
    store.close()


def test_going_back(store: CheckpointStore, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """To a snapshot: what came after is kept aside, and the crawl goes on from there."""
    store.close()
    files = {path.name: path.read_bytes() for path in (tmp_path / "checkpoint").glob("0*")}
    with pytest.raises(StoreError, match="There is no snapshot 9"):
        run(tmp_path, "restore", "9")
    assert run(tmp_path, "restore", "3") == 0
    again = CheckpointStore(tmp_path / "checkpoint")
    again.open()
    ledger = Ledger()
    ledger.read(again.read())
    assert list(ledger.pending) == [1, 2]
    again.append(DONE, pack_id(1), pack_done(b"1", {}))
    again.flush()
    again.close()
    third = CheckpointStore(tmp_path / "checkpoint")
    third.open()
    ledger = Ledger()
    ledger.read(third.read())
    assert list(ledger.pending) == [2]
    third.close()
    kept = [path.read_bytes() for path in (tmp_path / "checkpoint").glob("*.before-restore-*")]
    assert all(data in kept for name, data in files.items() if name in {"00000004.wal", "00000004.snapshot"})


def test_damage_is_found(store: CheckpointStore, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In snapshots and in the log, by name."""
    store.close()
    snapshot = tmp_path / "checkpoint" / "00000003.snapshot"
    snapshot.write_bytes(snapshot.read_bytes()[:-1])
    segment = tmp_path / "checkpoint" / "00000003.wal"
    data = bytearray(segment.read_bytes())
    data[30] ^= 1
    segment.write_bytes(data)
    assert run(tmp_path, "verify") == 1
    said = capsys.readouterr().out
    assert "DAMAGED: 00000003.snapshot" in said
    assert "DAMAGED: 00000003.wal" in said


def test_nothing_there(tmp_path: Path) -> None:
    """One clear line."""
    with pytest.raises(UsageError, match="there is no checkpoint in"):
        run(tmp_path, "list")
