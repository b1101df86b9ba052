"""Whose state a request carries when it is enqueued: its own, or that of the page before it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scrapy_ha.state import META_KEY, State, get_state, set_state

if TYPE_CHECKING:
    from scrapy import Request


def inherit(request: Request, page: Request) -> None:
    """*request* comes from the callback or errback of *page*: it starts clean.

    A retry counter that came along with ``meta=response.meta`` goes too. One that is higher than
    the page's stays: the callback asked for a retry (``get_retry_request``).
    """
    meta = request.meta
    if META_KEY in meta:
        del meta[META_KEY]
        if meta.get("retry_times", 0) == page.meta.get("retry_times", 0):
            meta.pop("retry_times", None)


def adopt(request: Request, in_flight: bool) -> float:
    """*request* comes from outside a callback.

    When it carries the lease of a request *in_flight*, it is a retry or redirect of that one and
    keeps its history. Otherwise the state is a copy that belongs to another request, and goes.

    Returns:
        When it is due, epoch seconds; 0 for at once.
    """
    state = get_state(request)
    if not state:
        return 0.0
    if not in_flight:
        del request.meta[META_KEY]
        return 0.0
    kept: State = {**state}
    kept.pop("id", None)
    kept.pop("deliveries", None)
    kept.pop("gave_up", None)
    due = kept.pop("due", 0.0)
    set_state(request, kept)
    return due
