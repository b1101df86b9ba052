"""The downloader middleware that retries, in place of Scrapy's own."""

from __future__ import annotations

from collections.abc import Coroutine
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from scrapy.exceptions import IgnoreRequest, NotConfigured
from scrapy.utils.response import response_status_message

from scrapy_ha import settings as declared
from scrapy_ha import stats as names
from scrapy_ha.errors import SettingError
from scrapy_ha.lifecycle import is_closing
from scrapy_ha.loop import sleep
from scrapy_ha.retry.classify import FailureClass, classify_exception, classify_status
from scrapy_ha.retry.configure import classify_of, decider_of
from scrapy_ha.retry.decide import Attempt, Decision, reclassify
from scrapy_ha.retry.policy import Never
from scrapy_ha.retry.protection import Protection, asked_of
from scrapy_ha.retry.remedies import Remedies
from scrapy_ha.retry.reports import Reports, one_line
from scrapy_ha.retry.timers import Timers
from scrapy_ha.run import run_of
from scrapy_ha.state import GaveUp, State, get_state, set_state, with_failure

if TYPE_CHECKING:
    from scrapy import Request, Spider
    from scrapy.crawler import Crawler
    from scrapy.http import Response
    from typing_extensions import Self

T = TypeVar("T")

LOOK_INTERVAL = 0.5
"""Seconds between two looks at whether the spider closes, while a request waits here."""


class _Abandoned(IgnoreRequest):
    """Raised for a request that is given up unsent."""


