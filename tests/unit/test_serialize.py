"""Requests and values to bytes and back: nothing changes on the way, and nothing hostile gets in."""

from __future__ import annotations

import contextlib
import functools
import importlib
import math
import pathlib
import sys
from collections import OrderedDict, namedtuple
from dataclasses import dataclass, field
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum, Flag
from types import MethodType, ModuleType
from typing import Any, NamedTuple
from uuid import UUID
from zoneinfo import ZoneInfo

import attr
import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scrapy import Field, FormRequest, Item, Request, Selector, Spider
from scrapy.http import Headers, HtmlResponse, JsonRequest, XmlRpcRequest
from scrapy.http.request import NO_CALLBACK
from scrapy.linkextractors import LinkExtractor

from scrapy_ha._values import MAX_BYTES, MAX_DEPTH
from scrapy_ha.errors import BadRecord, Unserializable
from scrapy_ha.serialize import (
    VERSION,
    RequestCodec,
    decode_value,
    describe_request,
    encode_value,
    without_meta,
)

fuzz = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
"""For a machine that is busy with something else."""

URL = "http://example.com/page?x=1"
HEAD = bytes([VERSION])
CALLED: list[str] = []
"""What ran that must not run."""


def nameless(function: Any) -> Any:
    def wrapper(self: Any, *args: Any) -> Any:
        return function(self, *args)

    return wrapper


class BaseSpider(Spider):
    name = "base"

    def parse_inherited(self, response: Any) -> None: ...

    def parse_overridden(self, response: Any) -> None: ...


class QuietSpider(BaseSpider):
    name = "quiet"
    attribute = 1

    def __init__(self) -> None:
        super().__init__()
        self.parse_instance = MethodType(lambda self, response: None, self)
        self.other = BaseSpider()
        self.private = self.__parse

    def parse(self, response: Any) -> None: ...

    def parse_overridden(self, response: Any) -> None: ...

    def __parse(self, response: Any) -> None: ...

    def failed(self, failure: Any) -> None: ...

    @nameless
    def parse_decorated(self, response: Any) -> None: ...

    @classmethod
    def parse_class(cls, response: Any) -> None: ...

    @staticmethod
    def parse_static(response: Any) -> None: ...

    @property
    def trap(self) -> Any:
        CALLED.append("property")
        return self.parse

    def parent(self) -> Any:
        return super().parse_overridden

    def __call__(self, response: Any) -> None: ...


@pytest.fixture
def spider() -> Any:
    return QuietSpider()


@pytest.fixture
def codec(spider: Any) -> RequestCodec:
    return RequestCodec(spider)


@pytest.fixture(autouse=True)
def nothing_runs() -> Any:
    CALLED.clear()
    yield
    assert not CALLED


def attributes(request: Request) -> dict[str, Any]:
    return {name: getattr(request, name) for name in request.attributes}


def assert_same(found: Any, expected: Any) -> None:
    """Equal, and of the same types all the way down."""
    assert type(found) is type(expected)
    if isinstance(expected, dict):
        assert len(found) == len(expected)
        for (key, value), (found_key, found_value) in zip(expected.items(), found.items(), strict=True):
            assert_same(found_key, key)
            assert_same(found_value, value)
    elif isinstance(expected, (list, tuple)):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            assert_same(one, other)
    elif isinstance(expected, (set, frozenset)):
        assert found == expected
        twins = {value: value for value in found}
        for value in expected:
            assert_same(twins[value], value)
    elif isinstance(expected, float):
        assert math.isnan(found) if math.isnan(expected) else found == expected
        assert math.copysign(1, found) == math.copysign(1, expected)
    elif isinstance(expected, Decimal):
        assert found.as_tuple() == expected.as_tuple()
    elif isinstance(expected, (datetime, time)):
        assert found.isoformat() == expected.isoformat()
        assert found.fold == expected.fold
        assert found.utcoffset() == expected.utcoffset()
    else:
        assert found == expected


# Requests


def full(spider: Any, **changes: Any) -> dict[str, Any]:
    return {
        "url": URL,
        "callback": spider.parse,
        "errback": spider.failed,
        "method": "PUT",
        "headers": {"B": ["2", "1"], "A": "x", "Set-Cookie": [b"\xff\x00", "é"]},
        "body": b"\x00\xffbody",
        "cookies": [{"name": "n", "value": "v", "domain": "example.com", "secure": True}],
        "meta": {"depth": 3, "tuple": (1, [2, {3}]), 4: None},
        "cb_kwargs": {"page": 2, "when": datetime(2024, 1, 2, tzinfo=timezone.utc)},
        "encoding": "cp1252",
        "priority": -7,
        "dont_filter": True,
        "flags": ["one", "two"],
    } | changes


class OwnRequest(Request):
    """Has an attribute of its own, other defaults, and a constructor that adds a header."""

    attributes: tuple[str, ...] = (*Request.attributes, "render")

    def __init__(self, *args: Any, render: Any = None, **kwargs: Any) -> None:
        kwargs.setdefault("priority", 99)
        super().__init__(*args, **kwargs)
        self.headers.appendlist("X-Render", b"1")
        self.render = render


