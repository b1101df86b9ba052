"""Remedies: what changes a request so that its next attempt has a chance."""

from __future__ import annotations

import inspect
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from scrapy import Request
from scrapy.utils.defer import maybe_deferred_to_future
from scrapy.utils.misc import build_from_crawler, load_object
from twisted.internet.defer import Deferred

from scrapy_ha import stats as names
from scrapy_ha.errors import SettingError
from scrapy_ha.loop import call_later, spawn

if TYPE_CHECKING:
    from scrapy.crawler import Crawler
    from scrapy.http import Response

    from scrapy_ha.typing import Clock

logger = logging.getLogger(__name__)

T = TypeVar("T")

FLIGHT_LIMIT = 10_000
"""Slots of which the latest value is remembered."""


class Remedy(Protocol):
    """Gets what a failed request lacked, once for all that lack it, and puts it in.

    A class of this shape stands in ``HA_RETRY_REMEDIES`` for a failure class. It is built like
    any component of Scrapy (``from_crawler``, if it has that).
    """

    async def refresh(self, request: Request, failure: Response | Exception) -> Any:
        """Get it: log in again, fetch a token. Called once for all requests of one slot that wait.

        May raise: then the remedy has failed, for all of them.
        """

    def apply(self, request: Request, value: Any) -> Request:
        """*request*, or a changed one, with what :meth:`refresh` returned."""


class _Function:
    """An async function ``(request, failure) -> Request`` in the place of a remedy: a call each."""

    def __init__(self, function: Any) -> None:
        self.call = function


@dataclass(slots=True, eq=False)
class _Flight:
    """The latest refresh of one remedy for one slot."""

    waiting: list[Deferred[Any]] | None = field(default_factory=list)
    """Requests that wait for its end; ``None``: it has ended."""
    value: Any = None
    ended: float = 0.0
    """When it ended well, epoch seconds."""


class Remedies:
    """The remedies of one crawl, by failure class.

    Args:
        configured: ``HA_RETRY_REMEDIES``: failure class to a class or an async function, or its path.
        timeout: Seconds that one may take; longer counts as a failure of the remedy.

    Raises:
        SettingError: What is configured is no remedy.
    """

    def __init__(self, crawler: Crawler, configured: Mapping[str, Any], timeout: float, clock: Clock) -> None:
        self._stats: Any = crawler.stats
        self._timeout = timeout
        self._clock = clock
        self._remedies = {cls: _build(crawler, cls, given) for cls, given in configured.items()}
        self._flights: OrderedDict[tuple[str, str], _Flight] = OrderedDict()

    def __contains__(self, cls: str) -> bool:
        return cls in self._remedies

    def __iter__(self) -> Iterator[str]:
        return iter(self._remedies)

    async def cure(
        self, cls: str, request: Request, failure: Response | Exception, slot: str, sent: float
    ) -> Request | None:
        """*request* as its next attempt is to be; ``None``: the remedy failed.

        Args:
            sent: When the failed attempt was sent, epoch seconds. What was refreshed since
                is used as it is.
        """
        remedy = self._remedies[cls]
        try:
            if isinstance(remedy, _Function):
                changed: Request = await self._limited(remedy.call(request, failure))
            else:
                changed = remedy.apply(request, await self._value(cls, remedy, request, failure, slot, sent))
            _check(changed)
        except Exception as error:
            self._stats.inc_value(names.remedy_failed(cls))
            logger.warning(
                "The remedy for %s failed for %s: %s: %s", cls, request, type(error).__name__, error or "-"
            )
            return None
        self._stats.inc_value(names.remedied(cls))
        return changed

    async def _value(
        self,
        cls: str,
        remedy: Remedy,
        request: Request,
        failure: Response | Exception,
        slot: str,
        sent: float,
    ) -> Any:
        flight = self._flights.get((cls, slot))
        if flight is not None:
            if flight.waiting is not None:
                arrival: Deferred[Any] = Deferred()
                flight.waiting.append(arrival)
                return await maybe_deferred_to_future(arrival)
            if sent < flight.ended:
                return flight.value
        flight = self._flights[cls, slot] = _Flight()
        self._flights.move_to_end((cls, slot))
        try:
            flight.value = await self._limited(remedy.refresh(request, failure))
        except BaseException as error:
            waiting, flight.waiting = flight.waiting or [], None
            for arrival in waiting:
                arrival.errback(error if isinstance(error, Exception) else RuntimeError("it was cancelled"))
            raise
        flight.ended = self._clock.time()
        waiting, flight.waiting = flight.waiting or [], None
        for arrival in waiting:
            arrival.callback(flight.value)
        self._forget_old()
        return flight.value

    def _forget_old(self) -> None:
        while len(self._flights) > FLIGHT_LIMIT:
            key, oldest = next(iter(self._flights.items()))
            if oldest.waiting is not None:
                return
            del self._flights[key]

    async def _limited(self, work: Awaitable[T]) -> T:
        """The outcome of *work*.

        Raises:
            TimeoutError: It took too long and was cancelled.
        """
        running = spawn(_coroutine(work))
        late = False

        def end() -> None:
            nonlocal late
            late = True
            running.cancel()

        timer = call_later(self._timeout, end)
        try:
            return await maybe_deferred_to_future(running)
        except BaseException:
            if late:
                raise TimeoutError(f"it took longer than {self._timeout:g} s") from None
            raise
        finally:
            if not late:
                timer.cancel()


async def _coroutine(work: Awaitable[T]) -> T:
    return await work


def _build(crawler: Crawler, cls: str, given: Any) -> Remedy | _Function:
    try:
        found = load_object(given) if isinstance(given, str) else given
    except (ImportError, NameError, ValueError) as error:
        raise SettingError(f"HA_RETRY_REMEDIES[{cls!r}] = {given!r} cannot be loaded: {error}") from error
    if inspect.iscoroutinefunction(found):
        return _Function(found)
    if isinstance(found, type):
        found = build_from_crawler(found, crawler)
    if callable(getattr(found, "refresh", None)) and callable(getattr(found, "apply", None)):
        remedy: Remedy = found
        return remedy
    raise SettingError(
        f"HA_RETRY_REMEDIES[{cls!r}] = {given!r} is no remedy: it must be an async function, or a class with "
        "refresh() and apply()"
    )


def _check(changed: Any) -> None:
    if not isinstance(changed, Request):
        raise TypeError(f"it returned {type(changed).__name__}, not a Request")
