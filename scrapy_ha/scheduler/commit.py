"""Acknowledgements: what a page gave becomes durable, then the page is done (invariant I3)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeAlias

from scrapy.utils.defer import maybe_deferred_to_future

from scrapy_ha.loop import Ticker, completed, in_thread, spawn

if TYPE_CHECKING:
    from scrapy import Request
    from twisted.internet.defer import Deferred

    from scrapy_ha.run import Run
    from scrapy_ha.typing import Frontier, Settlement

Commit: TypeAlias = "tuple[Sequence[Request], Settlement, Sequence[bytes]]"
"""Pages to settle first, the end of the lease, and keys to mark seen with it."""

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
    """

    def __init__(
        self,
        frontier: Frontier,
        run: Run,
        policy: str,
        interval: float,
        failed: Callable[[Exception], None],
    ) -> None:
        self._frontier = frontier
        self._run = run
        self._policy = policy
        self._failed = failed
        self._waiting: list[Commit] = []
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

    def commit(self, pages: Sequence[Request], settlement: Settlement, seen: Sequence[bytes]) -> None:
        """End one lease once everything that *pages* gave is durable."""
        self._waiting.append((pages, settlement, seen))
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
        if self._policy != "never":
            await self._sync()

    def _settle(self) -> list[Commit]:
        """Have what the waiting pages gave written; those for which that worked."""
        waiting, self._waiting = self._waiting, []
        settled = []
        for one in waiting:
            try:
                for page in one[0]:
                    self._run.settle(page)
            except Exception as error:  # a Durable of any kind; the page stays leased
                self._failed(error)
            else:
                settled.append(one)
        return settled

    def _write(self, settled: list[Commit]) -> None:
        if not settled:
            return
        try:
            completed(
                self._frontier.settle(
                    [settlement for _, settlement, _ in settled],
                    seen=[key for _, _, seen in settled for key in seen],
                    marks=self._run.collect_marks(),
                )
            )
        except Exception as error:
            self._failed(error)
        else:
            self._dirty = True

    async def _rounds(self) -> None:
        try:
            while self._waiting:
                settled = self._settle()
                await in_thread(self._run.fsync)
                self._write(settled)
                await in_thread(lambda: completed(self._frontier.sync()))
        except Exception as error:
            self._failed(error)
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
        except Exception as error:
            self._failed(error)
