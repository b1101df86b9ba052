"""The values that may be stored, as MessagePack: an allow-list, true to the type.

``None``, ``bool``, ``int`` of 64 bits, ``float``, ``str``, ``bytes``, ``list`` and ``dict`` with
``str`` keys are MessagePack's own. Everything else is an extension, whose data are those of the
table; ``[...]`` is one packed array.

====  ===================================  ==========================================================
code  type                                 data
====  ===================================  ==========================================================
1     ``str`` with lone surrogates         UTF-8, surrogates encoded like other characters
2     ``int`` beyond 64 bits               two's complement, big-endian
3     ``bytearray``                        its bytes
4     ``tuple``                            ``[element, ...]``
5     ``set``                              ``[element, ...]``
6     ``frozenset``                        ``[element, ...]``
7     ``dict`` with other keys             ``[key, value, key, value, ...]``
8     ``datetime``                         ``[ISO 8601, fold]``
9     ``date``                             ISO 8601
10    ``time``                             ``[ISO 8601, fold]``
11    ``timedelta``                        ``[days, seconds, microseconds]``
12    ``Decimal``                          ``str`` of it
13    ``UUID``                             16 bytes
14    ``pathlib`` path                     ``[class name, path]``
15    item or record (see below)           ``["module:qualname", {field: value}]``
16    ``Enum`` member                      ``["module:qualname", member name]``
====  ===================================  ==========================================================

Types are matched exactly: of a subclass nothing would be left but its base. What comes back is
equal and of the same type, with these exceptions: a time zone becomes its UTC offset at that
time, and an object that stood in two places becomes two objects.

*Items and records* are :class:`scrapy.Item` subclasses, dataclasses, attrs classes and named
tuples. They come back without their ``__init__``, ``__new__`` or ``__post_init__`` being run, so
one that keeps anything outside its declared fields is refused. A class is looked up among the
modules that are loaded; no module is ever imported. Whoever stores for a later process can have
classes refused that it may not have loaded yet when it reads, see :func:`require_loaded`.

Nothing read can run code. Values are nested up to :data:`MAX_DEPTH` deep (a record counts twice)
and take up to :data:`MAX_BYTES`; the same holds for reading, where a hostile record can make Python
objects of some 80 times its size, no more.
"""

from __future__ import annotations

import dataclasses
import pathlib
import sys
from collections.abc import Callable, Collection
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from functools import lru_cache
from inspect import getattr_static
from types import MemberDescriptorType, ModuleType
from typing import Any
from uuid import UUID

from msgspec.msgpack import Decoder, Encoder, Ext
from scrapy import Item

from scrapy_ha.errors import BadRecord

MAX_DEPTH = 64
"""Containers inside one another, the outermost included."""
MAX_BYTES = 8 * 2**20
"""Size of one record."""
MAX_ELEMENTS = 1_000_000
"""Elements of all containers of one record together."""

PLAIN = frozenset({type(None), bool, int, float, str, bytes})
"""Types that MessagePack keeps by itself, but for the rare values that make its encoder raise
``UnicodeEncodeError`` (lone surrogates) or ``OverflowError`` (beyond 64 bits)."""

TEXT, INTEGER, BYTEARRAY, TUPLE, SET, FROZENSET, PAIRS, DATETIME = range(1, 9)
DATE, TIME, TIMEDELTA, DECIMAL, IDENTIFIER, PATH, RECORD, MEMBER = range(9, 17)

pack: Callable[[Any], bytes] = Encoder().encode
_unpack: Callable[[Any], Any] = Decoder().decode

_SEQUENCES: dict[type, int] = {tuple: TUPLE, set: SET, frozenset: FROZENSET}
_PATHS: dict[str, type[pathlib.PurePath]] = {
    cls.__name__: cls
    for cls in (
        pathlib.PurePosixPath,
        pathlib.PosixPath,
        pathlib.PureWindowsPath,
        pathlib.WindowsPath,
    )
}


class Refused(Exception):
    """A value is not on the allow-list.

    Attributes:
        name: Name of its type, or of the limit it is above.
        why: Completes the sentence «it cannot be stored because …».
        remedy: What to do about it, a sentence.
    """

    def __init__(self, name: str, why: str, remedy: str = "Give plain data or items instead.") -> None:
        super().__init__(name, why, remedy)
        self.name = name
        self.why = why
        self.remedy = remedy


_BASES: tuple[tuple[type, Callable[[Any], Any]], ...] = (
    (str, str.__str__),
    (int, int.__int__),
    (float, float.__float__),
    (bytes, lambda value: bytes(memoryview(value))),
)
"""A text, number or bytes of a class of its own, such as the texts of links that lxml gives, is
kept as what it is; without calling what that class may have overridden."""


