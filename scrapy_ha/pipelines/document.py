"""Items to documents, and what makes two items the same document."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from hashlib import blake2b
from operator import itemgetter
from pathlib import PurePath
from typing import Any, TypeAlias
from uuid import UUID

from itemadapter import ItemAdapter

from scrapy_ha.errors import Unserializable

KeySpec: TypeAlias = "str | list[str] | Callable[[Any], Any] | None"
"""A field, several fields, a callable, or the whole content, see :func:`identify`."""

MAX_DEPTH = 32

_EXACT = frozenset({type(None), bool, int, float, str, bytes})
_BASES: tuple[tuple[type, Callable[[Any], Any]], ...] = (
    (str, str.__str__),
    (bytes, bytes),
    (int, int.__int__),
    (float, float.__float__),
)


def to_document(item: Any) -> dict[str, Any]:
    """The content of *item*, of any type that itemadapter knows, as plain data.

    Items inside it become dicts too. Members of an Enum become their values, named tuples
    tuples, and instances of classes that extend a built-in type that type. What else it holds
    is taken as it is. *item* itself stays as it is, and shares its values with the document.

    Raises:
        Unserializable: It is nested too deep, or contains itself.
    """
    return {
        name: value if type(value) in _EXACT else _plain(value, MAX_DEPTH)
        for name, value in ItemAdapter(item).items()
    }


def _plain(value: Any, depth: int) -> Any:
    kind = type(value)
    if kind in _EXACT:
        return value
    if depth == 0:
        raise Unserializable(
            "item:depth", f"The item is nested more than {MAX_DEPTH} deep, or contains itself."
        )
    if isinstance(value, Enum):
        return _plain(value.value, depth - 1)
    if isinstance(value, Mapping):
        return {_plain(key, depth - 1): _plain(element, depth - 1) for key, element in value.items()}
    for base, convert in _BASES:
        if isinstance(value, base):
            return convert(value)
    if isinstance(value, list):
        return [_plain(element, depth - 1) for element in value]
    if isinstance(value, tuple):
        return tuple([_plain(element, depth - 1) for element in value])
    if isinstance(value, (set, frozenset)):
        elements = [_plain(element, depth - 1) for element in value]
        return frozenset(elements) if isinstance(value, frozenset) else set(elements)
    if ItemAdapter.is_item(value):
        return {name: _plain(element, depth - 1) for name, element in ItemAdapter(value).items()}
    return value


def identify(item: Any, document: dict[str, Any], spec: KeySpec) -> Any:
    """The ``_id`` of *document*: two items with an equal one are the same document.

    ==================  =====================================================================
    *spec*              ``_id``
    ==================  =====================================================================
    a field             its value
    several fields      a dict of them, in the given order
    a callable          what it returns for *item*
    ``None``            the hash of the whole content, see :func:`content_hash`
    ==================  =====================================================================

    Raises:
        Unserializable: A field is missing or ``None``, the callable returned ``None`` or
            raised, or the content cannot be hashed.
    """
    if spec is None:
        return content_hash(document)
    if isinstance(spec, str):
        return _field(document, spec)
    if isinstance(spec, list):
        if len(spec) == 1:
            return _field(document, spec[0])
        return {name: _field(document, name) for name in spec}
    try:
        key = _plain(spec(item), MAX_DEPTH)
    except Exception as error:
        raise Unserializable("key:callable", f"HA_ITEM_KEY raised {error!r}") from error
    if key is None:
        raise Unserializable("key:missing", "HA_ITEM_KEY returned None")
    return key


def _field(document: dict[str, Any], name: str) -> Any:
    value = document.get(name)
    if value is None:
        raise Unserializable("key:missing", f"The item has no {name!r}, which HA_ITEM_KEY names")
    return value


def content_hash(value: Any) -> str:
    """32 hexadecimal digits of the content: BLAKE2b-128 of :func:`canonical`.

    Raises:
        Unserializable: See there.
    """
    return blake2b(canonical(value), digest_size=16).hexdigest()


def canonical(value: Any) -> bytes:
    """*value* as bytes: equal for equal plain data, in any process and release, whatever the
    order of dicts and sets; different for different types.

    ``0.0`` and ``-0.0`` are one, and so are all NaNs. The format never changes: it decides
    which stored documents are the same.

    Raises:
        Unserializable: It holds something that is not plain data.
    """
    parts: list[bytes] = []
    _encode(value, parts.append)
    return b"".join(parts)


def _encode(value: Any, put: Callable[[bytes], object]) -> None:
    kind = type(value)
    if kind is str:
        _put_bytes(b"s", value.encode("utf-8", "surrogatepass"), put)
    elif kind is bool or value is None:
        put(b"N" if value is None else b"T" if value else b"F")
    elif kind is int:
        _put_bytes(b"i", b"%x" % value, put)  # decimal digits of huge numbers take quadratic time
    elif kind is float:
        put(b"f" + struct.pack("<d", value if value else 0.0) if value == value else b"fnan")
    elif kind is list or kind is tuple:
        put(b"l%d:" % len(value) if kind is list else b"t%d:" % len(value))
        for element in value:
            _encode(element, put)
    elif kind is dict:
        pairs = sorted(((canonical(key), element) for key, element in value.items()), key=itemgetter(0))
        put(b"d%d:" % len(pairs))
        for key, element in pairs:
            put(key)
            _encode(element, put)
    elif kind is set or kind is frozenset:
        put(b"S%d:" % len(value))
        for part in sorted(map(canonical, value)):
            put(part)
    elif kind is bytes or kind is bytearray:
        _put_bytes(b"b", value, put)
    elif kind in _SCALARS:
        tag, text = _SCALARS[kind]
        _put_bytes(tag, text(value).encode("utf-8", "surrogatepass"), put)
    elif isinstance(value, PurePath):
        _put_bytes(b"P", str(value).encode("utf-8", "surrogatepass"), put)
    else:
        raise Unserializable(
            f"item:{kind.__name__}"[:80], f"A value of type {kind.__name__} in the item is not plain data"
        )


_SCALARS: dict[type, tuple[bytes, Callable[[Any], str]]] = {
    datetime: (b"D", datetime.isoformat),
    date: (b"Y", date.isoformat),
    time: (b"H", time.isoformat),
    timedelta: (b"L", lambda value: f"{value.days},{value.seconds},{value.microseconds}"),
    Decimal: (b"C", str),
    UUID: (b"U", str),
}


def _put_bytes(tag: bytes, data: bytes | bytearray, put: Callable[[bytes], object]) -> None:
    put(b"%s%d:%s" % (tag, len(data), data))
