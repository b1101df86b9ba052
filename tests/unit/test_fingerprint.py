"""Fingerprints and hosts by the short way are those by the long way."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import urlparse

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from scrapy import Request
from scrapy.utils.httpobj import urlparse_cached
from scrapy.utils.request import RequestFingerprinter, fingerprint

from scrapy_ha import fingerprint as module
from scrapy_ha.fingerprint import URL_LIMIT, Fingerprints, host_of

fuzz = settings(deadline=None, max_examples=400, suppress_health_check=[HealthCheck.too_slow])


class Counting(RequestFingerprinter):
    """A project's own fingerprinter."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[Request] = []

    def fingerprint(self, request: Request) -> bytes:
        self.asked.append(request)
        return b"%d" % len(self.asked)


SHARED = Fingerprints(RequestFingerprinter(), size=8)
"""Small, so that URLs come and go."""

schemes = st.sampled_from(["http", "https", "HTTP", "ftp", "data", "about", "file", "x-y", "httpsx"])
hosts = st.sampled_from(
    [
        "example.com",
        "EXAMPLE.com",
        "a.b-c.d",
        "a--b",
        "xn--bcher-kva.example",
        "bücher.example",
        "127.0.0.1",
        "0x7f.1",
        "[::1]",
        "[0:0::1]",
        "a_b",
        "-a.com",
        "a.com.",
        ".a.com",
        "a..b",
        "",
        "ａ.com",
        "a%41b",
        "a" * 70 + ".com",
    ]
)
userinfos = st.sampled_from(["", "", "", "u@", "u:p@", "u%40:p@", "@", "ü:@", "a@b@"])
ports = st.sampled_from(
    ["", "", "", ":", ":80", ":443", ":8000", ":08000", ":50000", ":59999", ":65535", ":0"]
)
pieces = st.sampled_from(
    [
        *"aZ019_.~-/;,:@!*$&'()+=?#%| \t\n\"<>\\^`{}[]é語\xa0",
        *["//", "/.", "/..", "./", "../", "/a", "%2f", "%2F", "%20", "%41", "%e3%81%82", "%E3%81%82", "%FF"],
        *[
            "%",
            "%4",
            "%zz",
            "%25",
            "%3B",
            "%3f",
            "%7E",
            "%2E",
            ";p=1",
            "a=1",
            "a=",
            "&",
            "&&",
            "=",
            "b=2",
            "#f",
        ],
        "\ud800",
    ]
)
texts = st.lists(pieces, max_size=6).map("".join)
words = st.text("ab01.-_~+%2FE8", max_size=4)
queries = st.lists(st.tuples(words, st.sampled_from(["=", ""]), words).map("".join), max_size=4).map("&".join)

nasty = st.builds(
    "{}{}{}{}{}/{}{}{}".format,
    schemes,
    st.sampled_from(["://", "://", "://", ":", ":/", ":///"]),
    userinfos,
    hosts,
    ports,
    texts,
    st.sampled_from(["", "?"]),
    texts | queries,
)
likely = st.builds(
    "http://example.com{}/{}{}{}".format,
    ports,
    st.text("aB1_.~-/(),:@!*=+%2E8", max_size=8),
    st.just("") | queries.map("?{}".format),
    st.sampled_from(["", "", "#", "#top", "#a?b=1", "#/a#b"]),
)
urls = nasty | likely | st.text(max_size=20)


def request(url: str, **changes: Any) -> Request | None:
    try:
        return Request(url, **changes)
    except (ValueError, UnicodeError):
        return None


@fuzz
@given(urls)
@example("http://example.com/?a-=1&a=1")
@example("http://example.com/?b=1&a=1")
@example("http://example.com/?a=1&a")
@example("http://example.com/a/./b/../c")
@example("http://example.com/...")
@example("http://example.com?a=1")
@example("http://example.com/?")
@example("http://example.com/#")
@example("http://example.com/a;b?c=%2B%61")
def test_the_fingerprint_is_that_of_scrapy(url: str) -> None:
    """For any URL, known or new, and without the short way."""
    made = request(url)
    if made is None:
        return
    expected = fingerprint(made)
    assert SHARED.get(made) == expected
    assert SHARED.get(Request(url)) == expected
    assert Fingerprints(RequestFingerprinter()).get(made) == expected


@fuzz
@given(urls)
@example("http://exam\tple.com/")
@example("http://example.com\\@other.com/")
@example("http://example.com@other.com/")
@example("http://example.com:a/")
@example("http://example.com\n")
@example("http://[x/")
@example("")
def test_the_host_is_that_of_urlparse(url: str) -> None:
    """Of a request's URL, and of any text; "" for one that has none or cannot be split."""
    made = request(url)
    if made is not None:
        assert host_of(made.url) == (urlparse_cached(made).hostname or "")
    try:
        expected = urlparse(url).hostname or ""
    except ValueError:
        expected = ""
    assert host_of(url) == expected


