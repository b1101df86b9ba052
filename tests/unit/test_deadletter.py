"""The record of a request that was given up: complete, bounded, and read whatever it is."""

from __future__ import annotations

import json
import math

from hypothesis import given
from hypothesis import strategies as st

from scrapy_ha import deadletter
from scrapy_ha.deadletter import DeadLetter, Failed

FULL = DeadLetter(
    "server",
    "503 Service Unavailable",
    1000.5,
    (Failed("timeout", "took 3 s", 998.0), Failed("server", "503 Service Unavailable", 1000.0)),
    {"timeout": 1, "server": 2},
    990.25,
    1000.0,
    "a.test",
    "http://a.test/x",
    "POST",
    "http://a.test/",
    'Traceback (most recent call last):\n  File "x.py"',
    "some",
    2,
)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=10,
)
names = st.sampled_from([*json.loads(FULL.pack()), "unknown"])


def test_round_trip() -> None:
    """All of it comes back."""
    assert DeadLetter.unpack(FULL.pack()) == FULL
    bare = DeadLetter("dns", "", 1.0)
    assert DeadLetter.unpack(bare.pack()) == bare


@given(
    text=st.text(max_size=20),
    number=st.floats() | st.integers(),
    times=st.integers(0, 20),
    count=st.sampled_from([1, 1000, 50_000]),
)
def test_records_are_bounded(text: str, number: float, times: int, count: int) -> None:
    """Whatever a server or a spider put in; and what was written is read."""
    long = text * count
    letter = DeadLetter(
        long,
        long,
        number,
        (Failed(long, long, number),) * times,
        {f"{n}{long}": n for n in range(times * 10)},
        number,
        None,
        *[long] * 6,
        deliveries=times,
    )
    packed = letter.pack()
    assert len(packed) <= deadletter.SIZE_LIMIT
    found = DeadLetter.unpack(packed)
    assert found.cls != deadletter.UNREADABLE or text == deadletter.UNREADABLE
    assert len(found.errors) == min(times, deadletter.ERRORS_KEPT)
    assert "\n" not in found.reason
    assert math.isfinite(found.time)
    assert DeadLetter.unpack(found.pack()) == found


@given(st.binary(max_size=200))
def test_any_bytes_are_read(data: bytes) -> None:
    """As something, with its class saying that it is none."""
    assert DeadLetter.unpack(data).cls == deadletter.UNREADABLE


@given(st.dictionaries(names, json_values, max_size=6))
def test_any_object_is_read(record: dict[str, object]) -> None:
    """Fields of a wrong type are left out, those that are right are not; it can be written again."""
    data = json.dumps({**json.loads(FULL.pack()), **record, "version": 1}).encode()
    found = DeadLetter.unpack(data)
    for name in {"url", "method", "spider"} - record.keys():
        assert getattr(found, name) == getattr(FULL, name)
    assert DeadLetter.unpack(found.pack()) == found


def test_hostile_records() -> None:
    """Nested deeply, of huge numbers, too long, of another version: none raises."""
    for data in (b"[" * 100_000, b'{"version": 1, "time": ' + b"9" * 5000 + b"}", b" " * 2**20):
        assert DeadLetter.unpack(data).cls == deadletter.UNREADABLE
    newer = DeadLetter.unpack(b'{"version": 2, "class": "dns", "time": 7}')
    assert (newer.cls, newer.time) == (deadletter.UNREADABLE, 7.0)
    assert "version 2" in newer.reason


def test_the_ends_of_a_traceback_are_kept() -> None:
    """Where it began and what was raised."""
    letter = DeadLetter("callback", "", 1.0, traceback="begin" + "x" * 10**6 + "ValueError: end")
    found = DeadLetter.unpack(letter.pack()).traceback
    assert len(found) <= deadletter.TRACEBACK_LIMIT
    assert found.startswith("begin")
    assert found.endswith("ValueError: end")
