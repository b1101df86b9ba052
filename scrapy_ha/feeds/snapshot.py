"""A copy of an item as it is now."""

from __future__ import annotations

import copy
from typing import Any

from itemadapter import ItemAdapter
from scrapy.item import Item


def snapshot(item: Any) -> Any:
    """A copy of *item* that later changes to it do not reach: spiders fill one object again and again.

    Containers and items within it are copied. Everything else is taken as unchangeable, and never
    followed: it may lead to the whole crawler. What cannot be copied is returned itself.
    """
    try:
        return _copy(item)
    except Exception:  # what an item class raises when it is copied is its own affair
        return item


def _copy(value: Any) -> Any:
    cls = type(value)
    if cls is str:
        return value
    if cls is dict:
        return {key: _copy(one) for key, one in value.items()}
    if cls is list:
        return [_copy(one) for one in value]
    if cls is tuple:
        return tuple([_copy(one) for one in value])
    if cls is set or cls is bytearray:
        return value.copy()
    if isinstance(value, Item):
        twin = value.copy()
        for name, one in value.items():
            twin[name] = _copy(one)
        return twin
    if not isinstance(value, _PLAIN) and ItemAdapter.is_item(value):
        twin = copy.copy(value)
        fields = ItemAdapter(twin)
        for name, one in list(fields.items()):
            inner = _copy(one)
            if inner is not one:
                fields[name] = inner
        return twin
    return value


_PLAIN = (int, float, bytes, type(None))
