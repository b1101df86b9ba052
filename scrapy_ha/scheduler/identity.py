"""Whose state a request carries when it is enqueued: its own, or that of the page before it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scrapy_ha.deadletter import URL_LIMIT
from scrapy_ha.state import META_KEY, State, get_state, is_retry_of, set_state, start_clean

if TYPE_CHECKING:
    from collections.abc import Callable

    from scrapy import Request


def inherit(request: Request, page: Request, retried: Callable[[Request, Request], None]) -> float:
    """*request* comes from the callback or errback of *page*.

    It starts clean, but for the page's URL when it has no ``Referer``; unless the callback asked for a
    retry of the page (``get_retry_request``): that keeps the page's history, and *retried* says when it
    is due (:attr:`Run.retried <scrapy_ha.run.Run.retried>`).

    Returns:
        When it is due, epoch seconds; 0 for at once.
    """
    if is_retry_of(request, page):
        retried(request, page)
        return adopt(request, in_flight=True)
    start_clean(request, page)
    if b"Referer" not in request.headers:
        set_state(request, {"parent": page.url[:URL_LIMIT]})
    return 0.0


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
