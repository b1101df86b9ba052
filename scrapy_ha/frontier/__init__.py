"""The store of all requests that are not done: see :class:`scrapy_ha.typing.Frontier`."""
