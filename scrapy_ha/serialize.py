"""Requests and plain values to bytes and back.

A record is one byte, the format's version, and one MessagePack value:

- of a value, that value, with the types and extensions of :mod:`scrapy_ha._values`;
- of a request, a map. What has its default is left out:

  =====  ====================  =====================================================
  key    attribute             as
  =====  ====================  =====================================================
  u      url                   str, always there
  c      callback              name of a spider method; "": ``NO_CALLBACK``
  e      errback               likewise
  m      method                str
  h      headers               map of bytes to arrays of bytes, in order
  b      body                  bin
  k      cookies               map, or array of maps
  t      meta                  map
  n      encoding              str
  p      priority              int of 64 bits
  d      dont_filter           bool
  f      flags                 array
  a      cb_kwargs             map
  s      (the class)           "module:qualname"; absent: :class:`scrapy.Request`
  x      (the class's own)     map: what ``attributes`` of the class has beyond those
  =====  ====================  =====================================================

Version policy: any change of these tables, also an addition, takes the next version. A reader
knows all versions up to its own; a record of a later one is refused, so that no older release
silently drops what it does not know. This is version 1.

Nothing read can run code but the constructor of the request's class, which must be a
:class:`~scrapy.Request` subclass in a module that is loaded: no module is imported.
"""

from __future__ import annotations

import sys
from types import FunctionType, MethodType
from typing import TYPE_CHECKING, Any, cast

from msgspec import MsgspecError, Struct
from msgspec.msgpack import Decoder
from scrapy import Request
from scrapy.http.headers import Headers
from scrapy.http.request import NO_CALLBACK

from scrapy_ha._values import (
    MAX_BYTES,
    MAX_DEPTH,
    PLAIN,
    Lowering,
    Refused,
    lift,
    pack,
    path_of,
    record_of,
    require_loaded,
    resolve,
    unpack,
    without,
)
from scrapy_ha.errors import BadRecord, Unserializable
from scrapy_ha.fingerprint import is_canonical

if TYPE_CHECKING:
    from collections.abc import Callable

    from scrapy import Spider

VERSION = 1
_HEAD = bytes([VERSION])
_NAME_LIMIT = 80
"""Characters of a name in :attr:`Unserializable.kind`."""
_CACHE_LIMIT = 1024


class _Record(
    Struct,
    omit_defaults=True,
    forbid_unknown_fields=True,
    gc=False,
    rename={
        "url": "u",
        "callback": "c",
        "errback": "e",
        "method": "m",
        "headers": "h",
        "body": "b",
        "cookies": "k",
        "meta": "t",
        "encoding": "n",
        "priority": "p",
        "dont_filter": "d",
        "flags": "f",
        "cb_kwargs": "a",
        "cls": "s",
        "own": "x",
    },
):
    """A request as it is stored; msgspec checks the types."""

    url: str
    callback: str | None = None
    errback: str | None = None
    method: str = "GET"
    headers: dict[bytes, list[bytes]] = {}
    body: bytes = b""
    cookies: Any = None
    meta: Any = None
    encoding: str = "utf-8"
    priority: int = 0
    dont_filter: bool = False
    flags: Any = None
    cb_kwargs: Any = None
    cls: str | None = None
    own: Any = None


_decode_record = Decoder(_Record).decode


def encode_value(value: Any, what: str = "value") -> bytes:
    """Store *value*: plain data, items, and any nesting of them.

    Args:
        what: What *value* is, for errors: a mapping's element is named ``<what>.<key>:<type>``.

    Raises:
        Unserializable: It holds something that is not on the allow-list, or is too large.
    """
    try:
        if type(value) is dict:
            stored = _stored(value, what)
        else:
            stored = _lowered(value, what)
        try:
            data = pack(stored)
        except (UnicodeEncodeError, OverflowError):
            data = pack(_lowered(value, what))
    except Unserializable:
        raise
    except Exception as error:
        raise Unserializable(
            f"{what}:{type(error).__name__}", f"The {what} cannot be stored: {error}"
        ) from error
    return _framed(data, what)


def decode_value(data: bytes) -> Any:
    """What :func:`encode_value` stored.

    Raises:
        BadRecord: *data* is not one whole record of a known version.
    """
    try:
        return unpack(_content(data))
    except Exception as error:
        raise _bad("value", error) from error


