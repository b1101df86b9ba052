"""The scheduler that keeps every request in the frontier until it is done."""

from scrapy_ha.scheduler.component import HAScheduler

__all__ = ["HAScheduler"]
