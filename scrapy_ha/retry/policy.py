"""What decides whether a failed request is tried again, and when."""

from __future__ import annotations

import math
from dataclasses import dataclass
from random import Random
from typing import Protocol, runtime_checkable

from scrapy_ha.retry.backoff import decorrelated, draw, grown, interval

UNLIMITED = math.inf
"""As a number of retries: as many as it takes."""


@dataclass(frozen=True, slots=True)
class Failed:
    """One failed attempt, as a policy sees it. Times are epoch seconds."""

    cls: str
    """Failure class."""
    attempt: int
    """Attempts that failed in this class, this one included."""
    attempts: int
    """Attempts that count against *limit*, this one included: those of classes whose policies have
    numbers of their own do not."""
    limit: int
    """``max_retry_times`` of the request, or ``RETRY_TIMES``: retries, beyond the first attempt."""
    first_failure: float
    now: float
    method: str = "GET"
    idempotent: bool = True
    """Sending the request twice does no more than sending it once."""
    status: int | None = None
    exception: str = ""
    """Full name of the exception's class, where there was no response."""
    delay: float = 0.0
    """Seconds that the policy had the request wait the last time; 0: never yet."""
    asked: float = 0.0
    """Seconds that the server wants the request to wait, jitter included; 0: it did not say."""

    @property
    def elapsed(self) -> float:
        """Seconds since the first failure, at least 0."""
        return max(0.0, self.now - self.first_failure)


@dataclass(frozen=True, slots=True)
class Retry:
    """Try again."""

    delay: float
    """After so many seconds, at least 0."""


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Do not try again."""

    reason: str
    """For a person, a few words."""
    exhausted: bool = True
    """It was tried as often or as long as is allowed; ``False``: this is never tried again."""


@runtime_checkable
class RetryPolicy(Protocol):
    """Decides over one failed attempt. Named in ``HA_RETRY_POLICIES`` by the path of its class.

    What the server asked for is seen to by the caller: a shorter delay is made as long. An error,
    or an answer that is none, is logged and counted, and the default of the class decides.
    """

    def decide(self, failed: Failed, random: Random) -> Retry | GiveUp:
        """Try again after some seconds, or give up. Runs on the event loop: microseconds.

        All chance is to be taken from *random*, so that a seed gives the same plan.
        """


@dataclass(frozen=True, slots=True)
class Never:
    """Gives up at the first failure."""

    def decide(self, failed: Failed, random: Random) -> Retry | GiveUp:
        return GiveUp("never retried", exhausted=False)


@dataclass(frozen=True, slots=True)
class Backoff:
    """Waits longer every time, with jitter, up to a number of retries, a deadline, or both.

    Seconds throughout. Every delay is within [0, *cap*], unless the server asks for more.
    """

    kind: str = "exponential"
    """One of :data:`~scrapy_ha.retry.backoff.BACKOFFS`."""
    base: float = 1.0
    factor: float = 2.0
    """By what ``exponential`` grows with every retry; with ``decorrelated`` jitter, at most."""
    steps: tuple[float, ...] = ()
    cap: float = 60.0
    floor: float = 0.1
    jitter: str = "full"
    """One of :data:`~scrapy_ha.retry.backoff.JITTERS`; ``decorrelated`` goes with ``exponential``."""
    last: float | None = None
    """Before the last retry, in place of what the formula says."""
    retries: float | None = None
    """Retries after failures of this class; ``None``: as :attr:`Failed.limit` says, all classes together."""
    deadline: float | None = None
    """No retry later than this after the first failure."""

    def decide(self, failed: Failed, random: Random) -> Retry | GiveUp:
        used, allowed = self._tries(failed)
        if used > allowed:
            return GiveUp(f"failed {used} times")
        is_last = used == allowed
        delay = failed.asked or draw(self.between(failed.attempt, failed.delay, is_last), random)
        if self.deadline is not None and failed.elapsed + delay > self.deadline:
            return GiveUp(f"the next attempt would be over {self.deadline:g} s after the first")
        return Retry(delay)

    def between(self, n: int, previous: float = 0.0, is_last: bool = False) -> tuple[float, float]:
        """Shortest and longest wait before retry number *n*, from 1, after a wait of *previous* seconds."""
        if is_last and self.last is not None:
            jitter = "equal" if self.jitter == "decorrelated" else self.jitter
            return interval(jitter, self.last, self.cap, self.floor)
        if self.jitter == "decorrelated":
            return decorrelated(previous, self.base, self.factor, self.cap, self.floor)
        delay = grown(self.kind, n, self.base, self.factor, self.steps)
        return interval(self.jitter, delay, self.cap, self.floor)

    def _tries(self, failed: Failed) -> tuple[int, float]:
        if self.retries is None:
            return failed.attempts, failed.limit
        return failed.attempt, self.retries
