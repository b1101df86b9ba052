"""A duplicate filter that is exact, small, and survives ``kill -9``."""

from scrapy_ha.dupefilter.component import BloomDupeFilter

__all__ = ["BloomDupeFilter"]
