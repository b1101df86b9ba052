"""High availability for Scrapy: crawls that survive ``kill -9`` without losing a page or an item."""

from scrapy_ha._version import __version__
from scrapy_ha.addon import Addon

__all__ = ["Addon", "__version__"]