def describe_request(data: bytes) -> dict[str, Any]:
    """The attributes of a stored request as plain data, without its spider: callbacks by name.

    A value that cannot be restored here, as its class is not loaded, becomes a text that says so.

    Raises:
        BadRecord: *data* is not one whole request of a known version.
    """
    try:
        record = _decode_record(_content(data))
    except Exception as error:
        raise _bad("request", error) from error
    described: dict[str, Any] = {
        "url": record.url,
        "method": record.method,
        "callback": record.callback,
        "errback": record.errback,
        "headers": {
            name.decode("latin-1"): [value.decode("latin-1") for value in values]
            for name, values in record.headers.items()
        },
        "body": record.body,
        "cookies": _shown(record.cookies),
        "meta": _shown(record.meta),
        "cb_kwargs": _shown(record.cb_kwargs),
        "encoding": record.encoding,
        "priority": record.priority,
        "dont_filter": record.dont_filter,
        "flags": _shown(record.flags),
        "class": record.cls,
        "attributes": _shown(record.own),
    }
    return {name: value for name, value in described.items() if value not in (None, {}, [], b"")}


def without_meta(data: bytes, *names: str) -> bytes:
    """The stored request *data* without some keys of its ``meta``.

    Raises:
        BadRecord: *data* is not one whole request of a known version.
    """
    try:
        record = _decode_record(_content(data))
        record.meta = without(record.meta, names) or None
        return _framed(pack(record), "request")
    except Exception as error:
        raise _bad("request", error) from error


def _shown(value: Any) -> Any:
    if type(value) is dict:
        return {str(name): _shown(element) for name, element in value.items()}
    try:
        return lift(value)
    except Exception as error:
        return f"({_bad('value', error)})"


