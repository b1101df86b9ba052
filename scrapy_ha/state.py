"""What the package keeps with one request, all under one meta key.

The state belongs to one request. A retry and a redirect of it carry it on; a request that a
callback or an errback builds from ``response.meta`` starts clean (the scheduler
sees to it).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypedDict, cast

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
    first_failure: float
    last_failure: float
    gave_up: GaveUp
    """Set by the retry middleware on the request that it gives up. When that request ends, the
    scheduler moves it into the dead state instead of acknowledging it."""


def get_state(request: Request) -> State:
    """The state of *request*, or an empty one that is not attached to it."""
    state = request.meta.get(META_KEY)
    return cast("State", state) if type(state) is dict else {}


def set_state(request: Request, state: State) -> None:
    """Attach *state*, or remove the key when it is empty."""
    if state:
        request.meta[META_KEY] = state
    else:
        request.meta.pop(META_KEY, None)
