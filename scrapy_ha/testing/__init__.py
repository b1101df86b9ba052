"""For tests of this package, and of stores that others write for it.

A new store takes a fixture, not tests: derive a class from :class:`FrontierContract` and one from
:class:`FrontierMachine`. Needs pytest and Hypothesis (the ``test`` extra).
"""

from __future__ import annotations

import pytest

# Before they are imported: so that a failing assertion in them shows its values.
pytest.register_assert_rewrite(
    *(f"{__name__}.{part}" for part in ("_base", "_leasing", "_offering", "_recovering", "_settling")),
    *(f"{__name__}.{part}" for part in ("_model", "machine")),
)

from scrapy_ha.testing.clock import FakeClock  # noqa: E402
from scrapy_ha.testing.contract import FrontierContract, MakeFrontier  # noqa: E402
from scrapy_ha.testing.machine import FrontierMachine  # noqa: E402

__all__ = ["FakeClock", "FrontierContract", "FrontierMachine", "MakeFrontier"]
