"""Which requests were seen before, at the cost of a look-up for those met last."""

from __future__ import annotations

from collections.abc import Callable, Container
from typing import TYPE_CHECKING, Any

from scrapy.dupefilters import BaseDupeFilter, RFPDupeFilter
from scrapy.utils.misc import build_from_crawler, load_object

from scrapy_ha import settings as declared
from scrapy_ha.duplicates import log_duplicate, seen_stats
from scrapy_ha.fingerprint import Fingerprints
from scrapy_ha.seen.keycache import KeyCache

if TYPE_CHECKING:
    from pathlib import Path

    from scrapy import Request
    from scrapy.crawler import Crawler

    from scrapy_ha.scheduler.tally import Tally
    from scrapy_ha.seen.tier import BloomTier


class Duplicates:
    """The scheduler's part of duplicate filtering; what was seen is kept by the frontier.

    A ``DUPEFILTER_CLASS`` of the project's own is asked in addition. Scrapy's default is not
    built, as the frontier does its work; its base class, which filters nothing, switches
    filtering off. One that has a ``frontier_tier`` is not built either: it lends the frontier a
    Bloom filter.

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
        self._tier_for: Callable[..., BloomTier] | None = getattr(cls, "frontier_tier", None)
        self.tier: BloomTier | None = None
        """The Bloom filter that the frontier has been lent."""
        if self._tier_for is None and cls not in (RFPDupeFilter, BaseDupeFilter):
            self._own = build_from_crawler(cls, crawler)
        self._knows: Callable[[bytes], bool | None] = lambda key: None
        self._met = KeyCache()
        # What is new again after a time is asked of the frontier, which knows the times.
        self._expire = declared.read(settings, "HA_SEEN_TTL") is not None
        self._debug = settings.getbool("DUPEFILTER_DEBUG")
        self._said = False
        self.fingerprints = Fingerprints(crawler.request_fingerprinter)

    def lend(self, path: Path) -> BloomTier | None:
        """A Bloom filter for the frontier in the directory *path*, if there is to be one."""
        if self._tier_for is not None:
            self.tier = self._tier_for(self._crawler, path)
        return self.tier

    def report(self) -> None:
        """Have the stats show what the filter has done so far."""
        if self.tier is not None and self._crawler.stats is not None:
            for name, value in seen_stats(self.tier).items():
                self._crawler.stats.set_value(name, value)

    def open(self, knows: Callable[[bytes], bool | None]) -> None:
        """*knows*: the frontier's."""
        self._knows = knows
        if self._own is not None:
            self._own.open()

    def close(self, reason: str) -> None:
        self.report()
        if self._own is not None:
            self._own.close(reason)

    def key_of(self, request: Request) -> bytes | None:
        """What *request* is known by; ``None`` when it is not to be filtered."""
        return self.fingerprints.key_of(request) if self._filtering else None

    def drops(self, request: Request, key: bytes) -> bool:
        """Whether *request* was seen before; said and counted if so."""
        met = key in self._met
        if met or key in self._elsewhere or self._knows(key):
            if not met:
                self._meet(key)
            self._tally.add("dupefilter/filtered")
            if self._debug or not self._said:
                log_duplicate(request, self._crawler.spider, self._debug, self._said)
                self._said = True
            return True
        if self._own is not None and self._own.request_seen(request):
            self._own.log(request, self._crawler.spider)
            return True
        return False

    def stored(self, key: bytes) -> None:
        """*key* is in the frontier now."""
        self._meet(key)

    def _meet(self, key: bytes) -> None:
        if not self._expire:
            self._met.add(key)