class Lowering:
    """Turns values into what MessagePack's encoder keeps faithfully.

    One object serves one record, and refuses more than :data:`MAX_ELEMENTS` in all: a structure
    that shares its parts may unfold to any number.

    Args:
        loaded: Names of the modules whose classes are kept; ``None``: all.
    """

    def __init__(self, loaded: frozenset[str] | None = None) -> None:
        self._loaded = loaded
        self._left = MAX_ELEMENTS

    def lower(self, value: Any, depth: int = MAX_DEPTH) -> Any:
        """*value* itself or its stand-in.

        Raises:
            Refused: It, or something in it, is not on the allow-list.
        """
        kind = type(value)
        if kind is str:
            return value if value.isascii() else _lower_text(value)
        if kind is int:
            return value if -(2**63) <= value < 2**64 else _lower_integer(value)
        if kind in PLAIN:
            return value
        if kind in _SCALARS:
            return _SCALARS[kind](value)
        if isinstance(value, Enum):
            member = _lower_member(value)
            require_loaded(kind, self._loaded)
            return member
        for base, plain in _BASES:
            if isinstance(value, base):
                return self.lower(plain(value), depth)
        if depth == 0:
            raise Refused("depth", f"it is nested more than {MAX_DEPTH} deep, or contains itself")
        if kind is list:
            return self._lower_all(value, depth - 1)
        if kind is dict:
            return self._lower_dict(value, depth - 1)
        if kind in _SEQUENCES:
            return Ext(_SEQUENCES[kind], pack(self._lower_all(value, depth - 1)))
        record = record_of(kind)
        if record is None:
            raise Refused(kind.__name__, f"{kind.__module__}.{kind.__qualname__} is not plain data")
        require_loaded(kind, self._loaded)
        state = self.lower(record.read(value), depth - 1)
        return Ext(RECORD, pack([record.path, state]))

    def _spend(self, elements: int) -> None:
        self._left -= elements
        if self._left < 0:
            raise Refused("size", f"it has more than {MAX_ELEMENTS} elements")

    def _lower_all(self, values: Any, depth: int) -> list[Any]:
        self._spend(len(values))
        return [self.lower(value, depth) for value in values]

    def _lower_dict(self, value: dict[Any, Any], depth: int) -> Any:
        self._spend(len(value))
        if all(type(key) is str and _is_utf8(key) for key in value):
            return {key: self.lower(element, depth) for key, element in value.items()}
        pairs = [self.lower(part, depth) for pair in value.items() for part in pair]
        return Ext(PAIRS, pack(pairs))


def lift(value: Any, depth: int = MAX_DEPTH) -> Any:
    """What *value*, as the decoder gives it, stands for; lists and dicts are changed in place.

    Raises:
        Exception: It stands for nothing, or is nested too deep.
    """
    kind = type(value)
    if kind in PLAIN:
        return value
    if kind is Ext:
        return _lift_extension(value, depth)
    if depth == 0:
        raise BadRecord(f"nested more than {MAX_DEPTH} deep")
    if kind is list:
        return _lift_all(value, depth - 1)
    if kind is dict:
        for key, element in value.items():
            if type(key) is not str:
                raise BadRecord(f"a plain map with a key of type {type(key).__name__}")
            if type(element) not in PLAIN:
                value[key] = lift(element, depth - 1)
        return value
    raise BadRecord(f"a value of type {kind.__name__}")


def without(stored: Any, names: Collection[str]) -> Any:
    """A map, as the decoder gives it, without some of its keys; anything else as it is."""
    if type(stored) is dict:
        return {key: value for key, value in stored.items() if key not in names}
    if type(stored) is Ext and stored.code == PAIRS:
        pairs = _unpack(stored.data)
        kept = [
            part for at in range(0, len(pairs), 2) if pairs[at] not in names for part in pairs[at : at + 2]
        ]
        return Ext(PAIRS, pack(kept))
    return stored


def unpack(data: bytes) -> Any:
    """The value that *data* holds.

    Raises:
        Exception: It is not one whole value of the allow-list.
    """
    return lift(_unpack(data))


def resolve(path: str) -> type | None:
    """The class at ``module:qualname`` in a module that is loaded; ``None``: there is none.

    Looks into the namespaces themselves, so that no ``__getattr__`` of a lazy module runs.
    """
    module_name, _, qualname = path.partition(":")
    module = sys.modules.get(module_name)
    if not issubclass(type(module), ModuleType):
        return None
    namespace: Any = object.__getattribute__(module, "__dict__")
    found: Any = None
    for name in qualname.split("."):
        found = namespace.get(name)
        if not issubclass(type(found), type):
            return None
        namespace = type.__dict__["__dict__"].__get__(found)
    return found if isinstance(found, type) else None


