"""Retries what cannot be decompressed, which no other middleware gets to see."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from scrapy.downloadermiddlewares.httpcompression import HttpCompressionMiddleware
from scrapy.exceptions import IgnoreRequest

from scrapy_ha.run import run_of

if TYPE_CHECKING:
    from scrapy import Request, Spider
    from scrapy.crawler import Crawler
    from scrapy.http import Response
    from typing_extensions import Self


class RetryingHttpCompressionMiddleware(HttpCompressionMiddleware):
    """Scrapy's, in its place (590); a body that is garbled is a failed download, of class ``decode``.

    Scrapy hands such a failure to no other middleware, as it comes while the response passes them.
    Whether and when it is retried is up to
    :class:`~scrapy_ha.retry.ClassifiedRetryMiddleware`; without that, this is Scrapy's middleware.
    """

    _crawler: Crawler

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        made: Self = super().from_crawler(crawler)
        made._crawler = crawler
        return made

    def process_response(self, request: Request, response: Response, spider: Spider | None = None) -> Any:
        try:
            return super().process_response(request, response, *(() if spider is None else (spider,)))
        except IgnoreRequest:  # too large: Scrapy's verdict, and final
            raise
        except Exception as error:
            failed = run_of(self._crawler).failed
            if failed is None:
                raise
            return _retry(failed(request, error), error)


async def _retry(outcome: Any, error: Exception) -> Request:
    """The request that *outcome* is or comes to; raises *error* if it is none."""
    retry: Request | None = await outcome if hasattr(outcome, "__await__") else outcome
    if retry is None:
        raise error
    return retry
