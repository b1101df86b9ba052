"""The state of a crawl, kept in a write-ahead log."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scrapy_ha.checkpoint.extension import CheckpointExtension
from scrapy_ha.checkpoint.wal import WriteAheadLog
from scrapy_ha.run import run_of

if TYPE_CHECKING:
    from scrapy.crawler import Crawler

    from scrapy_ha.typing import Part

__all__ = ["CheckpointExtension", "WriteAheadLog", "register"]


def register(crawler: Crawler, part: Part) -> None:
    """Have *part* take part in the checkpoint of *crawler*, if there is one.

    What was saved of it is restored when the spider opens, so call this before: in ``from_crawler``, say.
    """
    run_of(crawler).parts.append(part)