REQUESTS: list[Any] = [
    lambda spider: Request(URL),
    lambda spider: Request(**full(spider)),
    lambda spider: Request(URL, cookies={"a": "b", "c": 1}),
    lambda spider: FormRequest(URL, formdata={"a": ["1", "2"]}, callback=spider.parse),
    lambda spider: FormRequest(URL, method="GET", formdata={"a": "1"}),
    lambda spider: FormRequest(**full(spider)),
    lambda spider: JsonRequest(URL, data={"b": 1, "a": 2}, dumps_kwargs={"sort_keys": False, "indent": 1}),
    lambda spider: JsonRequest(URL),
    lambda spider: JsonRequest(**full(spider)),
    lambda spider: XmlRpcRequest(URL, methodname="m", params=(1, "x")),
    lambda spider: XmlRpcRequest(**full(spider, dont_filter=False)),
    lambda spider: OwnRequest(URL),
    lambda spider: OwnRequest(**full(spider), render={"wait": (1, 2)}),
    lambda spider: Request("data:,x"),
    lambda spider: Request("http://ex%41mple.com/%7e/a b?q=é#f", encoding="latin-1"),
    lambda spider: Request(URL, priority=2**63 - 1, callback=NO_CALLBACK, errback=NO_CALLBACK),
    lambda spider: Request(URL, meta={"big": 2**64, "text": "\ud800"}),
    lambda spider: Request("http://user:pass@example.com:80/?é", meta={"é": "é\0"}),
]


@pytest.mark.parametrize("make", REQUESTS)
def test_a_request_comes_back_whole(make: Any, codec: RequestCodec, spider: Any) -> None:
    """Class and every attribute, with the order of headers and the types in meta."""
    request = make(spider)
    back = codec.decode(codec.encode(request))
    assert type(back) is type(request)
    for name, value in attributes(request).items():
        found = getattr(back, name)
        if name == "headers":
            assert type(found) is Headers
            assert list(dict.items(found)) == list(dict.items(value))
            assert found.encoding == value.encoding
        elif name in {"callback", "errback"}:
            assert found == value
        else:
            assert_same(found, value)


def test_encoding_changes_nothing_in_the_request(codec: RequestCodec, spider: Any) -> None:
    """And what comes back shares nothing with it that could be changed."""
    request = Request(**full(spider, meta={"list": [1]}))
    before = attributes(request)
    back = codec.decode(codec.encode(request))
    back.meta["list"].append(2)
    assert attributes(request) == before
    assert request.meta == {"list": [1]}


def test_headers_changed_after_construction_stay_changed(codec: RequestCodec) -> None:
    """A constructor that adds headers does not add those that were taken out."""
    request = JsonRequest(URL)
    del request.headers["Accept"]
    request.headers.appendlist("X", "1")
    back = codec.decode(codec.encode(request))
    assert list(dict.items(back.headers)) == list(dict.items(request.headers))
    assert b"Accept" not in back.headers


def test_headers_that_are_not_bytes_are_normalized(codec: RequestCodec) -> None:
    """Text that slipped past :class:`Headers` is stored as it would be sent."""
    request = Request(URL, headers={"A": "1"})
    request.headers.getlist("A").append("2")  # type: ignore[arg-type]
    assert codec.decode(codec.encode(request)).headers.getlist("A") == [b"1", b"2"]


def test_values_out_of_type_keep_their_meaning(codec: RequestCodec) -> None:
    """Of attributes that anybody may set afterwards: method, priority, dont_filter, flags."""
    request = Request(URL, priority=True)
    request.method, request.dont_filter = "get", 1  # type: ignore[assignment]
    request.flags = ("x",)  # type: ignore[assignment]
    back = codec.decode(codec.encode(request))
    assert (back.method, back.priority, back.dont_filter, back.flags) == ("get", 1, True, ["x"])


CALLBACKS = [
    "parse",
    "parse_inherited",
    "parse_overridden",
    "parse_decorated",
    "parse_class",
    "parse_instance",
]


@pytest.mark.parametrize("name", [*CALLBACKS, "private"])
def test_methods_of_the_spider_are_kept_by_name(name: str, spider: Any) -> None:
    """Inherited, private, decorated and class methods too; also with a codec that never saw them."""
    method = getattr(spider, name)
    codec = RequestCodec(spider)
    for _ in range(2):
        data = codec.encode(Request(URL, callback=method, errback=method))
        for reader in (codec, RequestCodec(spider)):
            back = reader.decode(data)
            assert back.callback == method
            assert back.errback == method


def test_no_callback_and_none_stay_apart(codec: RequestCodec) -> None:
    """Components tell them apart by identity."""
    assert codec.decode(codec.encode(Request(URL, callback=NO_CALLBACK))).callback is NO_CALLBACK
    assert codec.decode(codec.encode(Request(URL))).callback is None


def inner_function() -> Any:
    def inner(response: Any) -> None: ...

    return inner


