"""Timers, threads and tasks on whichever event loop Scrapy runs: Twisted's, asyncio's, or both.

The reactor is only touched when a function is called, never when this module is imported.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from scrapy.utils.defer import deferred_from_coro, maybe_deferred_to_future
from twisted.internet.defer import Deferred

if TYPE_CHECKING:
    from scrapy.crawler import Crawler

T = TypeVar("T")


class Timer(Protocol):
    def cancel(self) -> object: ...


def has_asyncio() -> bool:
    """Whether an asyncio loop runs: alone, or under Twisted's asyncio reactor."""
    try:
        from scrapy.utils.asyncio import is_asyncio_available  # noqa: PLC0415 - Scrapy 2.14
    except ImportError:
        from scrapy.utils.reactor import is_asyncio_reactor_installed  # noqa: PLC0415

        return is_asyncio_reactor_installed()
    return is_asyncio_available()


def call_later(seconds: float, function: Callable[[], object]) -> Timer:
    """Call *function* on the loop after *seconds*."""
    if has_asyncio():
        return asyncio.get_event_loop().call_later(max(seconds, 0.0), function)
    from twisted.internet import reactor  # noqa: PLC0415 - installs it, if it is not

    installed: Any = reactor
    timer: Timer = installed.callLater(max(seconds, 0.0), function)
    return timer


async def sleep(seconds: float) -> None:
    """Let the loop do other work for *seconds*; with 0, for one round."""
    awakened: Deferred[None] = Deferred()
    call_later(seconds, lambda: awakened.callback(None))
    await maybe_deferred_to_future(awakened)


async def in_thread(function: Callable[[], T]) -> T:
    """Run a blocking *function* in a thread; its result or its exception comes back here."""
    if has_asyncio():
        return await asyncio.to_thread(function)
    from twisted.internet.threads import deferToThread  # noqa: PLC0415

    result: T = await maybe_deferred_to_future(deferToThread(function))
    return result


def spawn(work: Coroutine[Any, Any, T]) -> Deferred[T]:
    """Start *work* now; the Deferred carries its outcome."""
    started: Deferred[T] = deferred_from_coro(work)
    return started


def completed(work: Coroutine[Any, Any, T]) -> T:
    """Run *work* that never suspends, such as an embedded store's, and return its result."""
    try:
        work.send(None)
    except StopIteration as done:
        result: T = done.value
        return result
    work.close()
    raise RuntimeError("this call of an embedded store was expected not to wait")


class Ticker:
    """Runs the coroutine function *work* again and again, *seconds* after it last ended."""

    def __init__(self, seconds: float, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._seconds = seconds
        self._work = work
        self._timer: Timer | None = None
        self._running: Deferred[None] | None = None
        self._stopped = False

    def start(self) -> None:
        self._stopped = False
        self._timer = call_later(self._seconds, self._fire)

    async def stop(self) -> None:
        """No further runs; returns when the one under way has ended."""
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._running is not None:
            await maybe_deferred_to_future(self._running)

    def _fire(self) -> None:
        self._timer = None  # Twisted refuses to cancel a timer that has fired
        self._running = spawn(self._cycle())

    async def _cycle(self) -> None:
        try:
            await self._work()
        finally:
            self._running = None
            if not self._stopped:
                self.start()


def close_spider(crawler: Crawler, reason: str) -> None:
    """Have the engine close the spider; harmless when it is closing already."""
    engine = crawler.engine
    if engine is None or engine.spider is None:
        return
    if hasattr(engine, "close_spider_async"):
        closing = spawn(engine.close_spider_async(reason=reason))
    else:  # Scrapy 2.13
        closing = engine.close_spider(engine.spider, reason)
    closing.addErrback(lambda failure: None)  # the engine logs its own failures
