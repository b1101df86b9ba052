"""Items kept on disk by themselves."""

from scrapy_ha.pipelines.mongo import MongoPipeline

__all__ = ["MongoPipeline"]