@pytest.mark.parametrize(
    ("make", "kind"),
    [
        (lambda spider: lambda response: None, "callback:<lambda>"),
        (lambda spider: inner_function(), "callback:inner"),
        (lambda spider: functools.partial(spider.parse), "callback:partial"),
        (lambda spider: spider.other.parse_inherited, "callback:parse_inherited"),
        (lambda spider: spider.parent(), "callback:parse_overridden"),
        (lambda spider: spider.parse_static, "callback:parse_static"),
        (lambda spider: spider.__call__, "callback:__call__"),
        (lambda spider: MethodType(lambda self, r: None, spider), "callback:<lambda>"),
        (lambda spider: spider, "callback:QuietSpider"),
        (lambda spider: len, "callback:len"),
    ],
)
def test_other_callbacks_are_refused(make: Any, kind: str, codec: RequestCodec, spider: Any) -> None:
    """The error names role and function, and says what to do."""
    callback = make(spider)
    with pytest.raises(Unserializable, match="not a method of the spider 'quiet'") as caught:
        codec.encode(Request(URL, callback=callback))
    assert caught.value.kind == kind
    with pytest.raises(Unserializable) as caught:
        codec.encode(Request(URL, errback=callback))
    assert caught.value.kind == kind.replace("callback", "errback", 1)


def test_a_class_that_is_not_found_again_is_refused(codec: RequestCodec) -> None:
    """One made in a function, or one whose name stands for another class."""

    class LocalRequest(Request): ...

    with pytest.raises(Unserializable, match="LocalRequest cannot be stored") as caught:
        codec.encode(LocalRequest(URL))
    assert caught.value.kind == "class:LocalRequest"
    impostor = type("OwnRequest", (Request,), {"__module__": __name__})
    with pytest.raises(Unserializable):
        codec.encode(impostor(URL))


LATE_MODULE = """
from collections import namedtuple
from dataclasses import dataclass
from enum import Enum

import attr
from scrapy import Field, Item, Request

class LateRequest(Request): ...

class LateItem(Item):
    x = Field()

@dataclass
class LateData:
    x: int = 1

@attr.s(auto_attribs=True)
class LateAttrs:
    x: int = 1

class LateEnum(Enum):
    X = 1

LateTuple = namedtuple("LateTuple", "x")
"""