class ClassifiedRetryMiddleware:
    """Retries failed downloads as suits the failure, and leaves hosts in peace that are not well.

    What is a failure, how often it is retried, with which priority, log lines and stats: as Scrapy's
    own ``RetryMiddleware``, by the same settings and ``meta`` keys, unless a policy of the failure's
    class says otherwise (``HA_RETRY_POLICIES``). Between attempts it waits as the policy says, or as
    long as ``Retry-After`` asks, and as long as the host's breaker is open.

    With :class:`~scrapy_ha.scheduler.HAScheduler` the request waits in the frontier, with another
    scheduler on :class:`~scrapy_ha.retry.timers.Timers`; either way it takes up no concurrency. A
    request that no scheduler handed out (of ``robots.txt``, of a media pipeline) waits here, at most
    ``HA_RETRY_WAIT_CAP`` seconds, as one of ``CONCURRENT_REQUESTS``; the spider stays open for it.
    Closing the spider ends the wait.

    Raises:
        NotConfigured: ``RETRY_ENABLED`` is False.
        SettingError: A setting has a value that is not allowed.
    """

    def __init__(self, crawler: Crawler) -> None:
        settings = crawler.settings
        if not settings.getbool("RETRY_ENABLED"):
            raise NotConfigured
        self.crawler = crawler
        self._stats: Any = crawler.stats
        self._run = run_of(crawler)
        self.decider = decider_of(
            settings,
            crawler.spider or crawler.spidercls,
            Random(),
            lambda kind: self._stats.inc_value(names.retry_trouble(kind)),
        )
        self.remedies = Remedies(
            crawler,
            declared.read(settings, "HA_RETRY_REMEDIES"),
            declared.read(settings, "HA_RETRY_REMEDY_TIMEOUT"),
            self._run,
        )
        self._help()
        self._classify = classify_of(settings)
        self._reports = Reports(crawler)
        self._priority_adjust = settings.getint("RETRY_PRIORITY_ADJUST")
        self._wait_cap: float = declared.read(settings, "HA_RETRY_WAIT_CAP")
        self.protection = Protection(crawler, self.decider.lists.http_codes)
        self.timers = Timers(crawler, self._retried_by_callback)
        self._run.failed = self.process_exception

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        return cls(crawler)

    def _help(self) -> None:
        """Have failures retried that a remedy helps, unless a policy is set for them."""
        policies = self.decider.policies
        for cls in self.remedies:
            if cls not in policies:
                raise SettingError(f"HA_RETRY_REMEDIES: there is no failure class {cls!r} with a policy")
            if isinstance(policies.of(cls).policy, Never):
                policies.set(cls, {"retries": None})

    @property
    def max_retry_times(self) -> int:
        """``RETRY_TIMES``, as Scrapy's middleware has it; may be set."""
        return self.decider.policies.numbers.retry_times

    @max_retry_times.setter
    def max_retry_times(self, times: int) -> None:
        policies = self.decider.policies
        policies.numbers = replace(policies.numbers, retry_times=times)

    # What Scrapy calls

    def process_request(
        self, request: Request, spider: Spider | None = None
    ) -> Request | Coroutine[Any, Any, Request | None] | None:
        protection = self.protection
        slot = protection.slot_of(request)
        if not slot:
            return None  # data: or file:, which no host answers
        if protection.guard.is_dead(slot):
            self._abandon(request, slot)
        # Our own scheduler has asked already.
        if not protection.guard.admits(slot) and not self._run.keeps_times(request):
            return self._hold(request, slot)
        self._send(request, slot)
        return None

    def process_response(
        self, request: Request, response: Response, spider: Spider | None = None
    ) -> Request | Response | Coroutine[Any, Any, Request | Response]:
        status = response.status
        named = self._named(request, response)
        if named is None and status < 400 and status not in self.decider.lists.http_codes:
            self.protection.succeeded(request)
            return response
        now = self._run.time()
        asked = asked_of(response, now)
        own = classify_status(status, asked is not None)
        attempt = Attempt(
            cls=named or (own and own.value),
            now=now,
            status=status,
            named=named is not None,
            method=request.method,
            meta=request.meta,
            state=get_state(request),
            retry_after=asked,
        )
        return self._failed(request, attempt, response, response_status_message(status), response)

    def process_exception(
        self, request: Request, exception: Exception, spider: Spider | None = None
    ) -> Request | Coroutine[Any, Any, Request | None] | None:
        if isinstance(exception, _Abandoned):
            return None  # it has been given up
        named = self._named(request, exception)
        own = classify_exception(exception, proxied=bool(request.meta.get("proxy")))
        attempt = Attempt(
            cls=named or own.value,
            now=self._run.time(),
            exception=exception,
            named=named is not None,
            method=request.method,
            meta=request.meta,
            state=get_state(request),
        )
        return self._failed(request, attempt, exception, exception, None)

    # Before an attempt

    def _send(self, request: Request, slot: str) -> None:
        self.protection.sent(request, slot, self._run.keeps_times(request))

    def _abandon(self, request: Request, slot: str) -> NoReturn:
        """Give *request* up unsent: its host has been down for too long."""
        reason = f"not sent: {slot} has been down for HA_BREAKER_DEADLINE"
        attempts = get_state(request).get("attempts", {})
        cls = next(reversed(attempts), FailureClass.CONNECTION.value)
        self._give_up(request, Decision(cls, reason=reason), reason, self._run.time())
        raise _Abandoned(reason)

    def _hold(self, request: Request, slot: str) -> Request | Coroutine[Any, Any, None]:
        """Keep *request*, whose host is not to be sent any, from being sent."""
        if not self.timers.takes(request):
            return self._wait_and_send(request, slot)
        later = request.copy()
        later.dont_filter = True
        state: State = {**get_state(request), "due": self._free_at(slot)}
        set_state(later, state)
        return later

    async def _wait_and_send(self, request: Request, slot: str) -> None:
        left = self._wait_cap
        while left > 0 and not self.protection.guard.admits(slot) and not is_closing(self.crawler):
            await sleep(min(left, LOOK_INTERVAL))
            left -= LOOK_INTERVAL
        self._send(request, slot)

    def _free_at(self, slot: str) -> float:
        """When to ask again whether *slot* may be sent any: not at once, whatever is expected of it."""
        return max(self.protection.guard.free_at(slot), self._run.time() + LOOK_INTERVAL)

    # After an attempt

    def _named(self, request: Request, outcome: Response | Exception) -> str | None:
        """What the user's own function calls it."""
        if self._classify is None:
            return None
        return reclassify(self._classify, request, outcome, self.decider.policies, self.decider.trouble)

    def _failed(
        self,
        request: Request,
        attempt: Attempt,
        outcome: Response | Exception,
        reason: str | Exception,
        otherwise: T,
    ) -> Request | T | Coroutine[Any, Any, Request | T]:
        """What comes of an attempt that may have failed: a retry, now or awaited, or *otherwise*."""
        counts, sent = self.protection.failed(request, attempt.cls or FailureClass.SERVER.value)
        slot, counts = sent.slot, counts and not is_closing(self.crawler)
        decision = self.decider.decide(attempt if counts else replace(attempt, counts=False))
        if decision is None:
            return otherwise
        if decision.delay is None:
            self._give_up(request, decision, reason, attempt.now)
            return otherwise
        if attempt.retry_after is not None:
            self._reports.retry_after(request, attempt.retry_after, self.decider.lists.retry_after_cap)
        if not counts:
            self._reports.waits(request, decision.cls, reason)
            return self._later(request, request.copy(), get_state(request), self._free_at(slot), otherwise)
        if decision.cls in self.remedies:
            return self._cured(request, attempt, outcome, decision, reason, otherwise, slot, sent.at)
        return self._again(request, request, decision, reason, otherwise, slot)

    async def _cured(
        self,
        request: Request,
        attempt: Attempt,
        outcome: Response | Exception,
        decision: Decision,
        reason: str | Exception,
        otherwise: T,
        slot: str,
        sent: float,
    ) -> Request | T:
        """The next attempt of *request* as a remedy has changed it; delayed only by the server."""
        changed = await self.remedies.cure(decision.cls, request, outcome, slot, sent)
        if changed is not None and attempt.retry_after is None:
            decision = replace(decision, delay=0.0)
        again = self._again(request, changed or request, decision, reason, otherwise, slot)
        return await again if isinstance(again, Coroutine) else again

    def _again(
        self,
        request: Request,
        changed: Request,
        decision: Decision,
        reason: str | Exception,
        otherwise: T,
        slot: str,
    ) -> Request | T | Coroutine[Any, Any, Request | T]:
        """The next attempt of *request*, in the form *changed*."""
        times = request.meta.get("retry_times", 0) + 1
        self._reports.retried(request, decision.cls, reason, times)
        now, delay = self._run.time(), decision.delay or 0.0
        retry = changed.copy()
        retry.meta["retry_times"] = times
        adjust = request.meta.get("priority_adjust")
        retry.priority = request.priority + (self._priority_adjust if adjust is None else adjust)
        state = with_failure(get_state(request), decision.cls, one_line(reason), now)
        state["delay"] = delay
        due = max(now + delay, self.protection.reserve_retry(slot))
        return self._later(request, retry, state, due, otherwise)

    def _later(
        self, request: Request, retry: Request, state: State, due: float, otherwise: T
    ) -> Request | T | Coroutine[Any, Any, Request | T]:
        """*retry*, which takes the place of *request*, at *due*."""
        retry.dont_filter = True
        delay = due - self._run.time()
        kept = self._run.keeps_times(request) or (delay > 0 and self.timers.takes(request))
        set_state(retry, {**state, "due": due} if kept else state)
        if kept or delay <= 0:
            return retry
        return self._wait(retry, delay, otherwise, self.timers.handed_out(request))

    async def _wait(self, retry: Request, delay: float, otherwise: T, scheduled: bool) -> Request | T:
        """*retry* after *delay* seconds, cut to ``HA_RETRY_WAIT_CAP``, or at once when the spider closes.

        No scheduler would keep a request then that it has not handed out (``robots.txt``, media,
        ``engine.download_async``): it ends with *otherwise*, its failure.
        """
        left = min(delay, self._wait_cap)
        while left > 0:
            if is_closing(self.crawler):
                return retry if scheduled else otherwise
            await sleep(min(left, LOOK_INTERVAL))
            left -= LOOK_INTERVAL
        return retry

    def _give_up(self, request: Request, decision: Decision, reason: str | Exception, now: float) -> None:
        state = with_failure(get_state(request), decision.cls, one_line(reason), now)
        state["gave_up"] = GaveUp(cls=decision.cls, reason=one_line(reason))
        set_state(request, state)
        self._run.bury(request)
        self._reports.gave_up(request, decision, reason, request.meta.get("retry_times", 0) + 1)

    def _retried_by_callback(self, retry: Request, page: Request) -> float:
        """Note in the state of *retry*, which the callback of *page* asked for, that it did; its time."""
        cls = FailureClass.CALLBACK.value
        now = self._run.time()
        self._stats.inc_value(names.retried(cls))
        attempt = Attempt(
            cls, now, named=True, status=200, method=page.method, meta=page.meta, state=get_state(page)
        )
        decision = self.decider.decide(attempt)
        delay = decision.delay if decision is not None and decision.delay is not None else 0.0
        state = with_failure(get_state(page), cls, "asked for by the callback", now)
        state.pop("gave_up", None)  # an errback may ask, too
        state["delay"] = delay
        set_state(retry, state)
        return now + delay
