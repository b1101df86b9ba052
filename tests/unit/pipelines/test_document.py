"""Items of every type become plain documents, and equal ones get equal keys in every process."""

from __future__ import annotations

import dataclasses
import math
import os
import subprocess
import sys
from collections import OrderedDict, defaultdict, namedtuple
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum, IntEnum
from pathlib import PurePosixPath
from typing import Any
from uuid import UUID

import attrs
import pytest
import scrapy
from hypothesis import given
from hypothesis import strategies as st

from scrapy_ha.errors import Unserializable
from scrapy_ha.pipelines.document import (
    MAX_DEPTH,
    canonical,
    content_hash,
    identify,
    to_document,
)


class ScrapyItem(scrapy.Item):
    name = scrapy.Field()
    price = scrapy.Field()
    parts = scrapy.Field()


@dataclasses.dataclass
class DataclassItem:
    name: str
    price: Any = None
    parts: Any = None


@attrs.define
class AttrsItem:
    name: str
    price: Any = None
    parts: Any = None


TYPES: list[Any] = [dict, ScrapyItem, DataclassItem, AttrsItem]
try:
    import pydantic
except ImportError:
    pass
else:

    class PydanticItem(pydantic.BaseModel):
        name: str
        price: Any = None
        parts: Any = None

    TYPES.append(PydanticItem)

Point = namedtuple("Point", "x y")


class Colour(Enum):
    RED = "red"


class Level(IntEnum):
    HIGH = 3


class Text(str):
    __slots__ = ()


@pytest.mark.parametrize("outer", TYPES)
@pytest.mark.parametrize("inner", TYPES)
def test_items_of_every_type_also_inside_one_another(outer: Any, inner: Any) -> None:
    item = outer(name="a", price=1.5, parts=[inner(name="b", price=Decimal("1.10"), parts={"k": (1, 2)})])
    assert to_document(item) == {
        "name": "a",
        "price": 1.5,
        "parts": [{"name": "b", "price": Decimal("1.10"), "parts": {"k": (1, 2)}}],
    }


def test_the_item_stays_as_it_is() -> None:
    item = {"parts": [ScrapyItem(name="b")], "level": Level.HIGH}
    to_document(item)
    assert type(item["parts"][0]) is ScrapyItem
    assert item["level"] is Level.HIGH


def test_relatives_of_built_in_types_become_these() -> None:
    grouped = defaultdict(list, {"a": [1]})
    document = to_document(
        {
            "text": Text("t"),
            "colour": Colour.RED,
            "level": Level.HIGH,
            "point": Point(1, [Text("in")]),
            "grouped": grouped,
            "ordered": OrderedDict(a=1),
            "set": {Text("s")},
            "frozen": frozenset({Level.HIGH}),
        }
    )
    assert document == {
        "text": "t",
        "colour": "red",
        "level": 3,
        "point": (1, ["in"]),
        "grouped": {"a": [1]},
        "ordered": {"a": 1},
        "set": {"s"},
        "frozen": frozenset({3}),
    }
    types = {name: type(value) for name, value in document.items()}
    assert types == {
        "text": str,
        "colour": str,
        "level": int,
        "point": tuple,
        "grouped": dict,
        "ordered": dict,
        "set": set,
        "frozen": frozenset,
    }
    assert type(document["point"][1][0]) is str
    assert {type(element) for element in document["frozen"]} == {int}


def test_an_item_that_contains_itself_is_refused() -> None:
    item: dict[str, Any] = {}
    item["self"] = item
    with pytest.raises(Unserializable, match="contains itself"):
        to_document(item)
    nested: Any = 1
    for _ in range(MAX_DEPTH):
        nested = [nested]
    with pytest.raises(Unserializable):
        to_document({"deep": [nested]})
    assert to_document({"deep": nested}) == {"deep": nested}


plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(st.characters())
    | st.binary()
    | st.datetimes(timezones=st.none() | st.just(timezone.utc))
    | st.dates()
    | st.times()
    | st.timedeltas()
    | st.decimals(allow_nan=False)
    | st.uuids(),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(st.text() | st.integers(), inner, max_size=4)
        | st.sets(st.integers() | st.text(), max_size=4)
    ),
    max_leaves=10,
)