@pytest.fixture
def late(codec: RequestCodec, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A module that is imported when the codec exists already."""
    name = "late_module_of_a_callback"
    (tmp_path / f"{name}.py").write_text(LATE_MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    yield importlib.import_module(name)
    del sys.modules[name]


def test_a_request_class_imported_late_is_refused(codec: RequestCodec, late: Any) -> None:
    """After a restart it would not be found, since reading imports nothing."""
    for _ in range(2):
        with pytest.raises(Unserializable, match=r"module late_module_of_a_callback .* not loaded") as caught:
            codec.encode(late.LateRequest(URL))
        assert caught.value.kind == "class:LateRequest"
        assert str(caught.value).endswith("Import it at the top of the spider's module.")


LATE_VALUES = [
    (lambda late: late.LateData(), "LateData"),
    (lambda late: late.LateAttrs(), "LateAttrs"),
    (lambda late: late.LateItem(x=1), "LateItem"),
    (lambda late: late.LateTuple(1), "LateTuple"),
    (lambda late: late.LateEnum.X, "LateEnum"),
]


@pytest.mark.parametrize(("build", "name"), LATE_VALUES, ids=[name for _, name in LATE_VALUES])
def test_a_value_of_a_class_imported_late_is_refused(
    build: Any, name: str, codec: RequestCodec, late: Any
) -> None:
    """Wherever it stands; the error names the element, the module and what to do."""
    value = build(late)
    cases: list[tuple[dict[str, Any], str]] = [
        ({"meta": {"ok": make(Point, 1), "v": value}}, f"meta.v:{name}"),
        ({"meta": {"ok": Colour.RED, "v": [{"deep": (value,)}]}}, f"meta.v:{name}"),
        ({"meta": {"v": make(Point, value)}}, f"meta.v:{name}"),
        ({"meta": {"v": {1: value}, "\ud800": 1}}, f"meta.v:{name}"),
        ({"cb_kwargs": {"v": value}}, f"cb_kwargs.v:{name}"),
        ({"flags": [value]}, f"flags:{name}"),
    ]
    for changes, kind in cases:
        with pytest.raises(Unserializable, match=r"module late_module_of_a_callback .* not loaded") as caught:
            codec.encode(Request(URL, **changes))
        assert caught.value.kind == kind
        assert str(caught.value).endswith("Import it at the top of the spider's module.")
    with pytest.raises(Unserializable) as caught:
        codec.encode(OwnRequest(URL, render=value))
    assert caught.value.kind == f"OwnRequest.render:{name}"
    # What is stored of it otherwise is for readers that have it.
    assert_same(decode_value(encode_value(value)), value)


def test_what_a_restarted_crawl_has_not_loaded_is_what_was_refused(
    codec: RequestCodec, late: Any, spider: Any
) -> None:
    """A codec made after the import stores it; a process without the module cannot read that."""
    request = late.LateRequest(URL, meta={"v": [late.LateData(), late.LateEnum.X]})
    data = RequestCodec(spider).encode(request)
    found = codec.decode(data)
    assert type(found) is late.LateRequest
    assert found.meta == request.meta
    with pytest.MonkeyPatch.context() as restarted:
        restarted.delitem(sys.modules, late.__name__)
        with pytest.raises(BadRecord):
            RequestCodec(spider).decode(data)


def test_classes_of_a_script_are_stored(codec: RequestCodec, monkeypatch: pytest.MonkeyPatch) -> None:
    """``__main__`` is there from the start, also when it defines a class after it."""
    script = type("ScriptRequest", (Request,), {"__module__": "__main__"})
    colour = Enum("ScriptEnum", "RED", module="__main__")  # type: ignore[misc]
    for cls in (script, colour):
        monkeypatch.setattr(sys.modules["__main__"], cls.__name__, cls, raising=False)
    found = codec.decode(codec.encode(script(URL, meta={"c": colour["RED"]})))
    assert type(found) is script
    assert found.meta == {"c": colour["RED"]}


def test_what_cannot_be_stored_is_named(codec: RequestCodec, spider: Any) -> None:
    """By attribute, key and type, wherever it stands below the key."""
    deep: list[Any] = []
    for _ in range(MAX_DEPTH + 1):
        deep = [deep]
    cycle: list[Any] = []
    cycle.append(cycle)
    for changes, kind in [
        ({"meta": {"f": inner_function()}}, "meta.f:function"),
        ({"meta": {"ok": 1, "sel": Selector(text="<a>")}}, "meta.sel:Selector"),
        ({"meta": {"deep": {"a": [(object(),)]}}}, "meta.deep:object"),
        ({"meta": {"file": sys.stdout}}, f"meta.file:{type(sys.stdout).__name__}"),
        ({"meta": {"cycle": cycle}}, "meta.cycle:depth"),
        ({"meta": {"deep": deep}}, "meta.deep:depth"),
        ({"meta": {(1, 2): object()}}, "meta.tuple:object"),
        ({"cb_kwargs": {"r": Request(URL)}}, "cb_kwargs.r:Request"),
        ({"cookies": {"a": object()}}, "cookies.a:object"),
        ({"cookies": OrderedDict(a=1)}, "cookies:OrderedDict"),
        ({"flags": [object()]}, "flags:object"),
        ({"body": b"x" * MAX_BYTES}, "request:size"),
        ({"priority": 2**64}, "Request:OverflowError"),
    ]:
        with pytest.raises(Unserializable) as caught:
            codec.encode(Request(**full(spider, **changes)))
        assert caught.value.kind == kind
    with pytest.raises(Unserializable) as caught:
        codec.encode(JsonRequest(URL, dumps_kwargs={"cls": dict}))
    assert caught.value.kind == "JsonRequest.dumps_kwargs:type"


def test_an_error_does_not_repeat_the_url(codec: RequestCodec) -> None:
    """It may hold a password."""
    with pytest.raises(Unserializable) as caught:
        codec.encode(Request("http://user:secret@example.com/", meta={"a": object()}))
    assert "secret" not in str(caught.value)
    with pytest.raises(BadRecord) as bad:
        codec.decode(record(u="user:secret@example.com"))
    assert "secret" not in str(bad.value)


def test_a_structure_that_unfolds_without_end_is_refused(codec: RequestCodec) -> None:
    """Shared parts are stored once for each place they stand in."""
    bomb: Any = [0] * 1000
    for _ in range(10):
        bomb = [bomb] * 1000
    with pytest.raises(Unserializable) as caught:
        codec.encode(Request(URL, meta={"bomb": bomb}))
    assert caught.value.kind == "meta.bomb:size"


def test_encoding_deep_in_the_stack_raises_nothing_else(codec: RequestCodec) -> None:
    """A recursion limit that is near is one more reason not to store."""
    nested: list[Any] = []
    for _ in range(MAX_DEPTH - 3):
        nested = [nested]
    request = Request(URL, meta={"a": nested})
    outcomes = set()

    def dive() -> None:
        # The deepest frames come first: there is no stack left to raise anything at all.
        try:
            dive()
        except RecursionError:
            pass
        try:
            codec.encode(request)
            outcomes.add("stored")
        except Unserializable:
            outcomes.add("refused")
        except RecursionError:
            outcomes.add("none left")

    dive()
    assert "stored" in outcomes
    assert codec.decode(codec.encode(request)).meta == {"a": nested}


def test_meta_none_of_the_decoded_is_shared(codec: RequestCodec) -> None:
    """Two readings of one record are two requests."""
    data = codec.encode(Request(URL, meta={"a": [1]}, headers={"A": "1"}))
    one, other = codec.decode(data), codec.decode(data)
    one.meta["a"].append(2)
    one.headers.appendlist("A", "2")
    assert other.meta == {"a": [1]}
    assert other.headers.getlist("A") == [b"1"]


# Hostile records


def record(**fields: Any) -> bytes:
    return HEAD + msgspec.msgpack.encode({"u": URL} | fields)


def ext(code: int, content: Any) -> Any:
    return msgspec.msgpack.Ext(code, msgspec.msgpack.encode(content))


THIS = __name__

HOSTILE: list[Any] = [
    b"",
    b"{",
    HEAD,
    b"\x00" + record()[1:],
    bytes([VERSION + 1]) + record()[1:],
    b'{"url": "http://example.com"}',
    b"\x80\x04\x95cos\nsystem\n(S'true'\ntR.",
    record() + b"\x00",
    HEAD + b"\x91" * 100_000,
    HEAD + b"\xdd\xff\xff\xff\xff",
    HEAD + b"\xdf\xff\xff\xff\xff",
    HEAD + b"\xc6\xff\xff\xff\xff",
    HEAD + b"\x81\xa1u\xa1\xff",
    record(b=b"x" * MAX_BYTES),
    HEAD + msgspec.msgpack.encode([URL]),
    HEAD + msgspec.msgpack.encode({}),
    record(u=None),
    record(u="not a url"),
    record(u=""),
    record(u=b"http://example.com"),
    record(u="http://[x/"),
    record(u="http://example.com:99999/"),
    record(unknown=1),
    record(c="missing"),
    record(c="attribute"),
    record(c="name"),
    record(c="trap"),
    record(c="other"),
    record(c="parse_static"),
    record(c="__init__"),
    record(c="__class__"),
    record(c="__call__"),
    record(c="parse.__func__"),
    record(c=7),
    record(e="missing"),
    record(m=None),
    record(h={"A": ["x"]}),
    record(h={b"A": b"x"}),
    record(h=[[b"A", b"x"]]),
    record(b="text"),
    record(k="text"),
    record(k=5),
    record(t=[1]),
    record(t="text"),
    record(t={b"a": 1}),
    record(t={1: 1}),
    record(t={"a": {1: 1}}),
    record(t=ext(4, [1])),
    record(n=None),
    record(n="no such codec"),
    record(n="os.path", u="http://example.com/é?é"),
    record(p="1"),
    record(p=1.5),
    record(p=True),
    record(d=1),
    record(f={"a": 1}),
    record(a=[1]),
    record(s="os:system"),
    record(s="builtins:object"),
    record(s="antigravity:Request"),
    record(s="scrapy.http:Nothing"),
    record(s="scrapy.http.request:Request.__class__"),
    record(s="scrapy:Spider"),
    record(s=""),
    record(s=":"),
    record(s=f"{THIS}:OwnRequest", x={"render": 1, "data": 2}),
    record(s=f"{THIS}:OwnRequest", x={"url": "http://other/"}),
    record(s=f"{THIS}:OwnRequest", x=[1]),
    record(s="scrapy.http:JsonRequest", x={"dumps_kwargs": 5}),
]


@pytest.mark.parametrize("data", HOSTILE, ids=lambda data: repr(data[:40]))
def test_a_record_that_is_not_a_request_is_refused(data: bytes, codec: RequestCodec) -> None:
    """With BadRecord, without importing a module."""
    loaded = set(sys.modules)
    with pytest.raises(BadRecord):
        codec.decode(data)
    assert {name for name in set(sys.modules) - loaded if not name.startswith("encodings.")} == set()


def test_every_cut_of_a_record_is_refused(codec: RequestCodec, spider: Any) -> None:
    """No prefix of a request is another request."""
    data = codec.encode(JsonRequest(**full(spider)))
    for length in range(len(data)):
        with pytest.raises(BadRecord):
            codec.decode(data[:length])


CODEC = RequestCodec(QuietSpider())
VALID = [CODEC.encode(make(CODEC._spider)) for make in REQUESTS]


@fuzz
@given(st.sampled_from(VALID), st.data())
def test_a_damaged_record_is_a_request_or_refused(valid: bytes, data: st.DataObject) -> None:
    """Bytes changed, put in or taken out anywhere lead to no other exception."""
    damaged = bytearray(valid)
    for _ in range(data.draw(st.integers(1, 4))):
        start = data.draw(st.integers(0, len(damaged)))
        stop = data.draw(st.integers(start, min(start + 3, len(damaged))))
        damaged[start:stop] = data.draw(st.binary(max_size=4))
    try:
        request = CODEC.decode(bytes(damaged))
    except BadRecord:
        return
    assert isinstance(request, Request)


hostile_leaves = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text(max_size=8)
    | st.binary(max_size=8)
    | st.sampled_from([f"{THIS}:Point", f"{THIS}:Colour", f"{THIS}:Book", "builtins:dict", "RED", "x"])
)
hostile_values = st.recursive(
    hostile_leaves,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["x", "y", "title", "a"]), inner, max_size=3)
        | st.builds(ext, st.integers(0, 20), inner)
        | st.builds(msgspec.msgpack.Ext, st.integers(-128, 127), st.binary(max_size=20))
    ),
    max_leaves=8,
)


@fuzz
@given(st.dictionaries(st.sampled_from("cemhbktnpdfasx"), hostile_values, max_size=4))
def test_a_record_of_anything_is_a_request_or_refused(fields: dict[str, Any]) -> None:
    """Well-formed MessagePack of the wrong shape leads to no other exception."""
    try:
        assert isinstance(CODEC.decode(record(**fields)), Request)
    except BadRecord:
        pass


@fuzz
@given(hostile_values)
def test_a_value_of_anything_is_a_value_or_refused(value: Any) -> None:
    """What decodes can be stored again, so it is on the allow-list."""
    data = HEAD + msgspec.msgpack.encode(value)
    try:
        found = decode_value(data)
    except BadRecord:
        return
    assert_same(decode_value(encode_value(found)), found)


@fuzz
@given(st.binary(max_size=60))
def test_bytes_of_anything_are_refused_or_a_value(data: bytes) -> None:
    """No other exception."""
    for start in (b"", HEAD):
        try:
            decode_value(start + data)
        except BadRecord:
            pass
        try:
            CODEC.decode(start + data)
        except BadRecord:
            pass


@pytest.mark.parametrize("code", [4, 5, 6, 7])
def test_nesting_through_extensions_is_bounded(code: int) -> None:
    """Each extension is one level, as a list is."""
    value: Any = 1
    for _ in range(MAX_DEPTH * 3):
        value = ext(code, [value, value] if code == 7 else [value])
        if len(value.data) > 1_000_000:
            break
    with pytest.raises(BadRecord):
        decode_value(HEAD + msgspec.msgpack.encode(value))


def test_the_depth_that_is_stored_is_read() -> None:
    """The limits of writing and reading are the same, for each kind of container."""
    wrap: list[Any] = [
        lambda value: [value],
        lambda value: (value,),
        lambda value: {"a": value},
        lambda value: {1: value},
        lambda value: Pair(value, None),
        lambda value: Point(value, None),
    ]
    for around in wrap:
        value: Any = 1
        deepest = 0
        for depth in range(1, MAX_DEPTH + 2):
            value = around(value)
            try:
                data = encode_value(value)
            except Unserializable:
                break
            CALLED.clear()
            assert decode_value(data) == value
            assert not CALLED
            deepest = depth
        # A record counts twice, as the map of its fields is one more; Point has a list as well.
        assert MAX_DEPTH // 2 - 1 <= deepest <= MAX_DEPTH
        CALLED.clear()


# Values


class Pair(NamedTuple):
    left: Any
    right: Any = None


Old = namedtuple("Old", "a b")


class Colour(Enum):
    RED = 1
    BLUE = "blue"


class Access(Flag):
    READ = 1
    WRITE = 2


class Book(Item):
    title = Field()
    pages = Field()

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        CALLED.append("Item.__init__")
        super().__init__(*args, **kwargs)


@dataclass
class Point:
    x: Any
    y: Any = None
    tags: list[Any] = field(default_factory=list)

    def __post_init__(self) -> None:
        CALLED.append("__post_init__")


@dataclass
class Late:
    x: Any
    late: Any = field(init=False)


@dataclass(frozen=True)
class Frozen:
    x: Any
    __slots__ = ("x",)


@dataclass(frozen=True, slots=True)
class Slotted:
    x: Any
    y: Any = 3


@attr.s(auto_attribs=True)
class OldAttrs:
    x: Any
    y: Any = attr.Factory(list)

    def __attrs_post_init__(self) -> None:
        CALLED.append("__attrs_post_init__")


@attr.define(frozen=True)
class NewAttrs:
    x: Any
    _hidden: Any = 1


def make(cls: Any, *args: Any, **kwargs: Any) -> Any:
    value = cls(*args, **kwargs)
    CALLED.clear()
    return value


scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(-(2**200), 2**200)
    | st.floats()
    | st.text(st.characters(exclude_categories=()))
    | st.binary()
    | st.binary().map(bytearray)
    | st.datetimes()
    | st.datetimes(timezones=st.timezones(), allow_imaginary=False)
    | st.dates()
    | st.times()
    | st.timedeltas()
    | st.decimals()
    | st.uuids()
    | st.sampled_from(Colour)
    | st.builds(pathlib.PurePosixPath, st.text(st.characters(exclude_characters="\0")))
)


def is_key(value: Any) -> bool:
    """Hashable, and found again: no NaN, and no moment that is equal to none in another time zone."""
    if type(value) is Decimal:
        return not value.is_nan()
    if type(value) is datetime:
        return value.tzinfo is None
    return type(value) is not bytearray and value == value


keys = st.recursive(
    scalars.filter(is_key),
    lambda inner: st.lists(inner, max_size=3).map(tuple) | st.frozensets(inner, max_size=3),
    max_leaves=3,
)
values = st.recursive(
    scalars | keys,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(st.text(max_size=5), inner, max_size=4)
        | st.dictionaries(keys, inner, max_size=4)
        | st.sets(keys, max_size=4)
        | st.builds(Pair, inner, inner)
        | st.builds(Slotted, inner)
        | st.builds(NewAttrs, inner)
    ),
    max_leaves=10,
)


def assert_comparable(found: Any, expected: Any) -> None:
    """Like :func:`assert_same`, also within records."""
    if isinstance(expected, (Slotted, NewAttrs)):
        assert type(found) is type(expected)
        assert_comparable(found.x, expected.x)
    elif isinstance(expected, (list, tuple)):
        assert type(found) is type(expected)
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            assert_comparable(one, other)
    elif isinstance(expected, dict):
        assert type(found) is dict
        assert_same(list(found), list(expected))
        for key, value in zip(expected, found.values(), strict=True):
            assert_comparable(value, expected[key])
    else:
        assert_same(found, expected)


@fuzz
@given(values)
def test_a_value_comes_back_as_it_was(value: Any) -> None:
    """Equal and of the same type, however nested; the encoding is one and the same each time."""
    data = encode_value(value)
    assert data[:1] == HEAD
    assert_comparable(decode_value(data), value)


@fuzz
@given(st.dictionaries(st.text(max_size=5), values, max_size=4))
def test_meta_comes_back_as_it_was(meta: dict[str, Any]) -> None:
    """A request's meta and cb_kwargs hold any such value."""
    back = CODEC.decode(CODEC.encode(Request(URL, meta=meta, cb_kwargs=meta)))
    assert_comparable(back.meta, meta)
    assert_comparable(back.cb_kwargs, meta)


@pytest.mark.parametrize(
    "value",
    [
        2**64,
        -(2**63) - 1,
        2**63,
        -(2**63),
        1 << 20_000,
        -0.0,
        math.inf,
        "\ud800\udfff a",
        {"\ud800": 1},
        Decimal("sNaN123"),
        Decimal("-0E+30"),
        datetime.max,
        datetime(2024, 10, 27, 2, 30, fold=1),
        datetime(2024, 1, 1, tzinfo=timezone(timedelta(hours=-5, seconds=7, microseconds=3))),
        time(1, 2, 3, 4, tzinfo=timezone.utc),
        timedelta.min,
        UUID(int=5),
        {None: 1, 2.5: 2, (1, "a"): 3, b"b": 4, frozenset({1}): 5, date(2024, 1, 1): 6},
        Pair(1, [2]),
        Old(1, (2,)),
        Colour.BLUE,
        Access.READ,
        pathlib.Path("/a/b"),
        pathlib.PureWindowsPath("c:\\x"),
        [],
        {},
        (),
        set(),
        b"",
    ],
    ids=lambda value: type(value).__name__,
)
def test_rare_values_come_back_as_they_were(value: Any) -> None:
    """At the top, inside a container and as an item's field."""
    assert_same(decode_value(encode_value(value)), value)
    assert_same(decode_value(encode_value({"a": [value]})), {"a": [value]})


def test_a_time_zone_becomes_its_offset() -> None:
    """The moment and its wall clock stay."""
    moment = datetime(2024, 7, 1, 12, tzinfo=ZoneInfo("Europe/Berlin"))
    found = decode_value(encode_value(moment))
    assert found == moment
    assert found.tzinfo == timezone(timedelta(hours=2))


@pytest.mark.parametrize(
    "build",
    [
        lambda: make(Book, title="t", pages=(1, 2)),
        lambda: make(Book),
        lambda: make(Point, 1, [make(Point, 2)], ["t"]),
        lambda: make(Frozen, {1}),
        lambda: make(Slotted, make(OldAttrs, 1)),
        lambda: make(OldAttrs, 1, [make(Book, title=make(NewAttrs, 2))]),
        lambda: make(NewAttrs, {"a": b"b"}),
    ],
)
def test_items_come_back_without_their_constructor(build: Any, codec: RequestCodec) -> None:
    """As values and in meta; the autouse fixture notices any code of theirs that runs."""
    item = build()
    found = decode_value(encode_value(item))
    assert type(found) is type(item)
    assert found == item
    assert codec.decode(codec.encode(Request(URL, meta={"item": item}))).meta == {"item": item}


def test_a_field_that_was_never_set_stays_unset() -> None:
    """Without a default of its class there is nothing to give back."""
    found = decode_value(encode_value(Late(1)))
    assert vars(found) == {"x": 1}


@dataclass
class BuiltinBased(dict):  # type: ignore[type-arg]
    x: Any = 1


@dataclass
class Descriptor:
    x: Any

    @property  # type: ignore[no-redef]
    def x(self) -> Any:
        return 1

    @x.setter
    def x(self, value: Any) -> None:
        CALLED.append("setter")


@dataclass
class Stateful:
    x: int = 1

    def __post_init__(self) -> None:
        self.cache: dict[str, Any] = {}


class Plain:
    pass


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (object(), "object"),
        (Plain(), "Plain"),
        (OrderedDict(a=1), "OrderedDict"),
        (True + 1j, "complex"),
        (Access.READ | Access.WRITE, "Access"),
        (BuiltinBased(), "BuiltinBased"),
        (Stateful(), "Stateful"),
        (make(Descriptor, 1), "Descriptor"),
        (ValueError("x"), "ValueError"),
        (int, "type"),
        (make, "function"),
        (sys, "module"),
        (iter([]), "list_iterator"),
        (memoryview(b"x"), "memoryview"),
    ],
    ids=lambda value: value if type(value) is str else type(value).__name__,
)
def test_other_types_are_refused(value: Any, kind: str) -> None:
    """Rather than being stored as something else; subclasses of what is allowed too."""
    with pytest.raises(Unserializable) as caught:
        encode_value(value)
    assert caught.value.kind == f"value:{kind}"
    with pytest.raises(Unserializable) as caught:
        encode_value({"a": 1, "b": [value]}, "item")
    assert caught.value.kind == f"item.b:{kind}"
    with pytest.raises(Unserializable) as caught:
        encode_value(make(Book, title=1, pages=value), "item")
    assert caught.value.kind == f"item.pages:{kind}"


