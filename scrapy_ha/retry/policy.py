"""What is retried, how often, and after how long."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from scrapy_ha.retry.backoff import after, full_jitter
from scrapy_ha.retry.classify import FailureClass


@dataclass(frozen=True)
class RetryPolicy:
    """The numbers of one crawl; seconds throughout.

    Responses are retried by their status alone. Classes that a retry cannot help (``auth``,
    ``client``, ``permanent``) are therefore retried only where the user's own lists name the very
    status or exception.
    """

    times: int
    """Retries of a request, beyond its first attempt."""
    http_codes: frozenset[int]
    exceptions: tuple[type[BaseException], ...]
    base: float
    cap: float
    floor: float
    retry_after_cap: float

    def retries_exception(self, exception: BaseException, cls: FailureClass) -> bool:
        """Whether *exception*, which :attr:`exceptions` cover and which is of class *cls*, is retried."""
        return cls is not FailureClass.PERMANENT or type(exception) in self.exceptions

    def delay(self, attempt: int, retry_after: float | None, random: Random) -> float:
        """Seconds before retry number *attempt*, which counts from 1.

        Within [0, ``cap``]; with *retry_after*, what the server asked for, never less than that and
        within [0, ``retry_after_cap``].
        """
        if retry_after is None:
            return full_jitter(attempt, self.base, self.cap, self.floor, random)
        return after(retry_after, self.base, self.retry_after_cap, self.floor, random)