def path_of(cls: type) -> str | None:
    """Where :func:`resolve` finds *cls*; ``None``: nowhere, or another class stands there."""
    path = f"{cls.__module__}:{cls.__qualname__}"
    return path if resolve(path) is cls else None


def require_loaded(cls: type, loaded: frozenset[str] | None) -> None:
    """Check that *cls* comes from one of the modules *loaded*; ``None`` stands for all.

    Reading imports nothing, so a class whose module is imported only on the way (in a callback)
    would be unknown to a new process that reads the record before it gets there.

    Raises:
        Refused: It does not.
    """
    if loaded is not None and cls.__module__ not in loaded:
        raise Refused(
            cls.__name__,
            f"the module {cls.__module__} of {cls.__qualname__} was not loaded when the crawl started, "
            f"so it would not be found after a restart",
            "Import it at the top of the spider's module.",
        )


class _Record:
    """How instances of one class are taken apart and put together by their declared fields."""

    def __init__(self, cls: type, path: str, fields: tuple[str, ...]) -> None:
        self.cls = cls
        self.path = path
        self.fields = frozenset(fields)
        self._order = fields
        self._other_slots = [
            name
            for base in cls.__mro__
            for name, attribute in vars(base).items()
            if isinstance(attribute, MemberDescriptorType) and name not in self.fields
        ]

    def read(self, instance: Any) -> dict[str, Any]:
        attributes = getattr_or(instance, "__dict__", {})
        for name in (*attributes, *self._other_slots):
            if name not in self.fields and getattr_or(instance, name, self) is not self:
                raise Refused(
                    self.cls.__name__,
                    f"it keeps {name!r} outside its fields, which only its __init__ could restore",
                )
        values = {name: getattr_or(instance, name, self) for name in self._order}
        return {name: value for name, value in values.items() if value is not self}

    def build(self, values: dict[str, Any]) -> Any:
        instance: Any = object.__new__(self.cls)
        for name, value in values.items():
            object.__setattr__(instance, name, value)
        return instance


class _NamedTuple(_Record):
    def read(self, instance: Any) -> dict[str, Any]:
        if getattr_or(instance, "__dict__", None):
            raise Refused(self.cls.__name__, "it keeps attributes outside its fields")
        return dict(zip(self._order, tuple.__iter__(instance), strict=True))

    def build(self, values: dict[str, Any]) -> Any:
        new: Callable[..., Any] = tuple.__new__
        return new(self.cls, [values[name] for name in self._order])


class _Item(_Record):
    def read(self, instance: Any) -> dict[str, Any]:
        return {name: Item.__getitem__(instance, name) for name in Item.__iter__(instance)}

    def build(self, values: dict[str, Any]) -> Any:
        # The base's own methods: those of the class may be overridden.
        new: Callable[..., Item] = Item.__new__
        instance = new(self.cls)
        Item.__init__(instance)
        for name, value in values.items():
            Item.__setitem__(instance, name, value)
        return instance


def getattr_or(instance: Any, name: str, default: Any) -> Any:
    """The attribute, without running a ``__getattr__`` of the class."""
    try:
        return object.__getattribute__(instance, name)
    except AttributeError:
        return default


def _find_record(cls: type) -> _Record | None:
    path = path_of(cls)
    if path is None:
        return None
    if issubclass(cls, Item):
        return _Item(cls, path, tuple(cls.fields))
    if cls.__bases__ == (tuple,):
        names = getattr(cls, "_fields", None)
        return _NamedTuple(cls, path, names) if type(names) is tuple else None
    fields: tuple[str, ...]
    if dataclasses.is_dataclass(cls):
        fields = tuple(field.name for field in dataclasses.fields(cls))
    elif type(declared := getattr_static(cls, "__attrs_attrs__", None)) is not type(None):
        fields = tuple(field.name for field in declared)
    else:
        return None
    # Assigning to any other data descriptor (a property, ``__class__``) would run its code.
    attributes = [getattr_static(cls, name, None) for name in fields]
    if any(hasattr(type(a), "__set__") and type(a) is not MemberDescriptorType for a in attributes):
        return None
    try:
        object.__new__(cls)
    except TypeError:  # it extends a built-in type, which has state of its own, or is abstract
        return None
    return _Record(cls, path, fields)


