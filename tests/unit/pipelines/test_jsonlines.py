"""Every document becomes one line of JSON."""

from __future__ import annotations

import json
import math
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from pathlib import PurePosixPath
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from scrapy_ha.pipelines.jsonlines import to_line


def test_the_table_of_conversions() -> None:
    document = {
        "datetime": datetime(2024, 5, 6, 7, 8, 9, tzinfo=timezone.utc),
        "date": date(2024, 5, 6),
        "time": time(7, 8),
        "timedelta": timedelta(minutes=1.5),
        "decimal": Decimal("1.10"),
        "uuid": UUID(int=1),
        "path": PurePosixPath("/a/b"),
        "bytes": b"\xff\x00",
        "bytearray": bytearray(b"a"),
        "tuple": (1, (2,)),
        "set": {"b", "a", 3},
        "frozenset": frozenset({(2, 1), (1, 2)}),
        "nan": [math.nan, math.inf, -math.inf, 1.5],
        "big": 2**70,
        "huge": 2**20000,
        "surrogate": "ü\ud800\n",
        "dict": {1: "int", None: "none", (1, "a"): "tuple", "s": "text", date(2024, 1, 1): "date"},
        "bool": True,
        "none": None,
    }
    line = to_line(document)
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    assert json.loads(line) == {
        "datetime": "2024-05-06T07:08:09+00:00",
        "date": "2024-05-06",
        "time": "07:08:00",
        "timedelta": 90.0,
        "decimal": "1.10",
        "uuid": "00000000-0000-0000-0000-000000000001",
        "path": "/a/b",
        "bytes": "/wA=",
        "bytearray": "YQ==",
        "tuple": [1, [2]],
        "set": ["a", "b", 3],
        "frozenset": [[1, 2], [2, 1]],
        "nan": [None, None, None, 1.5],
        "big": 2**70,
        "huge": hex(2**20000),
        "surrogate": "ü\ud800\n",
        "dict": {"1": "int", "null": "none", '[1, "a"]': "tuple", "s": "text", "2024-01-01": "date"},
        "bool": True,
        "none": None,
    }


@given(st.text(st.characters(), max_size=50), st.text(st.characters(), min_size=1))
def test_any_text_survives(key: str, value: str) -> None:
    """In valid UTF-8, on one line."""
    line = to_line({key: value})
    assert json.loads(line.decode("utf-8")) == {key: value}
    assert line.count(b"\n") == 1
