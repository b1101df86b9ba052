"""LevelDB's client, under whichever of its two names is installed.

``plyvel`` ships wheels up to CPython 3.12; from 3.13 on the same API comes from ``plyvel-next``,
whose module is ``plyvel_next``. Only what opens LevelDB imports this module, so that everything
else works without either.
"""

from __future__ import annotations

from scrapy_ha.errors import ClientMissing

try:
    import plyvel
except ImportError as missing:
    try:
        import plyvel_next as plyvel
    except ImportError:
        raise ClientMissing(
            "LevelDB's client is not there, so requests cannot be kept in the embedded store: "
            f"pip install plyvel, or plyvel-next from Python 3.13 on ({missing})"
        ) from missing

__all__ = ["plyvel"]
