from functional.conftest import make_crawl

__all__ = ["make_crawl"]
