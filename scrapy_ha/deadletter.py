"""Why a request was given up: the record that is kept with it in the dead state.

A record is one JSON object with a version, of bounded size. It is written where a request is given
up, and read where an operator looks at it, possibly by another release and from a directory that
came from anywhere.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

VERSION = 1
"""Raised with a change after which an older release would misread a record. A field that is added is
none."""

POISON = "poison"
"""Class of a request that was being worked on at too many ends of its worker."""
BAD_RECORD = "bad_record"
"""Class of a stored request that cannot be read."""
CALLBACK = "callback"
"""Class of a page whose callback or errback raised."""
UNREADABLE = "unreadable"
"""Class that is shown when the record itself cannot be read."""

ERRORS_KEPT = 5
"""The last failures that are kept with a request."""
REASON_LIMIT = 500
"""Characters of a reason."""
URL_LIMIT = 2048
"""Characters of a URL; the whole one is in the request."""
TRACEBACK_LIMIT = 8000
"""Characters of a traceback; what is cut is in the middle."""
NAME_LIMIT = 100
"""Characters of the name of a class, slot, method or spider."""
ATTEMPTS_LIMIT = 50
"""Failure classes that are counted."""
SIZE_LIMIT = 2**18
"""Bytes of a record that are read; none that is written here is as long."""


@dataclass(frozen=True)
class Failed:
    """One failed attempt."""

    cls: str
    """Failure class."""
    reason: str
    time: float
    """Epoch seconds."""


@dataclass(frozen=True)
class DeadLetter:
    """What is known of a request that was given up. Times are epoch seconds."""

    cls: str
    """Failure class, or one of the classes of this module."""
    reason: str
    """One line for a person."""
    time: float
    """When it was given up."""
    errors: tuple[Failed, ...] = ()
    """The last failures, the latest at the end."""
    attempts: Mapping[str, int] = field(default_factory=dict)
    """Failed attempts by failure class."""
    first_failure: float | None = None
    last_failure: float | None = None
    slot: str = ""
    """Download slot."""
    url: str = ""
    method: str = ""
    parent: str = ""
    """URL of the page that the request was found on."""
    traceback: str = ""
    """Of an exception in a callback or errback."""
    spider: str = ""
    deliveries: int = 0
    """How often the request was being worked on: several times if its worker died."""

    def pack(self) -> bytes:
        """The record, with everything cut to its limit. Never raises on any text or number."""
        record = {
            "version": VERSION,
            "class": _line(self.cls, NAME_LIMIT),
            "reason": _line(self.reason, REASON_LIMIT),
            "time": _finite(self.time),
            "errors": [
                [_line(one.cls, NAME_LIMIT), _line(one.reason, REASON_LIMIT), _finite(one.time)]
                for one in self.errors[-ERRORS_KEPT:]
            ],
            "attempts": {
                name[:NAME_LIMIT]: number for name, number in list(self.attempts.items())[:ATTEMPTS_LIMIT]
            },
            "first_failure": _finite(self.first_failure),
            "last_failure": _finite(self.last_failure),
            "slot": self.slot[: 3 * NAME_LIMIT],
            "url": self.url[:URL_LIMIT],
            "method": self.method[:NAME_LIMIT],
            "parent": self.parent[:URL_LIMIT],
            "traceback": _middle_cut(self.traceback, TRACEBACK_LIMIT),
            "spider": self.spider[:NAME_LIMIT],
            "deliveries": self.deliveries,
        }
        return json.dumps({name: value for name, value in record.items() if value not in _EMPTY}).encode()

    @classmethod
    def unpack(cls, data: bytes) -> DeadLetter:
        """What *data* says, whatever it is: what is not as it should be is left out."""
        try:
            record = json.loads(data) if len(data) <= SIZE_LIMIT else None
        except (ValueError, RecursionError):
            record = None
        if type(record) is not dict:
            return cls(UNREADABLE, f"The record of {len(data)} bytes cannot be read", 0.0)
        version = record.get("version")
        if version != VERSION:
            reason = f"The record has version {str(version)[:20]}, and this release knows {VERSION}"
            return cls(UNREADABLE, reason, _number(record.get("time")) or 0.0)
        errors = record.get("errors")
        attempts = record.get("attempts")
        return cls(
            _line(_text(record.get("class")), NAME_LIMIT),
            _line(_text(record.get("reason")), REASON_LIMIT),
            _number(record.get("time")) or 0.0,
            tuple(_failures(errors)) if type(errors) is list else (),
            _counts(attempts) if type(attempts) is dict else {},
            _number(record.get("first_failure")),
            _number(record.get("last_failure")),
            _text(record.get("slot"))[: 3 * NAME_LIMIT],
            _text(record.get("url"))[:URL_LIMIT],
            _text(record.get("method"))[:NAME_LIMIT],
            _text(record.get("parent"))[:URL_LIMIT],
            _text(record.get("traceback"))[:TRACEBACK_LIMIT],
            _text(record.get("spider"))[:NAME_LIMIT],
            _count(record.get("deliveries")),
        )


def poison(times: int, now: float, slot: str) -> bytes:
    """The record of a request that was being worked on at *times* ends of its worker."""
    reason = f"in flight {times} times when its worker ended"
    return DeadLetter(POISON, reason, now, slot=slot, deliveries=times).pack()


_EMPTY: tuple[Any, ...] = ("", None, [], {})


def _line(text: str, limit: int) -> str:
    return " ".join(text[: 2 * limit].split())[:limit]


def _middle_cut(text: str, limit: int) -> str:
    if len(text) <= limit:
        return text
    half = (limit - 10) // 2
    return f"{text[:half]}\n...\n{text[-half:]}"


def _finite(number: float | None) -> float | None:
    return number if number is not None and math.isfinite(number) else None


def _text(value: object) -> str:
    return value if type(value) is str else ""


def _number(value: object) -> float | None:
    if type(value) is int and abs(value) < 2**62:
        return float(value)
    return value if type(value) is float and math.isfinite(value) else None


def _count(value: object) -> int:
    return value if type(value) is int and 0 <= value < 2**62 else 0


def _failures(errors: list[Any]) -> list[Failed]:
    return [
        Failed(_line(_text(one[0]), NAME_LIMIT), _line(_text(one[1]), REASON_LIMIT), _number(one[2]) or 0.0)
        for one in errors[-ERRORS_KEPT:]
        if type(one) is list and len(one) == 3
    ]


def _counts(attempts: dict[str, Any]) -> dict[str, int]:
    return {_line(name, NAME_LIMIT): _count(n) for name, n in list(attempts.items())[:ATTEMPTS_LIMIT]}
