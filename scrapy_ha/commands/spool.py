"""``scrapy ha spool``: the items that a crawl keeps on disk."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from scrapy_ha.commands._output import output
from scrapy_ha.commands._sub import add_crawl, crawl_directory
from scrapy_ha.errors import BadRecord, StoreError
from scrapy_ha.pipelines.jsonlines import to_line
from scrapy_ha.pipelines.reader import SpoolReader
from scrapy_ha.serialize import decode_value

if TYPE_CHECKING:
    import argparse

    from scrapy.settings import BaseSettings

_EXPORT_HELP = """\
Write the documents to FILE.jsonl, one JSON object per line, in UTF-8: of each document the version
stored last. Works while the crawl runs. The file appears when it is complete; until then it is
FILE.jsonl.part. Exit status: 0: everything was written; 1: it was, but damaged records were left
out; 2: nothing was written."""


class SpoolCommand:
    def configure(self, parser: argparse.ArgumentParser) -> None:
        actions = parser.add_subparsers(metavar="ACTION", required=True)
        export = actions.add_parser(
            "export", help="write the documents to a file, as JSON lines", description=_EXPORT_HELP
        )
        export.add_argument("file", metavar="FILE.jsonl", help='"-" for the standard output')
        add_crawl(export)
        export.set_defaults(action=_export)

    def run(self, settings: BaseSettings, options: argparse.Namespace) -> int:
        status: int = options.action(settings, options)
        return status


def _export(settings: BaseSettings, options: argparse.Namespace) -> int:
    path = crawl_directory(settings, options)
    if options.dir is None or (path / "spool").is_dir():
        path = path / "spool"
    reader = SpoolReader(path)
    documents = 0
    unreadable = 0
    try:
        with output(options.file) as file:
            for record in reader.documents():
                try:
                    line = to_line(_document(record.payload))
                except (BadRecord, ValueError, RecursionError):
                    unreadable += 1
                else:
                    file.write(line)
                    documents += 1
    except OSError as error:
        raise StoreError(f"{options.file} cannot be written: {error.strerror or error}") from error
    found = reader.findings
    summary = [f"{documents} documents, from {found.records} records in {path}"]
    if found.torn_bytes:
        summary.append(
            f"{found.torn_bytes} bytes at the end are no whole record: it is being written, or a kill cut it"
        )
    if found.damaged_bytes:
        summary.append(f"DAMAGED: {found.damaged_bytes} bytes are no records: {'; '.join(found.damages)}")
    if unreadable:
        summary.append(f"UNREADABLE: {unreadable} documents, whole but of no known format, were left out")
    print("\n".join(summary), file=sys.stderr if options.file == "-" else sys.stdout)
    return 1 if found.damaged_bytes or unreadable else 0


def _document(payload: bytes) -> dict[str, Any]:
    record = decode_value(payload)
    data = record.get("doc") if type(record) is dict else None
    document = decode_value(data) if type(data) is bytes else None
    if type(document) is not dict:
        raise BadRecord("no document")
    return document
