"""The contract of :class:`scrapy_ha.typing.Frontier`, as tests that every store passes."""

from __future__ import annotations

from scrapy_ha.testing._base import MakeFrontier
from scrapy_ha.testing._giving_up import GivingUp
from scrapy_ha.testing._leasing import Leasing
from scrapy_ha.testing._offering import Offering
from scrapy_ha.testing._recovering import Recovering
from scrapy_ha.testing._settling import Settling

__all__ = ["FrontierContract", "MakeFrontier"]


class FrontierContract(Offering, Leasing, Settling, GivingUp, Recovering):
    """Derive a class named ``Test…`` and give it the store::

        class TestMyStore(FrontierContract):
            shared = True  # several workers at once

            @pytest.fixture
            def make(self, clock):
                def make(worker="a", order="fifo", max_deliveries=5, fresh=False, **limits):
                    return MyFrontier(...)
                return make

            def crash(self, frontier):
                ...  # end its worker without a farewell

    ``drive`` runs a test on an asyncio event loop of its own; override it for another one.
    """
