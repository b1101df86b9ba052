"""Feed formats that can be continued in a file that was begun earlier.

One private name of Scrapy is used here, ``CsvItemExporter._autodetected_fields``: without it a
continued file would still be right, but fields that it has no column for would be dropped
without Scrapy's warning.
"""

from __future__ import annotations

import codecs
import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from scrapy.exporters import (
    CsvItemExporter,
    JsonItemExporter,
    JsonLinesItemExporter,
    MarshalItemExporter,
    PickleItemExporter,
    PprintItemExporter,
    XmlItemExporter,
)

if TYPE_CHECKING:
    from scrapy_ha.feeds.marks import Fields

CONTINUABLE = (
    JsonLinesItemExporter,
    CsvItemExporter,
    JsonItemExporter,
    XmlItemExporter,
    PickleItemExporter,
    MarshalItemExporter,
    PprintItemExporter,
)
"""With their subclasses: what ``start_exporting()`` of these writes is left out on a continuation,
and each item follows the one before."""


def continuable(exporter: Any) -> bool:
    """Whether an exporter class, or what else stands in ``FEED_EXPORTERS``, can go on in a file."""
    return isinstance(exporter, type) and issubclass(exporter, CONTINUABLE)


def line_check(exporter: Any, encoding: str | None) -> Callable[[bytes], bool] | None:
    """What tells whether a line of this format is whole; ``None`` where lines mean nothing."""
    if "\n".encode(encoding or "utf-8") != b"\n":
        return None
    if issubclass(exporter, JsonLinesItemExporter):
        return _is_json
    if issubclass(exporter, CsvItemExporter):
        return _has_closed_quotes
    return None


def closing(exporter: Any) -> bytes:
    """What ``finish_exporting()`` will write."""
    if isinstance(exporter, JsonItemExporter):
        return b"]" if exporter.indent is None else b"\n]"
    if isinstance(exporter, XmlItemExporter):
        encoder = codecs.getincrementalencoder(exporter.encoding or "utf-8")("xmlcharrefreplace")
        encoder.encode(" ")  # the BOM, which stands at the beginning of the file
        return encoder.encode(f"</{exporter.root_element}>")
    return b""


def fields(exporter: Any) -> Fields:
    """The columns of a CSV exporter, found by itself or given."""
    if not isinstance(exporter, CsvItemExporter) or exporter.fields_to_export is None:
        return None
    fields = exporter.fields_to_export
    return dict(fields) if isinstance(fields, Mapping) else list(fields)


def go_on(exporter: Any, items: int, fields: Fields) -> None:
    """Have a started *exporter*, whose opening was not written, go on after *items* items."""
    if not items:
        return
    if isinstance(exporter, JsonItemExporter):
        exporter.first_item = False
    elif isinstance(exporter, CsvItemExporter) and exporter.include_headers_line:
        exporter.include_headers_line = False
        if fields:
            exporter._autodetected_fields = not exporter.fields_to_export
            exporter.fields_to_export = fields


def _is_json(line: bytes) -> bool:
    try:
        json.loads(line)
    except (ValueError, RecursionError):
        return False
    return True


def _has_closed_quotes(line: bytes) -> bool:
    return line.count(b'"') % 2 == 0
