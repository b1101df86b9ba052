from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from scrapy import Request, Spider
from scrapy.linkextractors import LinkExtractor

from example.items import Page

if TYPE_CHECKING:
    from collections.abc import Iterator

    from scrapy.http import TextResponse


class DocsSpider(Spider):
    """Follows every link within one site; one item per page."""

    name = "docs"

    def __init__(self, url: str = "http://127.0.0.1:8000/", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.start_urls = [url]
        self.own_links = LinkExtractor(allow_domains=urlsplit(url).netloc)

    def parse(self, response: TextResponse) -> Iterator[Page | Request]:
        yield Page(
            url=response.url,
            title=response.css("title::text").get(default="").strip(),
            links=len(response.css("a[href]")),
            text_length=sum(map(len, response.css("body *::text").getall())),
        )
        yield from response.follow_all(self.own_links.extract_links(response))