def _shuffled(value: Any) -> Any:
    """An equal value whose dicts and sets have another order."""
    if type(value) is dict:
        return {key: _shuffled(element) for key, element in reversed(value.items())}
    if type(value) in (list, tuple):
        return type(value)(map(_shuffled, value))
    if type(value) is set:
        elements = sorted(value, key=repr, reverse=True)
        return set(elements)
    return value


@given(plain)
def test_the_order_of_dicts_and_sets_does_not_count(value: Any) -> None:
    assert canonical(_shuffled(value)) == canonical(value)


def _typed(value: Any) -> Any:
    """Equal for values that are equal in type as well."""
    if type(value) is dict:
        return "dict", frozenset((_typed(key), _typed(element)) for key, element in value.items())
    if type(value) in (list, tuple):
        return type(value).__name__, tuple(map(_typed, value))
    if type(value) is set:
        return "set", frozenset(map(_typed, value))
    if isinstance(value, (datetime, time, Decimal)):
        return type(value).__name__, str(value)
    return type(value).__name__, value


@given(plain, plain)
def test_different_content_is_different(one: Any, two: Any) -> None:
    assert (canonical(one) == canonical(two)) == (_typed(one) == _typed(two))


def test_values_that_only_look_alike_differ() -> None:
    alike = [1, 1.0, True, "1", b"1", Decimal(1), [1], (1,), {1}, {1: 1}, None, "", [], {}, [[]], UUID(int=1)]
    alike += [date(2020, 1, 1), datetime(2020, 1, 1), time(0), timedelta(1), PurePosixPath("1"), math.nan]
    assert len({canonical(value) for value in alike}) == len(alike)


def test_zeros_and_nans_are_one() -> None:
    assert canonical(0.0) == canonical(-0.0)
    assert canonical(math.nan) == canonical(-math.nan)
    assert canonical({math.nan: 1}) == canonical({-math.nan: 1})


def test_the_hash_is_a_stored_format() -> None:
    """Another value here would make every stored document a new one."""
    document = {
        "name": "ü\ud800",
        "price": Decimal("1.10"),
        "n": 2**70,
        "f": -1.5,
        "seen": datetime(2024, 5, 6, 7, 8, 9, 10, timezone.utc),
        "day": date(2024, 5, 6),
        "for": timedelta(1, 2, 3),
        "parts": [{"b": b"\xff", "t": (True, None)}, {"s": {"x", "y"}}],
        "path": PurePosixPath("/a"),
        "id": UUID(int=7),
    }
    assert content_hash(document) == "596a631ee5750247d669f3a6a923c15a"


def test_the_hash_is_the_same_in_every_process() -> None:
    code = (
        "from scrapy_ha.pipelines.document import content_hash\n"
        "print(content_hash({'s': {str(n) for n in range(50)}, 'a': 1}))"
    )
    hashes = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert hashes == {content_hash({"a": 1, "s": {str(n) for n in range(50)}}).encode() + b"\n"}


def test_what_is_no_plain_data_has_no_hash() -> None:
    with pytest.raises(Unserializable) as refused:
        content_hash({"file": sys.stdout})
    assert refused.value.kind == "item:TextIOWrapper" or "item:" in refused.value.kind


# Keys


def by_name(item: Any) -> Any:
    return item["name"]


def test_keys() -> None:
    item = ScrapyItem(name="a", price=1)
    document = to_document(item)
    assert identify(item, document, "name") == "a"
    assert identify(item, document, ["name"]) == "a"
    assert identify(item, document, ["price", "name"]) == {"price": 1, "name": "a"}
    assert identify(item, document, by_name) == "a"
    assert identify(item, document, None) == content_hash(document)


def failing(item: Any) -> Any:
    raise RuntimeError("no key")


@pytest.mark.parametrize("spec", ["sku", "price", ["name", "sku"], lambda item: None, failing])
def test_a_missing_key_is_refused_never_none(spec: Any) -> None:
    item = {"name": "a", "price": None}
    with pytest.raises(Unserializable) as refused:
        identify(item, to_document(item), spec)
    assert refused.value.kind in {"key:missing", "key:callable"}
