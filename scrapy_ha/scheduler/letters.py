"""What is written down about a request that is given up."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from scrapy_ha.deadletter import DeadLetter, Failed
from scrapy_ha.state import get_state

if TYPE_CHECKING:
    from scrapy_ha.scheduler.pages import Page


def letter_of(page: Page, now: float, spider: str, traceback: str = "") -> DeadLetter:
    """The dead letter of *page*, whose state says why it was given up.

    The state stands in the request's ``meta``, where anything may have been put: what is not as it
    should be is left out.
    """
    request = page.request
    state: dict[str, Any] = {**get_state(request)}
    gave_up = _mapping(state.get("gave_up"))
    attempts = _mapping(state.get("attempts"))
    errors = state.get("errors")
    referer = request.headers.get("Referer")
    return DeadLetter(
        str(gave_up.get("cls", "other")),
        str(gave_up.get("reason", "")),
        now,
        errors=tuple(map(_failed, filter(_is_failure, errors))) if isinstance(errors, list) else (),
        attempts={
            name: number
            for name, number in attempts.items()
            if isinstance(name, str) and isinstance(number, int)
        },
        first_failure=_number(state.get("first_failure")),
        last_failure=_number(state.get("last_failure")),
        slot=page.slot,
        url=request.url,
        method=request.method,
        parent=str(state.get("parent", "")) if referer is None else referer.decode("latin-1"),
        traceback=traceback,
        spider=spider,
        deliveries=page.lease.deliveries if page.lease is not None else 0,
    )


def _mapping(value: Any) -> dict[Any, Any]:
    return value if isinstance(value, dict) else {}


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, (int, float)) and abs(value) < 2**62 else None


def _is_failure(one: Any) -> bool:
    return isinstance(one, (list, tuple)) and len(one) == 3 and _number(one[2]) is not None


def _failed(one: Any) -> Failed:
    cls, reason, time = one
    return Failed(str(cls), str(reason), float(time))