record_of: Callable[[type], _Record | None] = lru_cache(maxsize=1024)(_find_record)
"""How to store instances of a class; ``None``: it is no item and no record."""


def _is_utf8(text: str) -> bool:
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _lower_text(value: str) -> Any:
    return value if _is_utf8(value) else Ext(TEXT, value.encode("utf-8", "surrogatepass"))


def _lower_integer(value: int) -> Ext:
    return Ext(INTEGER, value.to_bytes(value.bit_length() // 8 + 1, "big", signed=True))


def _lower_moment(code: int, value: datetime | time) -> Ext:
    if value.tzinfo is not None and value.utcoffset() is None:
        raise Refused(type(value).__name__, "its time zone gives no UTC offset")
    return Ext(code, pack([value.isoformat(), value.fold]))


def _lower_member(value: Enum) -> Ext:
    cls = type(value)
    path = path_of(cls)
    if path is None or cls.__members__.get(value.name) is not value:
        raise Refused(cls.__name__, "it is not found again by its class and its name")
    return Ext(MEMBER, pack([path, value.name]))


def _lower_path(value: pathlib.PurePath) -> Ext:
    return Ext(PATH, pack([type(value).__name__, _lower_text(str(value))]))


_SCALARS: dict[type, Callable[[Any], Ext]] = {
    bytearray: lambda value: Ext(BYTEARRAY, bytes(value)),
    datetime: lambda value: _lower_moment(DATETIME, value),
    date: lambda value: Ext(DATE, pack(value.isoformat())),
    time: lambda value: _lower_moment(TIME, value),
    timedelta: lambda value: Ext(TIMEDELTA, pack([value.days, value.seconds, value.microseconds])),
    Decimal: lambda value: Ext(DECIMAL, pack(str(value))),
    UUID: lambda value: Ext(IDENTIFIER, value.bytes),
    **dict.fromkeys(_PATHS.values(), _lower_path),
}


def _lift_all(values: list[Any], depth: int) -> list[Any]:
    for index, value in enumerate(values):
        if type(value) not in PLAIN:
            values[index] = lift(value, depth)
    return values


def _lift_extension(value: Ext, depth: int) -> Any:
    code, data = value.code, value.data
    if code in _PACKED:
        content = _unpack(data)
        if code in _CONTAINERS:
            if depth == 0 or type(content) is not list:
                raise BadRecord("an extension that is too deep, or no array")
            content = _lift_all(content, depth - 1)
        return _PACKED[code](content)
    return _RAW[code](bytes(data))


def _lift_moment(cls: type[datetime] | type[time], content: Any) -> Any:
    text, fold = content
    return cls.fromisoformat(text).replace(fold=fold)


def _lift_decimal(content: Any) -> Decimal:
    if type(content) is not str:
        raise BadRecord("a Decimal that is no text")
    return Decimal(content)


def _lift_pairs(content: list[Any]) -> dict[Any, Any]:
    return dict(zip(content[::2], content[1::2], strict=True))


def _lift_path(content: Any) -> pathlib.PurePath:
    name, text = content
    return _PATHS[name](lift(text))


def _lift_record(content: list[Any]) -> Any:
    path, values = content
    cls = resolve(path)
    record = record_of(cls) if cls is not None else None
    if record is None or not record.fields.issuperset(values):
        raise BadRecord(f"{path[:80]!r} is no item class that is loaded, or has other fields now")
    return record.build(values)


def _lift_member(content: Any) -> Enum:
    path, name = content
    cls = resolve(path)
    if cls is None or not issubclass(cls, Enum):
        raise BadRecord(f"{path[:80]!r} is no Enum that is loaded")
    return cls.__members__[name]


_CONTAINERS = frozenset({TUPLE, SET, FROZENSET, PAIRS, RECORD})

_PACKED: dict[int, Callable[[Any], Any]] = {
    TUPLE: tuple,
    SET: set,
    FROZENSET: frozenset,
    PAIRS: _lift_pairs,
    DATETIME: lambda content: _lift_moment(datetime, content),
    DATE: date.fromisoformat,
    TIME: lambda content: _lift_moment(time, content),
    TIMEDELTA: lambda content: timedelta(*content),
    DECIMAL: _lift_decimal,
    PATH: _lift_path,
    RECORD: _lift_record,
    MEMBER: _lift_member,
}

_RAW: dict[int, Callable[[bytes], Any]] = {
    TEXT: lambda data: data.decode("utf-8", "surrogatepass"),
    INTEGER: lambda data: int.from_bytes(data, "big", signed=True),
    BYTEARRAY: bytearray,
    IDENTIFIER: lambda data: UUID(bytes=data),
}
