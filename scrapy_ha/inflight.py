"""How many pages may be worked on at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scrapy_ha import settings as declared

if TYPE_CHECKING:
    from scrapy.settings import BaseSettings

    from scrapy_ha.typing import Clock

STALLED_AFTER = 4.0
"""Seconds without the end of a page; the engine asks for requests at least every 5 s."""


class InFlight:
    """Says when enough pages are in flight: what a kill would have fetched again stays bounded.

    When none of them ends for a while they may be waiting for pages that are to come, such as a pipeline
    that writes a hundred items at a time: then they get company, twice as much every time, until one ends.
    """

    def __init__(self, settings: BaseSettings, clock: Clock) -> None:
        limit = declared.read(settings, "HA_MAX_IN_FLIGHT")
        self._limit: int = settings.getint("CONCURRENT_REQUESTS") if limit is None else limit
        self._clock = clock
        self._last_end = clock.time()
        self._company = 0

    def is_enough(self, pages: int) -> bool:
        """Whether no more than *pages* may be in flight at this moment."""
        if not self._limit or pages < self._limit + self._company:
            return False
        now = self._clock.time()
        if now - self._last_end < STALLED_AFTER:
            return True
        self._last_end = now
        self._company = 2 * self._company + 1
        return pages >= self._limit + self._company

    def ended(self) -> None:
        """A page has ended."""
        self._last_end = self._clock.time()
        self._company = 0
