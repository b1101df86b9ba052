"""What the log and the stats say of retries: Scrapy's own lines and names, and the package's."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from scrapy.utils.python import global_object_name

from scrapy_ha import stats as names
from scrapy_ha.errors import SettingError

if TYPE_CHECKING:
    from scrapy import Request
    from scrapy.crawler import Crawler

    from scrapy_ha.retry.decide import Decision

logger = logging.getLogger(__name__)
retry_logger = logging.getLogger("scrapy.downloadermiddlewares.retry")
"""Scrapy's: who filters or counts its lines finds them where they always were."""

REASON_LIMIT = 200
"""Characters of a reason that are kept with a request."""

Reason = str | Exception


class Reports:
    """Of one crawl.

    Raises:
        SettingError: ``RETRY_GIVE_UP_LOG_LEVEL`` is no level.
    """

    def __init__(self, crawler: Crawler) -> None:
        self._crawler = crawler
        self._stats: Any = crawler.stats
        # Scrapy before 2.17 has no such setting.
        self._level = crawler.settings.get("RETRY_GIVE_UP_LOG_LEVEL", "ERROR")
        try:
            _log_level(self._level)
        except ValueError as error:
            raise SettingError(f"RETRY_GIVE_UP_LOG_LEVEL must be the name of a log level: {error}") from error

    def retried(self, request: Request, cls: str, reason: Reason, times: int) -> None:
        """*request* failed for the *times*-th time, and is retried."""
        self._log(
            logging.DEBUG,
            "Retrying %(request)s (failed %(retry_times)d times): %(reason)s",
            request,
            reason,
            times,
        )
        name = reason if isinstance(reason, str) else global_object_name(reason.__class__)
        self._stats.inc_value("retry/count")
        self._stats.inc_value(f"retry/reason_count/{name}")
        self._stats.inc_value(names.retried(cls))

    def waits(self, request: Request, cls: str, reason: Reason) -> None:
        """An attempt of *request* failed that does not count: its host, or the network, is down."""
        self._stats.inc_value(names.NOT_COUNTED)
        logger.debug(
            "%(request)s waits until its host is well, and the attempt does not count (%(cls)s): %(reason)s",
            {"request": request, "cls": cls, "reason": reason},
            extra={"spider": self._crawler.spider},
        )

    def gave_up(self, request: Request, decision: Decision, reason: Reason, times: int) -> None:
        self._stats.inc_value(names.gave_up(decision.cls))
        if decision.exhausted:
            level = request.meta.get("give_up_log_level")
            self._stats.inc_value("retry/max_reached")
            self._log(
                _log_level(self._level if level is None else level),
                "Gave up retrying %(request)s (failed %(retry_times)d times): %(reason)s",
                request,
                reason,
                times,
            )
        elif decision.reason:
            logger.debug(
                "Not retrying %s (%s): %s",
                request,
                decision.reason,
                one_line(reason),
                extra={"spider": self._crawler.spider},
            )

    def retry_after(self, request: Request, asked: float, cap: float) -> None:
        """The server said when to come back."""
        self._stats.inc_value(names.RETRY_AFTER)
        if asked > cap:
            logger.debug(
                "%s: Retry-After asks for %.0f s, cut to HA_RETRY_AFTER_CAP = %g s",
                request,
                asked,
                cap,
                extra={"spider": self._crawler.spider},
            )

    def _log(self, level: int, line: str, request: Request, reason: Reason, times: int) -> None:
        values = {"request": request, "retry_times": times, "reason": reason}
        retry_logger.log(level, line, values, extra={"spider": self._crawler.spider})


def one_line(reason: Reason) -> str:
    text = reason if isinstance(reason, str) else f"{global_object_name(reason.__class__)}: {reason}"
    return " ".join(text[: 2 * REASON_LIMIT].split())[:REASON_LIMIT]


def _log_level(level: int | str) -> int:
    """The number of a log level given as such or by name, as Scrapy takes it.

    Raises:
        ValueError: There is no such level.
    """
    number = logging.getLevelName(level) if isinstance(level, str) else level
    if not isinstance(number, int):
        raise ValueError(f"Invalid give-up log level: {level!r}")
    return number
