"""What the package keeps with one request, all under one meta key.

The state belongs to one request. A retry and a redirect of it carry it on; a request that a
callback or an errback builds from ``response.meta`` starts clean (the scheduler
sees to it).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypedDict, cast

from scrapy_ha.deadletter import ERRORS_KEPT

if TYPE_CHECKING:
    from scrapy import Request

META_KEY = "_ha"


class GaveUp(TypedDict):
    """Why a request was given up."""

    cls: str
    """Failure class."""
    reason: str
    """One line for a person, of bounded length."""


class State(TypedDict, total=False):
    """The value under :data:`META_KEY`. Plain types only: it is stored with the request."""

    id: int
    """Lease that this delivery belongs to. Set by the scheduler, only while in flight."""
    deliveries: int
    """How many times the request was handed to a worker, this time included (scheduler)."""
    due: float
    """Not to be sent before this time, epoch seconds. Set by the retry middleware on the
    request it returns; the scheduler takes it out and keeps the request until then."""
    attempts: dict[str, int]
    """Failed attempts by failure class (retry middleware)."""
    delay: float
    """Seconds that its last retry policy had it wait; decorrelated jitter goes on from there."""
    first_failure: float
    last_failure: float
    errors: list[list[Any]]
    """The last few failures, each ``[failure class, reason, time]``, the latest at the end."""
    jid: int
    """What the checkpoint's journal knows it by (with other schedulers than ours)."""
    seen: bytes
    """What the duplicate filter knows it by, until it is done (with other schedulers than ours)."""
    parent: str
    """URL of the page that it was found on, unless its ``Referer`` says so (scheduler)."""
    gave_up: GaveUp
    """Set by the retry middleware on the request that it gives up, before it calls
    :attr:`Run.bury <scrapy_ha.run.Run.bury>`. When that request ends, the scheduler moves it into the
    dead state instead of acknowledging it."""


def get_state(request: Request) -> State:
    """The state of *request*, or an empty one that is not attached to it."""
    state = request.meta.get(META_KEY)
    return cast("State", state) if type(state) is dict else {}


def clean_state(request: Request) -> State:
    """The state of *request* as it was stored, which may be anybody's work: what is not of the right type
    is left out, and so is what belongs to a delivery that has ended."""
    stored = request.meta.get(META_KEY)
    if type(stored) is not dict:
        return {}
    kept = {name: value for name, value in stored.items() if name in _KINDS and _KINDS[name](value)}
    return cast("State", kept)


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value)


def _are_attempts(value: Any) -> bool:
    return type(value) is dict and all(type(cls) is str and type(n) is int for cls, n in value.items())


def _are_errors(value: Any) -> bool:
    return type(value) is list and all(
        type(one) is list and [type(part) for part in one[:2]] == [str, str] and len(one) == 3
        for one in value
    )


_KINDS: dict[Any, Callable[[Any], bool]] = {
    "attempts": _are_attempts,
    "delay": _is_number,
    "first_failure": _is_number,
    "last_failure": _is_number,
    "errors": _are_errors,
    "parent": lambda value: type(value) is str,
}


def set_state(request: Request, state: State) -> None:
    """Attach *state*, or remove the key when it is empty."""
    if state:
        request.meta[META_KEY] = state
    else:
        request.meta.pop(META_KEY, None)


def with_failure(state: State, cls: str, reason: str, now: float) -> State:
    """A copy of *state* in which one more failure is noted: *reason* is one line of bounded length."""
    attempts = {**state.get("attempts", {})}
    attempts[cls] = attempts.get(cls, 0) + 1
    errors = [*state.get("errors", []), [cls, reason, now]][-ERRORS_KEPT:]
    failed: State = {**state, "attempts": attempts, "errors": errors, "last_failure": now}
    failed.setdefault("first_failure", now)
    return failed


def is_retry_of(request: Request, page: Request) -> bool:
    """Whether *request*, which comes from the callback or errback of *page*, is another attempt of it.

    So it is when it looks as Scrapy's ``get_retry_request`` makes it.
    """
    return (
        request.dont_filter
        and _retry_times(request) > _retry_times(page)
        and request.url == page.url
        and request.method == page.method
    )


def start_clean(request: Request, page: Request) -> None:
    """Take from *request*, which comes from *page* and is no retry of it, what belongs to *page*.

    A retry counter that came along with ``meta=response.meta`` goes too; one that differs from the
    page's was set on purpose, and stays.
    """
    meta = request.meta
    if META_KEY in meta:
        del meta[META_KEY]
        if _retry_times(request) == _retry_times(page):
            meta.pop("retry_times", None)


def _retry_times(request: Request) -> int:
    times = request.meta.get("retry_times")
    return times if isinstance(times, int) else 0
