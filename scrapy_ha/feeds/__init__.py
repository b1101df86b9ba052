"""Feed exports that hold each item exactly once, also after ``kill -9``."""

from scrapy_ha.feeds.exporter import HAFeedExporter

__all__ = ["HAFeedExporter"]
