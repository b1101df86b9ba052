"""The downloader middleware that retries, in place of Scrapy's own."""

from __future__ import annotations

import logging
from collections.abc import Coroutine
from random import Random
from typing import TYPE_CHECKING, Any, TypeVar

from scrapy.exceptions import NotConfigured
from scrapy.http.request import NO_CALLBACK
from scrapy.utils.misc import load_object
from scrapy.utils.python import global_object_name
from scrapy.utils.response import response_status_message

from scrapy_ha import settings as declared
from scrapy_ha import stats as names
from scrapy_ha.errors import SettingError
from scrapy_ha.lifecycle import is_closing
from scrapy_ha.loop import sleep
from scrapy_ha.retry.classify import FailureClass, classify_exception, classify_status
from scrapy_ha.retry.policy import RetryPolicy
from scrapy_ha.retry.retry_after import parse_http_date, parse_retry_after
from scrapy_ha.run import run_of
from scrapy_ha.state import GaveUp, State, get_state, set_state

if TYPE_CHECKING:
    from scrapy import Request, Spider
    from scrapy.crawler import Crawler
    from scrapy.http import Response
    from scrapy.settings import BaseSettings
    from typing_extensions import Self

T = TypeVar("T")

logger = logging.getLogger(__name__)
retry_logger = logging.getLogger("scrapy.downloadermiddlewares.retry")
"""Scrapy's: who filters or counts its lines finds them where they always were."""

REASON_LIMIT = 200
"""Characters of a reason that are kept with a request."""

LOOK_INTERVAL = 0.5
"""Seconds between two looks at whether the spider closes, while a request waits here."""


