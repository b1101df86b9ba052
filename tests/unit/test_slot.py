"""Which slot a request is of."""

from __future__ import annotations

from typing import Any

import pytest
from scrapy import Request

from scrapy_ha.slot import NAME_LIMIT, SlotNames


@pytest.mark.parametrize(
    ("url", "meta", "slot"),
    [
        ("http://B.test/", {}, "b.test"),
        ("http://b.test/", {"download_slot": "mine"}, "mine"),
        # Scrapy's downloader notes the slot of the first request, and a redirect carries it on.
        ("http://b.test/", {"download_slot": "a.test", "redirect_urls": ["http://a.test/"]}, "b.test"),
        ("http://b.test/", {"download_slot": "mine", "redirect_urls": ["http://a.test/"]}, "mine"),
        ("http://a.test/2", {"download_slot": "a.test", "redirect_urls": ["http://a.test/"]}, "a.test"),
        ("http://b.test/", {"download_slot": "a.test", "redirect_urls": "a"}, "a.test"),
        ("http://b.test/", {"download_slot": "a.test", "redirect_urls": [1]}, "a.test"),
        ("http://b.test/", {"download_slot": "a.test", "redirect_urls": []}, "a.test"),
    ],
)
def test_slot_of(url: str, meta: dict[str, Any], slot: str) -> None:
    request = Request(url, meta=meta)
    assert SlotNames(None).of(request) == slot
    assert request.meta.get("download_slot") in (None, slot), "the downloader goes by what stands here"


def test_a_long_name_is_shortened() -> None:
    names = {
        SlotNames(None).of(Request("http://a.test/", meta={"download_slot": "x" * n})) for n in (300, 301)
    }
    assert len(names) == 2
    assert all(len(name) < NAME_LIMIT + 50 for name in names)
