"""The parts of a crawl whose state is kept: its stats, ``spider.state``, its cookies."""

from __future__ import annotations

import logging
import time
from http.cookiejar import Cookie
from typing import TYPE_CHECKING, Any

from scrapy.downloadermiddlewares.cookies import CookiesMiddleware

from scrapy_ha.errors import Unserializable
from scrapy_ha.serialize import encode_value

if TYPE_CHECKING:
    from scrapy import Spider
    from scrapy.crawler import Crawler

logger = logging.getLogger(__name__)


class Unchanging:
    """What parts of the first version have in common."""

    version = 1

    def migrate(self, data: Any, version: int) -> Any:
        raise ValueError(f"version {version} is not known")


class SpiderStatePart(Unchanging):
    """``spider.state``, a dict that the spider and its components may put plain values into.

    Its values are of the types that requests are stored with, never pickled. One that is not is named once,
    and left out.
    """

    name = "spider.state"

    def __init__(self, spider: Spider) -> None:
        self._spider: Any = spider
        self._named: set[str] = set()
        spider.state = {}  # type: ignore[attr-defined]

    def save(self) -> Any:
        state = getattr(self._spider, "state", None)
        if not isinstance(state, dict):
            if "" not in self._named:
                self._named.add("")
                logger.warning("spider.state is %s and no dict, so it is not kept", type(state).__name__)
            return None
        state = dict(state)
        try:
            encode_value(state)
        except Unserializable:
            return {key: value for key, value in state.items() if self._is_storable(key, value)}
        return state

    def restore(self, data: Any) -> None:
        if type(data) is dict:
            self._spider.state = data

    def _is_storable(self, key: Any, value: Any) -> bool:
        try:
            encode_value({key: value})
        except Unserializable as error:
            name = repr(key)[:100]
            if name not in self._named:
                self._named.add(name)
                logger.warning(
                    "spider.state[%s] cannot be kept, and is lost when the crawl is interrupted: %s",
                    name,
                    error,
                )
            return False
        return True


PASSING = ("memusage/", "ha/seen/", "ha/run/", "ha/scheduler/", "finish", "elapsed", "start_time")
"""Stats that say how things are, not how much there was: they are not carried on."""
RATES = ("_per_minute", "_ratio", "/pending", "/resumed")


class StatsPart(Unchanging):
    """Counts go on where the interrupted run left them; ``ha/run/<stat>`` has this run's share at its end."""

    name = "stats"

    def __init__(self, crawler: Crawler) -> None:
        self._stats: Any = crawler.stats
        self._before: dict[str, float] = {}

    def save(self) -> Any:
        return {name: value for name, value in self._stats.get_stats().items() if _is_count(name, value)}

    def restore(self, data: Any) -> None:
        if type(data) is not dict:
            return
        for name, value in data.items():
            if not isinstance(name, str) or not _is_count(name, value):
                continue
            if name.endswith("max"):
                self._stats.max_value(name, value)
            elif name.endswith("min"):
                self._stats.min_value(name, value)
            else:
                self._stats.inc_value(name, value)
                self._before[name] = value

    def set_own(self) -> None:
        """Have the stats show what this run has counted."""
        for name, before in self._before.items():
            total = self._stats.get_value(name)
            if _is_count(name, total):
                self._stats.set_value(f"ha/run/{name}", total - before)


def _is_count(name: Any, value: Any) -> bool:
    return (
        type(value) in (int, float)
        and type(name) is str
        and not name.startswith(PASSING)
        and not name.endswith(RATES)
    )


_COOKIE = (
    "version",
    "name",
    "value",
    "port",
    "port_specified",
    "domain",
    "domain_specified",
    "domain_initial_dot",
    "path",
    "path_specified",
    "secure",
    "expires",
    "discard",
    "comment",
    "comment_url",
    "rfc2109",
)


class CookiesPart(Unchanging):
    """The cookies of every jar (``meta["cookiejar"]``), but for those that have expired."""

    name = "cookies"

    def __init__(self, crawler: Crawler) -> None:
        self._crawler = crawler

    def save(self) -> Any:
        middleware = self._middleware()
        if middleware is None:
            return None
        now = int(time.time())
        jars = []
        for key, jar in middleware.jars.items():
            if key is not None and type(key) not in (str, int, bytes):
                continue
            cookies = [
                [getattr(cookie, name) for name in _COOKIE] for cookie in jar if not cookie.is_expired(now)
            ]
            jars.append([key, cookies])
        return jars

    def restore(self, data: Any) -> None:
        middleware = self._middleware()
        if middleware is None or type(data) is not list:
            return
        now = int(time.time())
        for key, cookies in data:
            for values in cookies:
                cookie = Cookie(**dict(zip(_COOKIE, values, strict=True)), rest={})
                if not cookie.is_expired(now):
                    middleware.jars[key].set_cookie(cookie)

    def _middleware(self) -> Any:
        return self._crawler.get_downloader_middleware(CookiesMiddleware)