class ClassifiedRetryMiddleware:
    """Retries failed downloads after a delay that suits the failure.

    What is retried, how often, with which priority, log lines and stats: as Scrapy's own
    ``RetryMiddleware``, by the same settings and ``meta`` keys. Between attempts it waits,
    exponentially longer with full jitter, or as long as ``Retry-After`` asks.

    With :class:`~scrapy_ha.scheduler.HAScheduler` the request waits in the frontier, and takes up
    no concurrency. A request that this scheduler did not hand out (of another scheduler, of
    ``robots.txt``, of a media pipeline) waits here, at most ``HA_RETRY_WAIT_CAP`` seconds, as one of
    ``CONCURRENT_REQUESTS``; the spider stays open for it. Closing the spider ends the wait.

    Raises:
        NotConfigured: ``RETRY_ENABLED`` is False.
        SettingError: A setting has a value that is not allowed.
    """

    def __init__(self, crawler: Crawler) -> None:
        settings = crawler.settings
        if not settings.getbool("RETRY_ENABLED"):
            raise NotConfigured
        self.crawler = crawler
        self.random = Random()
        self.policy = _policy(settings)
        self._priority_adjust = settings.getint("RETRY_PRIORITY_ADJUST")
        # Scrapy before 2.17 has no such setting.
        self._give_up_log_level = settings.get("RETRY_GIVE_UP_LOG_LEVEL", "ERROR")
        try:
            _log_level(self._give_up_log_level)
        except ValueError as error:
            raise SettingError(f"RETRY_GIVE_UP_LOG_LEVEL must be the name of a log level: {error}") from error
        self._wait_cap: float = declared.read(settings, "HA_RETRY_WAIT_CAP")
        self._run = run_of(crawler)
        self._stats: Any = crawler.stats

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        return cls(crawler)

    def process_response(
        self, request: Request, response: Response, spider: Spider | None = None
    ) -> Request | Response | Coroutine[Any, Any, Request | Response]:
        if response.status not in self.policy.http_codes or request.meta.get("dont_retry", False):
            return response
        asked = self._retry_after(response)
        # A status below 400 is a failure because RETRY_HTTP_CODES says so.
        cls = classify_status(response.status, asked is not None) or FailureClass.SERVER
        return self._retry(request, cls, response_status_message(response.status), asked, response)

    def process_exception(
        self, request: Request, exception: Exception, spider: Spider | None = None
    ) -> Request | Coroutine[Any, Any, Request | None] | None:
        if not isinstance(exception, self.policy.exceptions) or request.meta.get("dont_retry", False):
            return None
        cls = classify_exception(exception, proxied=bool(request.meta.get("proxy")))
        if not self.policy.retries_exception(exception, cls):
            self._give_up(request, cls, exception)
            return None
        return self._retry(request, cls, exception, None, None)

    def _retry_after(self, response: Response) -> float | None:
        lines = response.headers.getlist("Retry-After")
        if not lines:
            return None
        now = self._run.clock.time()
        return parse_retry_after(lines, now, parse_http_date(response.headers.get("Date"), now))

    def _retry(
        self,
        request: Request,
        cls: FailureClass,
        reason: str | Exception,
        retry_after: float | None,
        otherwise: T,
    ) -> Request | T | Coroutine[Any, Any, Request | T]:
        """The next attempt of *request*, now or awaited; *otherwise* when it is given up."""
        retry_times = request.meta.get("retry_times", 0) + 1
        if retry_times > _meta(request, "max_retry_times", self.policy.times):
            self._log_giving_up(request, retry_times, reason)
            self._give_up(request, cls, reason)
            return otherwise
        retry_logger.debug(
            "Retrying %(request)s (failed %(retry_times)d times): %(reason)s",
            {"request": request, "retry_times": retry_times, "reason": reason},
            extra={"spider": self.crawler.spider},
        )
        self._count_retry(cls, reason)
        if retry_after is not None:
            self._note_retry_after(request, retry_after)
        retry = request.copy()
        retry.meta["retry_times"] = retry_times
        retry.dont_filter = True
        retry.priority = request.priority + _meta(request, "priority_adjust", self._priority_adjust)
        state = self._failed(request, cls)
        set_state(retry, state)
        delay = self.policy.delay(retry_times, retry_after, self.random)
        if self._run.tracks(request):
            state["due"] = state["last_failure"] + delay
            return retry
        return self._wait(retry, delay, otherwise) if delay else retry

    def _log_giving_up(self, request: Request, retry_times: int, reason: str | Exception) -> None:
        level = _log_level(_meta(request, "give_up_log_level", self._give_up_log_level))
        self._stats.inc_value("retry/max_reached")
        retry_logger.log(
            level,
            "Gave up retrying %(request)s (failed %(retry_times)d times): %(reason)s",
            {"request": request, "retry_times": retry_times, "reason": reason},
            extra={"spider": self.crawler.spider},
        )

    def _count_retry(self, cls: FailureClass, reason: str | Exception) -> None:
        name = reason if isinstance(reason, str) else global_object_name(reason.__class__)
        self._stats.inc_value("retry/count")
        self._stats.inc_value(f"retry/reason_count/{name}")
        self._stats.inc_value(names.retried(cls.value))

    def _note_retry_after(self, request: Request, asked: float) -> None:
        self._stats.inc_value(names.RETRY_AFTER)
        if asked > self.policy.retry_after_cap:
            logger.debug(
                "%s: Retry-After asks for %.0f s, cut to HA_RETRY_AFTER_CAP = %g s",
                request,
                asked,
                self.policy.retry_after_cap,
                extra={"spider": self.crawler.spider},
            )

    def _failed(self, request: Request, cls: FailureClass) -> State:
        """A copy of the state of *request*, with this failure in it."""
        state: State = {**get_state(request)}
        attempts = {**state.get("attempts", {})}
        attempts[cls.value] = attempts.get(cls.value, 0) + 1
        state["attempts"] = attempts
        state["last_failure"] = self._run.clock.time()
        state.setdefault("first_failure", state["last_failure"])
        return state

    def _give_up(self, request: Request, cls: FailureClass, reason: str | Exception) -> None:
        state = self._failed(request, cls)
        state["gave_up"] = GaveUp(cls=cls.value, reason=_one_line(reason))
        set_state(request, state)
        self._stats.inc_value(names.gave_up(cls.value))

    async def _wait(self, retry: Request, delay: float, otherwise: T) -> Request | T:
        """*retry* after *delay* seconds, cut to ``HA_RETRY_WAIT_CAP``, or at once when the spider closes.

        No scheduler would keep a request without a callback (``robots.txt``, media) then: it ends
        with *otherwise*, its failure.
        """
        left = min(delay, self._wait_cap)
        while left > 0:
            if is_closing(self.crawler):
                return otherwise if retry.callback is NO_CALLBACK else retry
            await sleep(min(left, LOOK_INTERVAL))
            left -= LOOK_INTERVAL
        return retry


def _policy(settings: BaseSettings) -> RetryPolicy:
    return RetryPolicy(
        times=settings.getint("RETRY_TIMES"),
        http_codes=frozenset(int(code) for code in settings.getlist("RETRY_HTTP_CODES")),
        exceptions=tuple(
            load_object(one) if isinstance(one, str) else one for one in settings.getlist("RETRY_EXCEPTIONS")
        ),
        base=declared.read(settings, "HA_RETRY_BASE"),
        cap=declared.read(settings, "HA_RETRY_CAP"),
        floor=declared.read(settings, "HA_RETRY_FLOOR"),
        retry_after_cap=declared.read(settings, "HA_RETRY_AFTER_CAP"),
    )


def _meta(request: Request, key: str, default: Any) -> Any:
    value = request.meta.get(key)
    return default if value is None else value


def _log_level(level: int | str) -> int:
    """The number of a log level given as such or by name, as Scrapy takes it.

    Raises:
        ValueError: There is no such level.
    """
    number = logging.getLevelName(level) if isinstance(level, str) else level
    if not isinstance(number, int):
        raise ValueError(f"Invalid give-up log level: {level!r}")
    return number


def _one_line(reason: str | Exception) -> str:
    text = reason if isinstance(reason, str) else f"{global_object_name(reason.__class__)}: {reason}"
    return " ".join(text[: 2 * REASON_LIMIT].split())[:REASON_LIMIT]
