"""``scrapy ha``: look at, export and repair what a crawl keeps."""
