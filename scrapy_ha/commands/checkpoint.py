"""``scrapy ha checkpoint``: the state that a crawl keeps."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

from scrapy_ha import stats as names
from scrapy_ha.checkpoint.ledger import (
    DONE,
    MARK,
    NAMES,
    PART,
    SCHEDULED,
    SEED,
    Ledger,
    Scheduled,
    unpack_done,
)
from scrapy_ha.checkpoint.reader import CheckpointReader, restore
from scrapy_ha.commands._sub import UsageError, add_crawl, crawl_directory
from scrapy_ha.errors import BadRecord
from scrapy_ha.serialize import decode_value, describe_request

if TYPE_CHECKING:
    import argparse
    from pathlib import Path

    from scrapy.settings import BaseSettings

    from scrapy_ha.checkpoint.wal import Record

_VERIFY_HELP = """\
Read everything, and compare it with its checksums. Works while the crawl runs. Exit status: 0: it is
whole, but perhaps for the record that is being written; 1: something is damaged."""
_SHOW_HELP = """\
Print the records as JSON, one per line: of the newest snapshot and of the log since then, or of a
snapshot by its number. Works while the crawl runs."""
_RESTORE_HELP = """\
Have the crawl go on from an older snapshot, by its number. Not while it runs. Nothing is deleted: what
came after the snapshot is kept aside. Pages that were done since are fetched again."""


class CheckpointCommand:
    def configure(self, parser: argparse.ArgumentParser) -> None:
        actions = parser.add_subparsers(metavar="ACTION", required=True)
        list_ = actions.add_parser("list", help="the snapshots, and the log")
        list_.set_defaults(action=_list)
        verify = actions.add_parser("verify", help="whether all of it is whole", description=_VERIFY_HELP)
        verify.set_defaults(action=_verify)
        show = actions.add_parser("show", help="what is in it, as JSON", description=_SHOW_HELP)
        show.add_argument("--snapshot", metavar="NUMBER", type=int, help="of this snapshot alone")
        show.add_argument("--kind", choices=sorted(NAMES.values()), help="records of this kind only")
        show.set_defaults(action=_show)
        restore_ = actions.add_parser(
            "restore", help="go on from an older snapshot", description=_RESTORE_HELP
        )
        restore_.add_argument("number", metavar="NUMBER", type=int, help="as list shows it")
        restore_.set_defaults(action=_restore)
        for action in (list_, verify, show):
            add_crawl(action)
        add_crawl(restore_, "--spider")

    def run(self, settings: BaseSettings, options: argparse.Namespace) -> int:
        path = crawl_directory(settings, options)
        if (path / "checkpoint").is_dir():
            path = path / "checkpoint"
        if not (path / "FORMAT.json").is_file():
            raise UsageError(f"there is no checkpoint in {path}")
        status: int = options.action(path, options)
        return status


def _list(path: Path, options: argparse.Namespace) -> int:
    reader = CheckpointReader(path)
    for snapshot in reader.snapshots:
        made = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(snapshot.time))
        print(f"{snapshot.number:>8}  {made}  {snapshot.records} records, {snapshot.size} bytes")
    log = reader.log()
    size = sum(segment.stat().st_size for segment in log)
    print(f"{len(reader.snapshots)} snapshots; the log since the last has {len(log)} segments, {size} bytes")
    progress = _progress(reader)
    if progress:
        print(progress)
    return 0


def _progress(reader: CheckpointReader) -> str:
    """How far the crawl has come; "" if nothing says so."""
    ledger = Ledger()
    ledger.read(reader.records())
    try:
        _, stats = decode_value(ledger.parts["stats"])
        runs, seconds = int(stats[names.CHECKPOINT_RUNS]), float(stats[names.CHECKPOINT_SECONDS])
        responses, items = (
            int(stats.get(name, 0)) for name in ("response_received_count", "item_scraped_count")
        )
    except (KeyError, BadRecord, TypeError, ValueError, OverflowError):
        return ""
    state = "finished" if ledger.finished else "under way"
    return f"{state}: {runs} runs, {seconds:,.0f} s together, {responses:,} responses, {items:,} items"


def _verify(path: Path, options: argparse.Namespace) -> int:
    findings = CheckpointReader(path).verify()
    for line in findings.damages:
        print(f"DAMAGED: {line}")
    if findings.torn_bytes:
        print(f"{findings.torn_bytes} bytes at the end are no whole record: it is being written, or was cut")
    print(f"{findings.records} records are whole")
    return 1 if findings.damages else 0


def _show(path: Path, options: argparse.Namespace) -> int:
    reader = CheckpointReader(path)
    for record in reader.records(options.snapshot):
        name = NAMES.get(record.kind, str(record.kind))
        if options.kind in (None, name):
            print(json.dumps({"kind": name, **_plain(describe(record))}, ensure_ascii=False, default=repr))
    return 0


def _plain(value: Any) -> Any:
    """*value* with keys that JSON has."""
    if isinstance(value, dict):
        return {key if isinstance(key, str) else repr(key): _plain(one) for key, one in value.items()}
    return [_plain(one) for one in value] if isinstance(value, list | tuple) else value


def _restore(path: Path, options: argparse.Namespace) -> int:
    aside = restore(path, options.number)
    print(f"The crawl goes on from snapshot {options.number}; {len(aside)} files are kept aside")
    return 0


def describe(record: Record) -> dict[str, Any]:
    """What is in *record*, in values that JSON knows."""
    try:
        return _described(record)
    except (BadRecord, UnicodeDecodeError) as error:
        return {"unreadable": str(error), "bytes": len(record.payload)}


def _described(record: Record) -> dict[str, Any]:
    kind, key, payload = record.kind, record.key, record.payload
    if kind == PART:
        version, data = decode_value(payload)
        return {"name": key.decode(), "version": version, "data": data}
    if kind == MARK:
        return {"name": key.decode(), "bytes": len(payload)}
    if kind == SCHEDULED:
        scheduled = Scheduled.unpack(payload)
        return {
            "id": int.from_bytes(key, "big"),
            "parent": scheduled.parent,
            "fingerprint": scheduled.key.hex(),
            "request": describe_request(scheduled.payload),
        }
    if kind == DONE:
        fingerprint, marks = unpack_done(payload)
        return {"id": int.from_bytes(key, "big"), "fingerprint": fingerprint.hex(), "marks": sorted(marks)}
    if kind == SEED:
        return {"key": key.hex(), "number": int.from_bytes(payload, "big")}
    return {}
