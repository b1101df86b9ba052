"""Write reference/settings.rst from the declarations in :mod:`scrapy_ha.settings`.

Run it after a change there: ``python docs/settings_page.py``.
"""

from __future__ import annotations

import textwrap
from pathlib import Path

from scrapy_ha.settings import SETTINGS, Setting

PAGE = Path(__file__).parent / "reference" / "settings.rst"

HEAD = """\
.. Written by docs/settings_page.py from scrapy_ha/settings.py.

Settings
========

Each may stand in ``settings.py`` or be given as text (``scrapy crawl -s HA_FSYNC=always``,
scrapyd): it means the same. A value that is not allowed ends the crawl at its start, with one
line that names the setting, the value and what is allowed. A ``HA_`` name that does not exist is
reported with the nearest one that does.

Besides these, the parts read settings that Scrapy and its plugins have long had: ``JOBDIR``,
``RETRY_ENABLED``, ``RETRY_TIMES``, ``RETRY_HTTP_CODES``, ``RETRY_EXCEPTIONS``,
``RETRY_PRIORITY_ADJUST`` and ``MONGO_URI``.
"""


def entry(setting: Setting) -> str:
    """The section of one setting."""
    default = f'"{setting.default}"' if isinstance(setting.default, str) else repr(setting.default)
    return "\n".join(
        [
            f".. setting:: {setting.name}",
            "",
            setting.name,
            "-" * len(setting.name),
            "",
            f":Default: ``{default}``",
            f":Allowed: {setting.allowed}",
            "",
            *textwrap.wrap(setting.meaning, 95, break_long_words=False, break_on_hyphens=False),
        ]
    )


def page() -> str:
    return "\n\n".join([HEAD.rstrip(), *map(entry, SETTINGS.values())]) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
