"""What the parts of one running crawl share, without knowing one another.

The scheduler says here whether the crawl is resumed and when a page is done; parts that hold
what pages gave (feeds, the spool) say here how to make it durable. An acknowledgement is
written only after every :class:`~scrapy_ha.typing.Durable` has settled the page (invariant I3).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from scrapy_ha.clock import SystemClock

if TYPE_CHECKING:
    from scrapy import Request
    from scrapy.crawler import Crawler

    from scrapy_ha.typing import Clock, Durable, Gate, Part

logger = logging.getLogger(__name__)

current_page: ContextVar[Request | None] = ContextVar("scrapy_ha_page", default=None)
"""The request whose callback or errback is running, or whose output is being processed, in
this context. Set by :mod:`scrapy_ha.lifecycle` for the length of that work."""


def _tracks_nothing(page: Request) -> bool:
    return False


def _waits(request: Request) -> bool:
    return True


def _buries_nothing(page: Request) -> bool:
    return False


def _leaves_as_it_is(request: Request, page: Request) -> None:
    pass


class Run:
    """One per crawler, see :func:`run_of`."""

    def __init__(self) -> None:
        self.settings_checked = False
        """All ``HA_`` settings were checked, and what is wrong with them was said."""
        self.resumed = False
        """The crawl goes on where an interrupted one stopped. Final once the scheduler is open,
        which is before ``spider_opened``."""
        self.marks: dict[str, bytes] = {}
        """What the Durables had stored with the last acknowledgement of the interrupted crawl."""
        self.clock: Clock = SystemClock()
        """The time that stored due times refer to; the scheduler puts in its frontier's."""
        self.durables: list[Durable] = []
        self.has_feeds = False
        """Feeds are written by a Durable."""
        self.failed: Callable[[Request, Exception], Any] | None = None
        """Set by the retry middleware, for failures that Scrapy does not tell it of: what becomes of
        the request is its retry, or ``None``, or an awaitable of either."""
        self.retried: Callable[[Request, Request], None] = _leaves_as_it_is
        """Set by the retry middleware. To be called by a scheduler that keeps times with a retry that a
        callback or errback asked for, and the page that this ran on: gives the retry its state, ``due``
        included."""
        self.gate: Gate | None = None
        """What keeps requests from hosts that are not to be sent any; asked by the scheduler."""
        self.tracks: Callable[[Request], bool] = _tracks_nothing
        """Whether the scheduler will have the Durables settle *page* when it is done."""

        self.parts: list[Part] = []
        """What takes part in the checkpoint; see :func:`scrapy_ha.checkpoint.register`."""
        self.hold: Callable[[Request], bool] = _waits
        """To be called with a request that waits outside the scheduler, before the one that it comes
        from is done: it then survives ``kill -9`` where the checkpoint keeps requests. ``False``: it is a
        copy of one that waits there already, and is to be dropped. Never raises."""
        self.keeps_times: Callable[[Request], bool] = _tracks_nothing
        """Whether a scheduler handed *request* out that asks the gate, and keeps a retry of it until it is
        due. Set by ours."""
        self.keep: Callable[[Mapping[str, bytes]], None] | None = None
        """Set by the scheduler, if it keeps things: stores marks at once. Those come back in
        :attr:`marks`; ``b""`` stands for one that is no longer needed. Never raises."""
        self.bury: Callable[[Request], bool] = _buries_nothing
        """To be called with a request that is given up, as soon as its state says so (``gave_up``) and
        before anything else does: what is known of it is on disk then. Whether it was kept; not so are
        requests of other schedulers, and those that cannot be stored. Never raises."""

    @property
    def tracking(self) -> bool:
        """The scheduler is one that has the Durables settle pages. Final once it is open."""
        return self.tracks is not _tracks_nothing

    @property
    def keeping_times(self) -> bool:
        """The scheduler is ours. Final once it is open."""
        return self.keeps_times is not _tracks_nothing

    def warn_of_feeds(self, feeds: Mapping[Any, Any]) -> None:
        """Say so when something else than a Durable writes *feeds*, though pages are acknowledged."""
        if feeds and not self.has_feeds:
            logger.warning(
                "FEEDS are written by Scrapy's own exporter, which buffers: a kill loses items of pages that "
                "count as done. Put scrapy_ha.feeds.HAFeedExporter in its place, as the add-on does"
            )

    def time(self) -> float:
        """Epoch seconds, as :attr:`clock` has them: this is a :class:`~scrapy_ha.typing.Clock` too."""
        return self.clock.time()

    def settle(self, page: Request) -> None:
        """Have every Durable settle *page*. Raises what they raise: the page is then not done."""
        for durable in self.durables:
            durable.settle(page)

    def collect_marks(self) -> dict[str, bytes]:
        """Marks of all Durables, to be stored in the atomic step of the acknowledgement."""
        marks: dict[str, bytes] = {}
        for durable in self.durables:
            marks.update(durable.marks())
        return marks

    def fsync(self) -> None:
        """Have every Durable fsync. Blocks: call it in a thread."""
        for durable in tuple(self.durables):
            durable.fsync()


_runs: WeakKeyDictionary[Crawler, Run] = WeakKeyDictionary()


def run_of(crawler: Crawler) -> Run:
    """The :class:`Run` of *crawler*, made on first use."""
    run = _runs.get(crawler)
    if run is None:
        run = _runs[crawler] = Run()
    return run