class RequestCodec:
    """Stores requests of *spider*, and restores them with its methods as callbacks.

    What comes back has the same class and the same value in every attribute that the class
    lists in ``attributes``.

    Only classes of modules that are loaded when the codec is made are stored: a later process
    that makes its own at the same point (when the scheduler opens) finds them.
    """

    def __init__(self, spider: Spider) -> None:
        self._spider = spider
        self._loaded = frozenset(sys.modules)
        self._names: dict[Any, str] = {}
        self._methods: dict[str, Any] = {"": NO_CALLBACK}
        self._classes: dict[type[Request], tuple[str, tuple[str, ...]]] = {}

    def encode(self, request: Request) -> bytes:
        """Store *request*.

        Raises:
            Unserializable: It has a callback that is no method of the spider, or a value that is
                not on the allow-list, or a class of a module that was not loaded when the codec
                was made, or it is too large. Nothing else is ever raised.
        """
        try:
            try:
                data = pack(self._record(request, _stored))
            except (UnicodeEncodeError, OverflowError):
                data = pack(self._record(request, _lowered))
        except Unserializable:
            raise
        except Exception as error:
            name = type(request).__name__
            raise Unserializable(
                f"{name}:{type(error).__name__}", f"The {name} cannot be stored: {error}"
            ) from error
        return _framed(data, "request")

    def decode(self, data: bytes) -> Request:
        """The request that :meth:`encode` stored.

        Raises:
            BadRecord: *data* is not one whole request of a known version, or its class or one of
                its callbacks no longer exists. Nothing else is ever raised.
        """
        try:
            return self._request(_decode_record(_content(data)))
        except Exception as error:
            raise _bad("request", error) from error

    def _record(self, request: Request, stored: Callable[[Any, str, frozenset[str]], Any]) -> _Record:
        loaded = self._loaded
        callback, errback = request.callback, request.errback
        headers: Any = request.headers or {}
        if headers and not _normal(headers):
            headers = Headers(headers, encoding=request.encoding)
        cookies, meta, flags, cb_kwargs = request.cookies, request.meta, request.flags, request.cb_kwargs
        priority = request.priority
        record = _Record(
            request.url,
            None if callback is None else self._name(callback, "callback"),
            None if errback is None else self._name(errback, "errback"),
            request.method,
            headers,
            request.body,
            stored(cookies, "cookies", loaded) if cookies else None,
            stored(meta, "meta", loaded) if meta else None,
            request.encoding,
            priority if type(priority) is int else int(priority),
            bool(request.dont_filter),
            stored(list(flags), "flags", loaded) if flags else None,
            stored(cb_kwargs, "cb_kwargs", loaded) if cb_kwargs else None,
        )
        cls = type(request)
        if cls is not Request:
            record.cls, names = self._class(cls)
            if names:
                own = {name: getattr(request, name) for name in names}
                record.own = stored(own, cls.__name__, loaded)
        return record

    def _name(self, callback: Any, role: str) -> str:
        if type(callback) is MethodType and callback.__self__ is self._spider:
            try:
                return self._names[callback.__func__]
            except (KeyError, TypeError):
                pass
        elif callback is NO_CALLBACK:
            return ""
        name = _find_name(self._spider, callback)
        if name is None:
            name = str(getattr(callback, "__name__", type(callback).__name__))[:_NAME_LIMIT]
            raise Unserializable(
                f"{role}:{name}",
                f"The {role} {name} cannot be stored because it is not a method of the spider "
                f"{self._spider.name!r} that could be found again by name. Make it one.",
            )
        if callback.__self__ is self._spider:
            if len(self._names) >= _CACHE_LIMIT:
                self._names.clear()
            self._names[callback.__func__] = name
        return name

    def _class(self, cls: type[Request]) -> tuple[str, tuple[str, ...]]:
        if cls not in self._classes:
            try:
                path = path_of(cls)
                if path is None:
                    raise Refused(
                        cls.__name__,
                        "the class is not found again by that name",
                        "Define it at the top of a module.",
                    )
                require_loaded(cls, self._loaded)
            except Refused as error:
                raise Unserializable(
                    f"class:{error.name[:_NAME_LIMIT]}",
                    f"A request of class {cls.__module__}.{cls.__qualname__} cannot be stored because "
                    f"{error.why}. {error.remedy}",
                ) from None
            own = tuple(name for name in cls.attributes if name not in Request.attributes)
            if len(self._classes) >= _CACHE_LIMIT:
                self._classes.clear()
            self._classes[cls] = path, own
        return self._classes[cls]

    def _request(self, record: _Record) -> Request:
        callback = None if record.callback is None else self._method(record.callback)
        errback = None if record.errback is None else self._method(record.errback)
        cookies, meta, flags, cb_kwargs = record.cookies, record.meta, record.flags, record.cb_kwargs
        if cookies is not None:
            cookies = _lifted(cookies, dict, list)
        if meta is not None:
            meta = _lifted(meta, dict)
        if flags is not None:
            flags = _lifted(flags, list)
        if cb_kwargs is not None:
            cb_kwargs = _lifted(cb_kwargs, dict)
        if record.cls is None:
            # A URL that is canonical is safe as it is; looking for what to escape takes twice as
            # long as all the rest. The key asks Scrapy not to look (before 2.19 it looks anyway).
            safe = record.encoding == "utf-8" and is_canonical(record.url)
            if safe:
                meta = {**meta, "verbatim_url": True} if meta else {"verbatim_url": True}
            request = Request(
                record.url,
                callback,
                record.method,
                None,
                record.body,
                cookies,
                meta,
                record.encoding,
                record.priority,
                record.dont_filter,
                errback,
                flags,
                cb_kwargs,
            )
            if safe:
                del request.meta["verbatim_url"]
        else:
            values = {
                "url": record.url,
                "callback": callback,
                "method": record.method,
                "headers": record.headers,
                "body": record.body,
                "cookies": cookies,
                "meta": meta,
                "encoding": record.encoding,
                "priority": record.priority,
                "dont_filter": record.dont_filter,
                "errback": errback,
                "flags": flags,
                "cb_kwargs": cb_kwargs,
            }
            request = _build(record.cls, values, record.own)
        if record.headers or record.cls is not None:
            # Assigned as they were: a constructor would normalize them once more, and those of
            # some classes add to them.
            headers = Headers(encoding=record.encoding)
            dict.update(headers, record.headers)
            request.headers = headers
        if request.method != record.method:
            request.method = record.method
        return request

    def _method(self, name: str) -> Any:
        method = self._methods.get(name)
        if method is None:
            method = _find_method(self._spider, name)
            if method is None:
                raise BadRecord(f"{name[:_NAME_LIMIT]!r} is no method of the spider {self._spider.name!r}")
            self._methods[name] = method
        return method


def _build(path: str, values: dict[str, Any], own: Any) -> Request:
    cls = resolve(path)
    if cls is None or not issubclass(cls, Request):
        raise BadRecord(f"{path[:_NAME_LIMIT]!r} is no request class that is loaded")
    own = {} if own is None else _lifted(own, dict)
    if not own.keys().isdisjoint(values) or not own.keys() <= set(cls.attributes):
        raise BadRecord(f"{path} has no such attributes")
    return cls(**{name: value for name, value in values.items() if name in cls.attributes}, **own)


