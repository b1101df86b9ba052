"""What all tests share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from collections.abc import Iterator

# A busy machine is no failure; the limit on the whole test remains.
settings.register_profile("scrapy_ha", deadline=None)
settings.load_profile("scrapy_ha")


@pytest.fixture(scope="session", autouse=True)
def _elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Run in an empty directory: ``python -c`` and ``python -m`` look for modules in theirs first,
    and would find the source tree in place of what is installed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("cwd"))
        yield