def test_a_local_item_class_is_refused() -> None:
    """It could not be found again."""

    @dataclass
    class Local:
        x: int = 1

    with pytest.raises(Unserializable, match=r"Local is not plain data"):
        encode_value(Local())


def test_a_lazy_module_is_not_made_to_load(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither its ``__getattr__`` nor one of an object that poses as a module runs."""

    class Lazy(ModuleType):
        def __getattribute__(self, name: str) -> Any:
            CALLED.append(name)
            return ModuleType.__getattribute__(self, name)

    class Poser:
        def __getattr__(self, name: str) -> Any:
            CALLED.append(name)
            return Point

    monkeypatch.setitem(sys.modules, "lazy_module", Lazy("lazy_module"))
    monkeypatch.setitem(sys.modules, "poser_module", Poser())  # type: ignore[arg-type]
    CALLED.clear()
    for module in ("lazy_module", "poser_module", ""):
        with pytest.raises(BadRecord):
            decode_value(HEAD + msgspec.msgpack.encode(ext(15, [f"{module}:Point", {"x": 1}])))
    assert not CALLED


@pytest.mark.parametrize(
    "value",
    [
        ext(15, [f"{THIS}:Point", {"x": 1, "__class__": 2}]),
        ext(15, [f"{THIS}:Point", {"x": 1, "other": 2}]),
        ext(15, [f"{THIS}:Plain", {}]),
        ext(15, [f"{THIS}:Descriptor", {"x": 1}]),
        ext(15, [f"{THIS}:Pair", {"left": 1}]),
        ext(15, [f"{THIS}:Book", {"author": 1}]),
        ext(15, ["scrapy:Item", {"author": 1}]),
        ext(15, ["builtins:dict", {"x": 1}]),
        ext(15, ["subprocess:Popen", {"args": "true"}]),
        ext(16, [f"{THIS}:Colour", "GREEN"]),
        ext(16, [f"{THIS}:Colour", "__class__"]),
        ext(16, [f"{THIS}:Point", "x"]),
        ext(12, "1" * 10 + "x"),
        ext(12, [0, [1], 2]),
        ext(8, ["2024-13-01", 0]),
        ext(11, [10**10, 0, 0]),
        ext(7, [1]),
        ext(7, [[], 1]),
        ext(5, [[]]),
        ext(14, ["Path", "x"]),
        ext(14, ["PurePosixPath", ["x"]]),
        msgspec.msgpack.Ext(1, b"\xff"),
        msgspec.msgpack.Ext(13, b"x"),
        msgspec.msgpack.Ext(99, b""),
        msgspec.msgpack.Ext(-1, b"\0\0\0\0"),
        msgspec.msgpack.Ext(-1, b"x"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_an_extension_that_stands_for_nothing_is_refused(value: Any) -> None:
    """A field that the class does not have, a class that is no item, text that is no number."""
    for content in (value, [value], {"a": (value,)}):
        with pytest.raises(BadRecord):
            decode_value(HEAD + msgspec.msgpack.encode(content))


def test_a_long_number_is_read_in_time() -> None:
    """Reading takes time in proportion to the size: no decimal digits are converted."""
    value = 1 << (8 * 2**20)
    assert decode_value(encode_value(value)) == value


class TextLike(str):
    __slots__ = ()

    def __str__(self) -> str:
        CALLED.append("str")
        return "something else"


class NumberLike(int):
    __slots__ = ()


class BytesLike(bytes):
    __slots__ = ()


@pytest.mark.parametrize(
    ("value", "plain"),
    [(TextLike("x"), "x"), (NumberLike(7), 7), (BytesLike(b"y"), b"y"), (TextLike("é"), "é")],
)
def test_texts_and_numbers_of_other_classes_become_plain(value: Any, plain: Any) -> None:
    """They are kept as what they are, in any position, without running what they override."""
    for found in (decode_value(encode_value(value)), decode_value(encode_value({"k": [value]}))["k"][0]):
        assert type(found) is type(plain)
        assert found == plain


def test_text_of_a_link_is_stored(codec: RequestCodec) -> None:
    """CrawlSpider puts it in meta; lxml gives it as a class of its own."""
    response = HtmlResponse(URL, body=b'<a href="/x">text of the link</a>')
    (link,) = LinkExtractor().extract_links(response)
    meta = {"link_text": link.text}
    found = codec.decode(codec.encode(Request(link.url, meta=meta))).meta
    assert found == {"link_text": "text of the link"}
    assert type(found["link_text"]) is str


# Without the spider


class Elsewhere(Spider):
    name = "elsewhere"

    def parse_it(self, response: Any) -> None: ...


def test_a_request_is_described_without_its_spider() -> None:
    """As plain data, callbacks by name; what cannot be restored here is said to be so."""
    request = Request(
        "http://a.test/",
        Elsewhere().parse_it,
        "PUT",
        {"X": "y"},
        b"\xff",
        meta={"plain": 1, "set": {1}, "odd": {3: 4}},
        cb_kwargs={"k": (1, 2)},
    )
    spider = Elsewhere()
    data = RequestCodec(spider).encode(request.replace(callback=spider.parse_it))
    described = describe_request(data)
    assert described["callback"] == "parse_it"
    assert described["meta"] == {"plain": 1, "set": {1}, "odd": {3: 4}}
    assert (described["body"], described["headers"]) == (b"\xff", {"X": ["y"]})
    assert described["cb_kwargs"] == {"k": (1, 2)}
    assert "errback" not in described


def test_keys_are_taken_out_of_the_meta() -> None:
    """And nothing else is changed, whatever kind of map it is."""
    spider = Elsewhere()
    codec = RequestCodec(spider)
    for meta in ({"a": {1}, "own": (1, 2)}, {"a": 1, 7: "own"}, {"own": 1}, {"a": 1}, {}):
        request = Request("http://a.test/", spider.parse_it, body=b"x", meta=dict(meta), priority=3)
        found = codec.decode(without_meta(codec.encode(request), "a", "b"))
        assert found.meta == {key: value for key, value in meta.items() if key != "a"}
        assert found.to_dict(spider=spider) == request.replace(meta=found.meta).to_dict(spider=spider)


@given(st.binary(max_size=60) | st.binary(max_size=60).map(lambda data: b"\x01" + data))
def test_neither_takes_what_is_no_request(data: bytes) -> None:
    """Any bytes end in BadRecord, or are a request."""
    for function in (describe_request, lambda data: without_meta(data, "a")):
        with contextlib.suppress(BadRecord):
            function(data)
