"""Documents as lines of JSON, one object each, in UTF-8.

==========================  ============================================================
in the item                 in JSON
==========================  ============================================================
datetime, date, time        text, ISO 8601
timedelta                   number of seconds
Decimal, UUID, path         text
bytes, bytearray            text, Base64
tuple                       array
set, frozenset              array, sorted by its elements' JSON
NaN, infinity               null
integer above 12000 bits    text, hexadecimal (Python writes no decimals that long)
lone surrogate              its escape, such as ``\\ud800``
key that is no text         text: its JSON
==========================  ============================================================
"""

from __future__ import annotations

import json
import math
from base64 import b64encode
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from pathlib import PurePath
from typing import Any
from uuid import UUID

_EXACT = frozenset({type(None), bool, str})
_LONGEST_INT = 12_000
"""Bits."""


def to_line(document: Any) -> bytes:
    """*document*, which is plain data, as one line."""
    return (_dumps(to_json(document)) + "\n").encode("utf-8", "backslashreplace")


def to_json(value: Any) -> Any:
    """*value* as JSON can hold it. What is no plain data becomes its ``repr``."""
    kind = type(value)
    if kind in _EXACT:
        return value
    if kind is int:
        return value if value.bit_length() < _LONGEST_INT else hex(value)
    if kind is dict:
        return {
            key if type(key) is str else _key(key): element if type(element) in _EXACT else to_json(element)
            for key, element in value.items()
        }
    if kind is list or kind is tuple:
        return [to_json(element) for element in value]
    if kind is float:
        return value if math.isfinite(value) else None
    if kind is set or kind is frozenset:
        return sorted((to_json(element) for element in value), key=_dumps)
    if kind is bytes or kind is bytearray:
        return b64encode(value).decode()
    if isinstance(value, (datetime, date, time)):
        return value.isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, (Decimal, UUID, PurePath)):
        return str(value)
    return repr(value)


def _key(value: Any) -> str:
    converted = to_json(value)
    return converted if type(converted) is str else _dumps(converted)


_dumps = json.JSONEncoder(ensure_ascii=False, allow_nan=False).encode
