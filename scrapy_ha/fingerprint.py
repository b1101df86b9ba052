"""Fingerprints of requests, and hosts of URLs, at the cost of a look-up.

A crawl meets the same link hundreds of times. Scrapy's fingerprint of each costs some 20 µs,
nearly all of it spent on bringing the URL into canonical form, which most URLs have already.
"""

from __future__ import annotations

import re
from hashlib import blake2b, sha1
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from scrapy import Request
from scrapy.utils.request import RequestFingerprinter

if TYPE_CHECKING:
    from scrapy.utils.request import RequestFingerprinterProtocol

KEY = "ha_seen_key"
"""Key of ``Request.meta``: text or bytes that the request is known by, in place of its fingerprint."""
SEEN = "ha_seen"
"""Key of ``Request.meta``: ``False`` keeps the request from being filtered, and from being remembered."""
URL_LIMIT = 2048
"""Characters; a longer URL is not kept in the cache."""

_HOST = r"[a-z0-9]+(?:[.-][a-z0-9]+)*"
# Runs of characters and escapes, so written that a URL that does not match fails in linear time.
_SEGMENT = r"[\w.~(),:@!*=+-]*(?:%(?:[89A-F][0-9A-F]|20)[\w.~(),:@!*=+-]*)*"
_WORD = r"[\w.~+-]*(?:%(?:[89A-F][0-9A-F]|2[1-9ABCF]|3[A-F])[\w.~+-]*)*"

_CANONICAL = re.compile(
    # Not the ports 80 and 443, which some day may be dropped as the default, and none too high.
    rf"https?://{_HOST}(?::(?:[1-9][0-9]{{3}}|[1-5][0-9]{{4}}))?"
    # No segment starts with a dot: dot segments are resolved. None is empty, but for the last.
    rf"(?:/(?![./]){_SEGMENT})+"
    rf"(?:\?((?!=){_WORD}={_WORD}(?:&(?!=){_WORD}={_WORD})*))?",
    re.ASCII,
)
"""URLs that ``w3lib.url.canonicalize_url`` leaves as they are, provided that the query, group 1,
is sorted. By intention far from all of them: what is allowed here is canonical by any release."""

_WITH_HOST = re.compile(rf"https?://({_HOST})(?::[0-9]+)?(?:[/?#]|\Z)")

_SAMPLES = (
    "https://example.com/",
    "http://127.0.0.1:8000/a.b/c-d_e~f/%20%E3%81%82(x),y:z@!*=+?q=1+2%2F%C3%A9~",
    "https://www.example.com:8443/a?a=&a=1&ab=0&b=a.b-c_d",
)


class Fingerprints:
    """Fingerprints as the configured fingerprinter gives them.

    With Scrapy's default fingerprinter, those of plain GET requests are computed once per URL
    and kept for the URLs met last; of URLs that are canonical already they are computed in a
    shorter way that gives the same. With any other fingerprinter every request is passed on.

    Args:
        fingerprinter: ``crawler.request_fingerprinter``.
        size: How many URLs to keep, at least 2; 65536 take some 20 MB.
    """

    def __init__(self, fingerprinter: RequestFingerprinterProtocol, size: int = 65536) -> None:
        cls = type(fingerprinter)
        self.identity = f"{cls.__module__}.{cls.__qualname__}"
        """Import path of the fingerprinter's class; keys stored under another are not comparable."""
        self._fingerprint = fingerprinter.fingerprint
        self._default = cls is RequestFingerprinter
        # Should a release of Scrapy or w3lib change the format, the short way is not taken.
        self._short = self._default and all(
            _short_digest(url) == fingerprinter.fingerprint(Request(url)) for url in _SAMPLES
        )
        # Two generations: when the young one is full it becomes the old one. What is used comes
        # back into the young one in time; no order has to be kept at each use.
        self._half = max(1, size // 2)
        self._young: dict[str, bytes] = {}
        self._old: dict[str, bytes] = {}

    def key_of(self, request: Request) -> bytes | None:
        """What *request* is known by to a duplicate filter; ``None``: it is not to be filtered."""
        if request.dont_filter:
            return None
        meta = request.meta
        if KEY not in meta and SEEN not in meta:
            return self.get(request)
        if meta.get(SEEN) is False:
            return None
        key = meta.get(KEY)
        if not isinstance(key, (str, bytes)) or not key:
            return self.get(request)
        if isinstance(key, str):
            key = key.encode("utf-8", "surrogatepass")
        # As long as a fingerprint, and apart from all of them.
        return blake2b(key, digest_size=20, person=b"ha_seen_key").digest()

    def get(self, request: Request) -> bytes:
        """The fingerprint of *request*. Raises what the fingerprinter raises."""
        if not self._default or request.method != "GET" or request.body or request.meta.get("verbatim_url"):
            return self._fingerprint(request)
        url = request.url
        found = self._young.get(url)
        if found is None:
            found = self._old.get(url)
            if found is None:
                found = (_short_digest(url) if self._short else None) or self._fingerprint(request)
            if len(url) <= URL_LIMIT:
                if len(self._young) >= self._half:
                    self._old, self._young = self._young, {}
                self._young[url] = found
        return found


def host_of(url: str) -> str:
    """The host name in *url*, in lower case, as ``urlparse(url).hostname`` gives it; "" without."""
    match = _WITH_HOST.match(url)
    if match is not None:
        return match[1]
    try:
        return urlsplit(url).hostname or ""
    except ValueError:  # brackets that hold no IPv6 address
        return ""


def is_canonical(url: str) -> bool:
    """Whether *url* certainly needs no escaping; ``False`` when it is not plain to see."""
    return _CANONICAL.fullmatch(url) is not None


def _short_digest(url: str) -> bytes | None:
    """Scrapy's fingerprint of a GET request of *url*, if that is certain to be canonical."""
    if "#" in url:
        url, _, _ = url.partition("#")
    match = _CANONICAL.fullmatch(url)
    if match is None:
        return None
    query = match[1]
    if query and "&" in query and not _is_sorted(query):
        return None
    # The JSON text that scrapy.utils.request.fingerprint hashes; nothing in *url* needs escaping.
    text = f'{{"body": "", "headers": {{}}, "method": "GET", "url": "{url}"}}'
    return sha1(text.encode(), usedforsecurity=False).digest()


def _is_sorted(query: str) -> bool:
    if "%" in query or "+" in query:  # sorted by what they stand for
        return False
    pairs = [pair.split("=") for pair in query.split("&")]
    return pairs == sorted(pairs)
