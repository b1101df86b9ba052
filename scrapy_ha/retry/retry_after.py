"""The ``Retry-After`` header: a number of seconds, or one of the three forms of an HTTP date.

Source: RFC 9110, 10.2.3 (Retry-After) and 5.6.7 (dates). What is neither counts as absent.
"""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from datetime import datetime, timezone

FAR = 1e9
"""Seconds, some thirty years: longer waits are taken for this long."""

_DIGITS = re.compile(r"[0-9]+")

_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_MONTH = "|".join(_MONTHS)
_DAY = r"(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun)"
_LONG_DAY = r"(?:Mon|Tues|Wednes|Thurs|Fri|Satur|Sun)day"
_TIME = r"(?P<hour>[0-9]{2}):(?P<minute>[0-9]{2}):(?P<second>[0-5][0-9]|60)"

_DATES = tuple(
    re.compile(form)
    for form in (
        # Sun, 06 Nov 1994 08:49:37 GMT
        rf"{_DAY}, (?P<day>[0-9]{{2}}) (?P<month>{_MONTH}) (?P<year>[0-9]{{4}}) {_TIME} GMT",
        # Sunday, 06-Nov-94 08:49:37 GMT
        rf"{_LONG_DAY}, (?P<day>[0-9]{{2}})-(?P<month>{_MONTH})-(?P<year>[0-9]{{2}}) {_TIME} GMT",
        # Sun Nov  6 08:49:37 1994
        rf"{_DAY} (?P<month>{_MONTH}) (?P<day>[0-9 ][0-9]) {_TIME} (?P<year>[0-9]{{4}})",
    )
)


def parse_retry_after(
    value: bytes | str | Sequence[bytes | str], now: float, response_date: float | None = None
) -> float | None:
    """Seconds that the server asks to wait, within [0, :data:`FAR`]; ``None``: it says nothing valid.

    Never raises, whatever bytes the header holds.

    Args:
        value: The header's value, or the values of all its lines: the longest valid one counts.
        now: Epoch seconds.
        response_date: The response's own ``Date``, epoch seconds. A date in *value* is measured
            against it, because both are the server's clock; without it, against *now*.
    """
    if not isinstance(value, (bytes, str)):
        waits = [parse_retry_after(line, now, response_date) for line in value]
        return max((wait for wait in waits if wait is not None), default=None)
    text = _text(value)
    if _DIGITS.fullmatch(text):
        return min(float(text), FAR)
    date = parse_http_date(text, now)
    if date is None:
        return None
    return min(max(date - (now if response_date is None else response_date), 0.0), FAR)


def parse_http_date(value: bytes | str | None, now: float) -> float | None:
    """Epoch seconds of an HTTP date in any of its three forms; ``None`` if it is none.

    Args:
        now: Epoch seconds; decides which century a year of two digits is in.
    """
    if value is None:
        return None
    text = _text(value)
    for form in _DATES:
        match = form.fullmatch(text)
        if match:
            return _epoch(match, now)
    return None


def _text(value: bytes | str) -> str:
    # Latin-1 takes any bytes; what is not ASCII then matches nothing.
    text = value.decode("latin-1") if isinstance(value, bytes) else value
    return text.strip(" \t")


def _epoch(match: re.Match[str], now: float) -> float | None:
    year = int(match["year"])
    if len(match["year"]) == 2:
        year = _whole_year(year, now)
    month = _MONTHS.index(match["month"]) + 1
    day, hour, minute, second = (int(match[name]) for name in ("day", "hour", "minute", "second"))
    second = min(second, 59)  # datetime knows no leap second
    try:
        return datetime(year, month, day, hour, minute, second, tzinfo=timezone.utc).timestamp()
    except ValueError:
        return None


def _whole_year(year: int, now: float) -> int:
    """What would be more than 50 years ahead is in the past (RFC 9110)."""
    this = time.gmtime(now).tm_year
    whole = this - this % 100 + year
    return whole - 100 if whole > this + 50 else whole
