"""What is said and counted of requests that were seen before, by whoever filters them."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from scrapy_ha import stats as names

if TYPE_CHECKING:
    from scrapy import Request, Spider

    from scrapy_ha.seen.bloom import LayeredBloom
    from scrapy_ha.seen.tier import BloomTier

logger = logging.getLogger(__name__)


def log_duplicate(request: Request, spider: Spider | None, debug: bool, said: bool) -> None:
    """Log that *request* was filtered, in Scrapy's words: the first one (*said*: there was one), or each."""
    if said and not debug:
        return
    message = "Filtered duplicate request: %(request)s"
    if not debug:
        message += " - no more duplicates will be shown (see DUPEFILTER_DEBUG to show all duplicates)"
    logger.debug(message, {"request": request}, extra={"spider": spider})


def warn_of_identity(former: str | None, identity: str) -> None:
    """Say that the fingerprinter is another one than the one that made what is stored (*former*)."""
    if former is not None:
        logger.warning(
            "What was seen so far is known by fingerprints of %s; now they come from %s. URLs seen before "
            "count as new, unless both give the same",
            former,
            identity,
        )


def say_filling(bloom: LayeredBloom) -> None:
    """Say that the Bloom filter has grown to what it was made for."""
    logger.warning(
        "%d URLs were seen, four fifths of what the Bloom filter holds. It grows by itself, at some cost in "
        "memory and time; HA_SEEN_CAPACITY (%d) sets the size that the next crawl starts with",
        bloom.count,
        bloom.capacity,
    )


def seen_stats(tier: BloomTier) -> dict[str, float]:
    """The stats of a Bloom filter."""
    return {
        names.SEEN_NEW: tier.certain,
        names.SEEN_PERHAPS: tier.confirmed + tier.false_positives,
        names.SEEN_CONFIRMED: tier.confirmed,
        names.SEEN_FALSE_POSITIVE: tier.false_positives,
        names.SEEN_COUNT: tier.bloom.count,
        names.SEEN_FILL: round(tier.bloom.fill_ratio(), 6),
        names.SEEN_ERROR: round(tier.bloom.estimated_error(), 6),
    }
