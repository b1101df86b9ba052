"""Which requests were seen before, at the cost of a look-up for those met last."""

from __future__ import annotations

import logging
from collections.abc import Callable, Container
from typing import TYPE_CHECKING, Any

from scrapy.dupefilters import BaseDupeFilter, RFPDupeFilter
from scrapy.utils.misc import build_from_crawler, load_object

from scrapy_ha.fingerprint import Fingerprints
from scrapy_ha.seen.keycache import KeyCache

if TYPE_CHECKING:
    from scrapy import Request
    from scrapy.crawler import Crawler

    from scrapy_ha.scheduler.tally import Tally

logger = logging.getLogger(__name__)


class Duplicates:
    """The scheduler's part of duplicate filtering; what was seen is kept by the frontier.

    A ``DUPEFILTER_CLASS`` of the project's own is asked in addition. Scrapy's default is not
    built, as the frontier does its work; its base class, which filters nothing, switches
    filtering off.

    Args:
        tally: Counts ``dupefilter/filtered``.
        elsewhere: More keys that count as seen.
    """

    def __init__(self, crawler: Crawler, tally: Tally, elsewhere: Container[bytes]) -> None:
        settings = crawler.settings
        cls = load_object(settings["DUPEFILTER_CLASS"])
        self._crawler = crawler
        self._tally = tally
        self._elsewhere = elsewhere
        self._filtering = cls is not BaseDupeFilter
        self._own: Any = None
        if cls not in (RFPDupeFilter, BaseDupeFilter):
            self._own = build_from_crawler(cls, crawler)
        self._knows: Callable[[bytes], bool | None] = lambda key: None
        self._met = KeyCache()
        self._debug = settings.getbool("DUPEFILTER_DEBUG")
        self._first = True
        self.fingerprints = Fingerprints(crawler.request_fingerprinter)

    def open(self, knows: Callable[[bytes], bool | None]) -> None:
        """*knows*: the frontier's."""
        self._knows = knows
        if self._own is not None:
            self._own.open()

    def close(self, reason: str) -> None:
        if self._own is not None:
            self._own.close(reason)

    def key_of(self, request: Request) -> bytes | None:
        """What *request* is known by; ``None`` when it is not to be filtered."""
        if request.dont_filter or not self._filtering:
            return None
        return self.fingerprints.get(request)

    def drops(self, request: Request, key: bytes) -> bool:
        """Whether *request* was seen before; said and counted if so."""
        met = key in self._met
        if met or key in self._elsewhere or self._knows(key):
            if not met:
                self._met.add(key)
            self._tally.add("dupefilter/filtered")
            if self._debug or self._first:
                self._log(request)
            return True
        if self._own is not None and self._own.request_seen(request):
            self._own.log(request, self._crawler.spider)
            return True
        return False

    def stored(self, key: bytes) -> None:
        """*key* is in the frontier now."""
        self._met.add(key)

    def _log(self, request: Request) -> None:
        message = "Filtered duplicate request: %(request)s"
        if not self._debug:
            message += " - no more duplicates will be shown (see DUPEFILTER_DEBUG to show all duplicates)"
        self._first = False
        logger.debug(message, {"request": request}, extra={"spider": self._crawler.spider})
