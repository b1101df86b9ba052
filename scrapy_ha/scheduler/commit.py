"""Acknowledgements: what a page gave becomes durable, then the page is done (invariant I3)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from scrapy.utils.defer import maybe_deferred_to_future

from scrapy_ha.errors import HAError
from scrapy_ha.loop import Ticker, completed, in_thread, sleep, spawn

if TYPE_CHECKING:
    from scrapy import Request
    from twisted.internet.defer import Deferred

    from scrapy_ha.run import Run
    from scrapy_ha.typing import Frontier, Settlement


@dataclass(slots=True)
class Commit:
    """One page that is done, with what is done with it."""

    pages: Sequence[Request]
    """To be settled first."""
    settlement: Settlement | None = None
    """The end of its lease, if it has one."""
    seen: Sequence[bytes] = ()
    """Keys to be marked seen in the same step."""
    seeded: bool = False
    """It is the last of the start requests."""


MAINTAIN_EVERY = 10.0
"""Seconds between two housekeeping calls of the frontier."""


class Commits:
    """Ends leases in order, by the fsync policy.

    With ``interval`` and ``never`` an acknowledgement is written at once, after everything the
    page gave was written: that survives ``kill -9``. ``interval`` fsyncs both, in that order,
    in a thread every *interval* seconds. With ``always`` the acknowledgement itself waits until
    what the page gave is fsynced, and is fsynced in turn; pages that end meanwhile share the
    next round (group commit). The event loop never waits for the device.

    Args:
        failed: Called with the error when something could not be written. The pages concerned
            stay leased: the next run takes them up again.
        expired: Called with the number of dead requests that housekeeping has forgotten.
        written: Called when pages that waited for the device are done.
    """

    def __init__(
        self,
        frontier: Frontier,
        run: Run,
        policy: str,
        interval: float,
        failed: Callable[[Exception], None],
        expired: Callable[[int], None] = lambda number: None,
        written: Callable[[], None] = lambda: None,
    ) -> None:
        self._frontier = frontier
        self._run = run
        self._policy = policy
        self._failed = failed
        self._expired = expired
        self._written = written
        self.pending = 0
        """Pages whose acknowledgement waits for the device: they would be fetched again after a kill."""
        self.waits_for_device = policy == "always"
        self._waiting: list[Commit] = []
        self._broken = False
        self._round: Deferred[None] | None = None
        self._dirty = False
        self._tickers = [Ticker(MAINTAIN_EVERY, self._maintain)]
        if policy == "interval":
            self._tickers.append(Ticker(interval, self._sync))

    def start(self) -> None:
        for ticker in self._tickers:
            ticker.start()

    def touch(self) -> None:
        """Something was stored that the next fsync has to cover."""
        self._dirty = True

    def commit(self, commit: Commit) -> None:
        """Write *commit* once everything that its pages gave is durable."""
        if self._broken:
            return
        self._waiting.append(commit)
        self.pending += self.waits_for_device
        if self._policy != "always":
            self._write(self._settle())
        elif self._round is None:
            self._round = spawn(self._rounds())

    async def close(self) -> None:
        """Write and, unless the policy is ``never``, fsync what is left."""
        for ticker in self._tickers:
            await ticker.stop()
        if self._round is not None:
            await maybe_deferred_to_future(self._round)
        if not self._broken:
            try:
                while self._expire():
                    pass
            except HAError as error:
                self._failed(error)
        if self._policy != "never":
            await self._sync()

    def _settle(self) -> list[Commit]:
        """Have what the waiting pages gave written; those for which that worked."""
        waiting, self._waiting = self._waiting, []
        settled = []
        for commit in waiting:
            try:
                for page in commit.pages:
                    self._run.settle(page)
            except Exception as error:  # a Durable of any kind; the page stays leased
                self._break(error)
                break
            settled.append(commit)
        return settled

    def _write(self, settled: list[Commit], marks: dict[str, bytes] | None = None) -> None:
        """*marks*: collected after settling; ``None`` for now."""
        if not settled or self._broken:
            return
        try:
            completed(
                self._frontier.settle(
                    [commit.settlement for commit in settled if commit.settlement is not None],
                    seen=[key for commit in settled for key in commit.seen],
                    marks=self._run.collect_marks() if marks is None else marks,
                    seeded=any(commit.seeded for commit in settled),
                )
            )
        except Exception as error:
            self._break(error)
        else:
            self._dirty = True

    def _break(self, error: Exception) -> None:
        """Nothing more is acknowledged: a later mark would cover what this page gave in part."""
        self._broken = True
        self._failed(error)

    async def _rounds(self) -> None:
        try:
            while self._waiting:
                settled = self._settle()
                marks = self._run.collect_marks()  # what is written from here on is not fsynced
                await in_thread(self._run.fsync)
                self._write(settled, marks)
                await in_thread(lambda: completed(self._frontier.sync()))
                self.pending -= len(settled)
                self._written()
        except Exception as error:
            self._break(error)
        finally:
            self._round = None

    async def _sync(self) -> None:
        if not self._dirty:
            return
        self._dirty = False
        try:
            await in_thread(self._run.fsync)
            await in_thread(lambda: completed(self._frontier.sync()))
        except Exception as error:
            self._failed(error)

    async def _maintain(self) -> None:
        try:
            await in_thread(lambda: completed(self._frontier.maintain()))
            while self._expire():
                await sleep(0)
        except Exception as error:
            self._failed(error)

    def _expire(self) -> bool:
        """Forget some dead requests that are beyond the limits; whether there were any."""
        number = completed(self._frontier.expire())
        if number:
            self._dirty = True
            self._expired(number)
        return number > 0
