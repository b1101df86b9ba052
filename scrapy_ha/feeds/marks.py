"""What is stored with an acknowledgement about one feed, so that a later run can go on with it."""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from typing import TypeAlias

from scrapy_ha.errors import BadRecord

Fields: TypeAlias = "list[str] | dict[str, str] | None"
"""Scrapy's ``fields_to_export``."""

VERSION = 1


@dataclass(frozen=True, slots=True)
class Mark:
    """Where a feed stood."""

    uri: str
    """With its placeholders filled in: a resumed run writes to the same one, whatever time it is."""
    batch_id: int
    items: int
    """How many items the current batch holds."""
    position: int | None = None
    """How long the file was, in bytes, without what closes it. ``None``: it was not open yet, or
    it is no file that could be cut back."""
    last: bytes = b""
    """The last bytes before *position*: tells whether a file is the one that was written."""
    fields: Fields = None
    """The columns, where the exporter settled on them by itself (CSV)."""

    def dump(self) -> bytes:
        return json.dumps(
            {
                "version": VERSION,
                "uri": self.uri,
                "batch_id": self.batch_id,
                "items": self.items,
                "position": self.position,
                "last": base64.b64encode(self.last).decode(),
                "fields": self.fields,
            },
            default=str,
        ).encode()

    @classmethod
    def load(cls, stored: bytes) -> Mark:
        """The inverse of :meth:`dump`.

        Raises:
            BadRecord: *stored* is nothing that :meth:`dump` of this version gives.
        """
        try:
            record = json.loads(stored)
            if record.pop("version") != VERSION:
                raise BadRecord("it was stored by another version")
            mark = cls(**{**record, "last": base64.b64decode(record["last"], validate=True)})
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise BadRecord(f"a stored position of a feed cannot be read: {error}") from error
        position = 0 if mark.position is None else mark.position
        whole = all(type(number) is int and number >= 0 for number in (mark.batch_id, mark.items, position))
        if not whole or type(mark.uri) is not str or not isinstance(mark.fields, (list, dict, type(None))):
            raise BadRecord("a stored position of a feed has values that it cannot have")
        return mark
