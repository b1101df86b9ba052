"""The reference page of the stats names those in the code, and no others."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import scrapy_ha

PACKAGE = Path(scrapy_ha.__file__).parent
PAGE = Path(__file__).parents[2] / "docs" / "reference" / "stats.rst"


def _named(path: Path) -> set[str]:
    """Names of stats in a module; a part that varies reads ``<…>``."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    composed = [node for node in ast.walk(tree) if isinstance(node, ast.JoinedStr)]
    pieces = {part for node in composed for part in node.values}
    names = {
        "".join(str(part.value) if isinstance(part, ast.Constant) else "<…>" for part in node.values)
        for node in composed
    } | {
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in pieces
    }
    return {name for name in names if re.fullmatch(r"ha(/[\w<…>]+){2,}", name)}


def test_stats_are_documented() -> None:
    """Both ways."""
    in_code = set().union(*map(_named, PACKAGE.rglob("*.py")))
    entries = re.findall(r"^   \* - ``(ha/.+?)``$", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert len(entries) == len(set(entries))
    assert {re.sub(r"<\w+>", "<…>", entry) for entry in entries} == in_code
    assert in_code
