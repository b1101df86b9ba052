"""The Retry-After header, with what servers really send."""

from __future__ import annotations

import math
from datetime import datetime, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scrapy_ha.retry import parse_retry_after
from scrapy_ha.retry.retry_after import FAR, parse_http_date

NOW = datetime(2024, 5, 5, 12, tzinfo=timezone.utc).timestamp()
IN_2037 = datetime(2037, 10, 21, 7, 28, tzinfo=timezone.utc).timestamp()


@pytest.mark.parametrize(
    ("value", "wait"),
    [
        (b"7", 7.0),
        (b"0", 0.0),
        (b" 007\t", 7.0),
        ("120", 120.0),
        (b"-5", None),
        (b"+3", None),
        (b"1.5", None),
        (b"1e3", None),
        (b"5 s", None),
        (b"5, 9", None),
        (b"", None),
        (b" ", None),
        (b"soon", None),
        ("٣", None),  # a digit, but no ASCII one
        (b"\xff\xfe", None),
        (b"\xb2", None),
        (b"99999999999999999999", FAR),
        (b"9" * 100_000, FAR),
        (b"Wed, 21 Oct 2015 07:28:00 GMT", 0.0),
        (b"Wed, 21 Oct 2037 07:28:00 GMT", IN_2037 - NOW),
        (b"Wednesday, 21-Oct-37 07:28:00 GMT", IN_2037 - NOW),
        (b"Wed Oct 21 07:28:00 2037", IN_2037 - NOW),
        (b"Sun May  5 12:00:09 2024", 9.0),
        (b"Sun, 05 May 2024 12:00:60 GMT", 59.0),
        (b"Sunday, 06-Nov-94 08:49:37 GMT", 0.0),
        (b"Wed, 32 Oct 2037 07:28:00 GMT", None),
        (b"Wed, 00 Oct 2037 07:28:00 GMT", None),
        (b"Wed, 21 Okt 2037 07:28:00 GMT", None),
        (b"Wed, 21 Oct 2037 25:28:00 GMT", None),
        (b"Wed, 21 Oct 0000 07:28:00 GMT", None),
        (b"Wed, 21 Oct 2037 07:28:00 CET", None),
        (b"Wed, 21 Oct 2037 07:28:00", None),
        (b"2037-10-21T07:28:00Z", None),
        ([b"5", b"9"], 9.0),
        ([b"soon", b"5"], 5.0),
        ([b"soon", b"-1"], None),
        ([], None),
    ],
)
def test_values(value: bytes | str | list[bytes], wait: float | None) -> None:
    """Digits or one of three dates; anything else is absent; of several lines the longest wait counts."""
    assert parse_retry_after(value, NOW) == wait


def test_a_date_is_measured_against_the_servers_own_clock() -> None:
    """Ours may be minutes off."""
    server_now = parse_http_date(b"Sun, 05 May 2024 11:50:00 GMT", NOW)
    assert server_now == NOW - 600
    assert parse_retry_after(b"Sun, 05 May 2024 11:50:30 GMT", NOW) == 0
    assert parse_retry_after(b"Sun, 05 May 2024 11:50:30 GMT", NOW, server_now) == 30
    assert parse_retry_after(b"30", NOW, server_now) == 30


def test_two_digits_of_a_year_are_at_most_fifty_years_ahead() -> None:
    """RFC 9110, 5.6.7."""
    for two_digits, year in (("74", 2074), ("75", 1975), ("23", 2023)):
        epoch = parse_http_date(f"Sunday, 06-Nov-{two_digits} 08:49:37 GMT", NOW)
        assert epoch == datetime(year, 11, 6, 8, 49, 37, tzinfo=timezone.utc).timestamp()


_header = st.one_of(
    st.binary(),
    st.from_regex(rb"[-+]?[0-9]{1,400}(\.[0-9]+)?"),
    st.from_regex(rb"[A-Z][a-z]{2,8},? [0-9]{1,2}[- ][A-Z][a-z]{2}[- ][0-9]{1,4} [0-9:]{5,9} (GMT|[A-Z]+)?"),
    st.from_regex(rb"(Mon|Sunday), [0-9]{2}[- ](Jan|Feb)[- ]([0-9]{2}){1,2} [0-9]{2}:[0-9]{2}:[0-9]{2} GMT"),
)


@given(_header | st.text() | st.lists(_header), _header)
def test_any_bytes_give_a_wait_or_nothing(value: bytes | str | list[bytes], date: bytes) -> None:
    """Never an error, never negative, never NaN or endless."""
    wait = parse_retry_after(value, NOW, parse_http_date(date, NOW))
    assert wait is None or (0 <= wait <= FAR and math.isfinite(wait))
