"""Names of download slots, in the form in which the package keeps them."""

from __future__ import annotations

from hashlib import sha1
from typing import TYPE_CHECKING, Any

from scrapy.core.downloader import Downloader

from scrapy_ha.fingerprint import host_of

if TYPE_CHECKING:
    from scrapy import Request

NAME_LIMIT = 255
"""Longer names, which no host has, are shortened."""


class SlotNames:
    """Maps requests to the names of their download slots.

    Args:
        downloader: The engine's; ``None``: there is none yet, and slots are hosts.
    """

    def __init__(self, downloader: Any) -> None:
        self._downloader = downloader
        self._are_hosts = self._downloader is None or (
            type(self._downloader).get_slot_key is Downloader.get_slot_key
            and not self._downloader.ip_concurrency
        )

    def of(self, request: Request) -> str:
        """The slot's name. One that a redirect has brought along from the host before is taken off
        *request*: Scrapy's downloader notes it in ``meta``, and the page is another host's now."""
        name = request.meta.get(Downloader.DOWNLOAD_SLOT)
        if name is not None and _is_brought_along(request, name):
            del request.meta[Downloader.DOWNLOAD_SLOT]
            name = None
        if name is None:
            name = host_of(request.url) if self._are_hosts else self._downloader.get_slot_key(request)
        name = str(name)
        if len(name) <= NAME_LIMIT:
            return name
        return f"{name[:NAME_LIMIT]}#{sha1(name.encode(errors='surrogatepass')).hexdigest()}"


def _is_brought_along(request: Request, name: Any) -> bool:
    former = request.meta.get("redirect_urls")
    if not isinstance(former, list) or not former or not isinstance(former[-1], str):
        return False
    return bool(name == host_of(former[-1]) != host_of(request.url))
