"""Start requests: once per crawl, and no faster than they are worked on."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING, Any

from scrapy import Request
from scrapy.utils.defer import maybe_deferred_to_future
from twisted.internet.defer import Deferred

from scrapy_ha.loop import call_later, sleep
from scrapy_ha.run import current_page

if TYPE_CHECKING:
    from scrapy_ha.typing import Opened

BREATH = 64
"""Start requests after which the loop gets a round: the engine takes them without a pause while
it is busy."""


class Seeding:
    """Wraps the iterator of start items and requests.

    Args:
        once: Whether they are produced once per crawl, or at every start.
        limit: How many requests may wait.
        waiting: How many do.
        item: Called before each start item is handed on.
        complete: Called when all have been produced.
    """

    def __init__(
        self,
        once: bool,
        limit: int,
        waiting: Callable[[], int],
        item: Callable[[], None],
        complete: Callable[[], None],
    ) -> None:
        self.once = once
        self.done = False
        self._limit = limit
        self._waiting = waiting
        self._item = item
        self._complete = complete
        self._current: Request | None = None
        self._room: Deferred[None] | None = None
        self._turn: Callable[[], Awaitable[bool]] | None = None

    def open(self, opened: Opened, turn: Callable[[], Awaitable[bool]] | None = None) -> None:
        """*turn*, where several workers may produce them: waits until it is this one's turn; False: all
        are stored by now."""
        self.done = self.once and opened.seeded
        self._turn = turn if self.once else None

    def is_seed(self, request: Request) -> bool:
        """Whether *request*, which is being enqueued, is the start request just produced."""
        return request is self._current

    async def produce(self, start: AsyncIterator[Any]) -> AsyncIterator[Any]:
        if not self.done and self._turn is not None:
            self.done = not await self._turn()
        if self.done:
            return
        count = 0
        async for one in start:
            while self._waiting() >= self._limit:
                self._room = Deferred()
                await maybe_deferred_to_future(self._room)
            count += 1
            if not count % BREATH:
                await sleep(0)
            if isinstance(one, Request):
                self._current = one
            else:
                self._current = None
                self._item()
            yield one
            current_page.set(None)
        self._current = None
        self._complete()

    def make_room(self) -> None:
        """Fewer requests may wait now."""
        if self._room is not None and self._waiting() < self._limit:
            room, self._room = self._room, None
            call_later(0, lambda: room.callback(None))