def _find_method(spider: Spider, name: str) -> MethodType | None:
    # Looked up in the namespaces, so that no property and no __getattr__ runs.
    if name.startswith("__") and name.endswith("__"):
        return None
    found = vars(spider).get(name)
    if found is not None:
        own = type(found) is MethodType and found.__self__ is spider
        return cast("MethodType", found) if own else None
    for cls in type(spider).__mro__:
        if name in vars(cls):
            found = vars(cls)[name]
            if type(found) is FunctionType:
                return MethodType(found, spider)
            if type(found) is classmethod:
                return MethodType(found.__func__, type(spider))
            return None
    return None


def _find_name(spider: Spider, callback: Any) -> str | None:
    if type(callback) is not MethodType:
        return None
    if callback.__self__ is not spider and callback.__self__ is not type(spider):
        return None
    name = getattr(callback.__func__, "__name__", None)
    if type(name) is str and _find_method(spider, name) == callback:
        return name
    # A private method, or a decorated one under another name.
    for namespace in (vars(spider), *map(vars, type(spider).__mro__)):
        for name in namespace:
            if _find_method(spider, name) == callback:
                return name
    return None


def _normal(headers: Any) -> bool:
    """Whether *headers* are what constructors make of them, and nobody put in what they forbid."""
    if not isinstance(headers, Headers):
        return False
    for values in dict.values(headers):
        for value in values:
            if type(value) is not bytes:
                return False
    return True


def _stored(value: Any, what: str, loaded: frozenset[str] | None = None) -> Any:
    """Like :func:`_lowered`, at once for a map of plain values; see :data:`PLAIN` for the few
    that the encoder then refuses."""
    if type(value) is dict:
        for key, element in value.items():
            if type(key) is not str or type(element) not in PLAIN:
                break
        else:
            return value
    return _lowered(value, what, loaded)


def _lowered(value: Any, what: str, loaded: frozenset[str] | None = None) -> Any:
    """*value* as the encoder keeps it; :class:`Unserializable` names the element of *what* that it
    does not keep."""
    try:
        return Lowering(loaded).lower(value)
    except Refused as error:
        key = _culprit(value, loaded)
        kind = what if key is None else f"{what}.{key}"
        where = what if key is None else f"{what}[{key!r}]"
        raise Unserializable(
            f"{kind[:_NAME_LIMIT]}:{error.name[:_NAME_LIMIT]}",
            f"{where} cannot be stored because {error.why}. {error.remedy}",
        ) from None


def _culprit(value: Any, loaded: frozenset[str] | None) -> str | None:
    """The key of the first element of *value* that is refused by itself."""
    try:
        record = record_of(type(value))
        elements = value if record is None else record.read(value)
        for key, element in elements.items() if type(elements) is dict else ():
            try:
                Lowering(loaded).lower(element, MAX_DEPTH - 1)
            except Refused:
                return key if type(key) is str else type(key).__name__
    except Refused:
        pass
    return None


def _lifted(value: Any, *kinds: type) -> Any:
    if type(value) is dict:
        for key, element in value.items():
            if type(key) is not str or type(element) not in PLAIN:
                value = lift(value)
                break
    else:
        value = lift(value)
    if type(value) not in kinds:
        raise BadRecord(f"a value of type {type(value).__name__} instead of {kinds[0].__name__}")
    return value


def _framed(data: bytes, what: str) -> bytes:
    if len(data) >= MAX_BYTES:
        raise Unserializable(
            f"{what}:size", f"The {what} takes {len(data)} bytes, more than the {MAX_BYTES} that are stored."
        )
    return _HEAD + data


def _content(data: bytes) -> bytes:
    if len(data) > MAX_BYTES:
        raise BadRecord(f"{len(data)} bytes, more than {MAX_BYTES}")
    if data[:1] != _HEAD:
        raise BadRecord(f"format {data[:1].hex() or 'missing'}, known is {VERSION}")
    return data[1:]


def _bad(what: str, error: Exception) -> BadRecord:
    # Only these are known not to repeat what they found, which may be a password.
    reason = str(error) if isinstance(error, (BadRecord, MsgspecError)) else type(error).__name__
    return BadRecord(f"These bytes are not a whole {what} of this format: {reason}")