@pytest.mark.parametrize(
    "url",
    [
        "http://host:8000/page/123?x=1",
        "https://www.example.com/",
        "https://www.example.com/a/b.html#part",
        "https://en.example.org/wiki/Category:Foo_(bar),_%E3%81%82?a=1&a=2&b=",
        "https://127.0.0.1:50000/a%20b?q=1+2",
    ],
)
def test_usual_urls_take_the_short_way(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Scrapy's function is not asked, and the answer is the same."""
    expected = fingerprint(Request(url))
    fingerprinter = RequestFingerprinter()
    fingerprints = Fingerprints(fingerprinter)
    monkeypatch.setattr(fingerprints, "_fingerprint", lambda request: pytest.fail("asked"))
    assert fingerprints.get(Request(url)) == expected


@pytest.mark.parametrize(
    "changes",
    [{"method": "POST"}, {"method": "HEAD"}, {"body": b"x"}, {"meta": {"verbatim_url": True}}],
)
def test_other_requests_are_passed_on(changes: dict[str, Any]) -> None:
    """Method and body are part of the fingerprint, and a verbatim URL is not made canonical."""
    url = "http://example.com/?b=1&a=1"
    plain = SHARED.get(Request(url))
    made = Request(url, **changes)
    assert SHARED.get(made) == fingerprint(Request(url, **changes))
    assert SHARED.get(Request(url)) == plain
    if "meta" not in changes:
        assert SHARED.get(made) != plain


def test_another_fingerprinter_is_asked_for_every_request() -> None:
    """It may look at anything in the request, and a subclass of the default is another one."""
    counting = Counting()
    fingerprints = Fingerprints(counting)
    url = "http://example.com/"
    assert [fingerprints.get(Request(url)) for _ in range(3)] == [b"1", b"2", b"3"]
    assert fingerprints.identity.endswith("Counting")


def test_the_identity_is_an_import_path() -> None:
    """It is stored with the keys."""
    assert SHARED.identity == "scrapy.utils.request.RequestFingerprinter"


def test_a_changed_format_switches_the_short_way_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a release whose fingerprints are others, those are taken."""
    monkeypatch.setattr(module, "_short_digest", lambda url: b"outdated")
    made = Request("http://example.com/")
    assert Fingerprints(RequestFingerprinter()).get(made) == fingerprint(Request("http://example.com/"))


def test_the_cache_is_bounded_and_keeps_what_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two generations of half the size; a URL met all the time is never computed again."""
    fingerprints = Fingerprints(RequestFingerprinter(), size=100)
    asked: list[str] = []

    def count(made: Request) -> bytes:
        asked.append(made.url)
        return made.url.encode()

    monkeypatch.setattr(fingerprints, "_fingerprint", count)
    monkeypatch.setattr(fingerprints, "_short", False)
    home = Request("http://example.com/")
    for number in range(1000):
        assert fingerprints.get(home) == b"http://example.com/"
        fingerprints.get(Request(f"http://example.com/{number}"))
        assert len(fingerprints._young) + len(fingerprints._old) <= 100
    assert asked.count(home.url) == 1
    assert len(asked) == 1001
    fingerprints.get(Request("http://example.com/999"))
    assert len(asked) == 1001


def test_a_very_long_url_is_not_kept() -> None:
    """Data URLs would fill the memory."""
    fingerprints = Fingerprints(RequestFingerprinter())
    made = Request("data:," + "x" * URL_LIMIT)
    assert fingerprints.get(made) == fingerprint(made)
    assert not fingerprints._young


@pytest.mark.parametrize(
    "url",
    [
        "http://" + "a." * 50_000 + "/é",
        "http://a/" + "a" * 100_000 + '"',
        "http://a/" + "a/" * 50_000 + '"',
        "http://a/" + "%E3a" * 30_000 + '"',
        "http://a/?" + "a=b&" * 30_000 + '"',
        "http://a/?a=" + "%E3" * 30_000 + '"',
    ],
    ids=lambda url: url[:15],
)
def test_a_long_url_that_does_not_match_is_found_out_at_once(url: str) -> None:
    """In linear time: backtracking would take longer than the time limit of the tests."""
    assert module._CANONICAL.fullmatch(url) is None
    assert host_of(url) == (urlparse(url).hostname or "")


def test_the_pattern_allows_nothing_that_json_escapes() -> None:
    """The URL is put into the hashed text as it is."""
    for code in range(256):
        if module._CANONICAL.fullmatch(f"http://a/{chr(code)}?a={chr(code)}"):
            assert re.fullmatch(r"[ -~]", chr(code))
            assert chr(code) not in '"\\'
