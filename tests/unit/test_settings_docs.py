"""The reference page of the settings and their declarations say the same."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import NamedTuple

import pytest

from scrapy_ha.settings import SETTINGS

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "settings.rst"
HOW = "run: python docs/settings_page.py"


class Documented(NamedTuple):
    default: object
    allowed: str
    meaning: str


def _documented() -> dict[str, Documented]:
    blocks = re.split(r"^\.\. setting:: (\w+)$", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
    found: dict[str, Documented] = {}
    for name, block in zip(blocks[::2], blocks[1::2], strict=True):
        entry = re.fullmatch(
            rf"\s*{name}\n-+\n\n:Default: ``(?P<default>.+)``\n:Allowed: (?P<allowed>.+)\n\n(?P<meaning>.+)",
            block,
            flags=re.DOTALL,
        )
        assert entry is not None, f"{name} is not documented in the usual form"
        assert name not in found, f"{name} is documented twice"
        default = ast.literal_eval(entry["default"])
        found[name] = Documented(default, entry["allowed"], " ".join(entry["meaning"].split()))
    return found


DOCUMENTED = _documented()


def test_the_same_names() -> None:
    """No setting without its entry, no entry without its setting, in the same order."""
    assert list(DOCUMENTED) == list(SETTINGS), HOW


@pytest.mark.parametrize("name", [name for name in SETTINGS if name in DOCUMENTED])
def test_the_same_content(name: str) -> None:
    """Default, range and meaning are those of the declaration."""
    declared, documented = SETTINGS[name], DOCUMENTED[name]
    assert (documented.default, type(documented.default)) == (declared.default, type(declared.default)), HOW
    assert documented.allowed == declared.allowed, HOW
    assert documented.meaning == " ".join(declared.meaning.split()), HOW
    assert documented.meaning.endswith(".")


def test_defaults_are_allowed() -> None:
    """A default passes its own check."""
    for declared in SETTINGS.values():
        assert declared.parse(declared.default) == declared.default
