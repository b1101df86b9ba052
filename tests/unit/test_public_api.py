"""The package's public names, and what importing it does and does not do."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import scrapy_ha
from scrapy_ha.settings import SETTINGS

PACKAGE = Path(scrapy_ha.__file__).parent
MODULES = sorted(
    ".".join(("scrapy_ha", *path.relative_to(PACKAGE).with_suffix("").parts)).removesuffix(".__init__")
    for path in PACKAGE.rglob("*.py")
)


def run(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "error::DeprecationWarning:scrapy_ha", "-c", code, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_every_public_name_is_there() -> None:
    """``__all__`` is sorted, without repetition, and each name in it exists."""
    assert list(scrapy_ha.__all__) == sorted(set(scrapy_ha.__all__))
    for name in scrapy_ha.__all__:
        assert getattr(scrapy_ha, name)


def test_no_other_public_name() -> None:
    """What can be imported from the package and is not a submodule stands in ``__all__``."""
    names = {name for name in vars(scrapy_ha) if not name.startswith("_")}
    submodules = {name.split(".")[1] for name in MODULES[1:]}
    assert names - submodules - {"annotations"} == set(scrapy_ha.__all__) - submodules - {"__version__"}


IMPORT_EACH = """
import importlib, sys
from multiprocessing import get_context
import scrapy  # once, not in every process

def one(name):
    importlib.import_module(name)
    sys.exit("the reactor was installed" if "twisted.internet.reactor" in sys.modules else 0)

if __name__ == "__main__":
    failed = []
    for name in sys.argv[1:]:
        process = get_context("fork").Process(target=one, args=(name,))
        process.start()
        process.join()
        if process.exitcode:
            failed.append(name)
    sys.exit(f"failed: {failed}" if failed else 0)
"""


def test_every_module_imports_on_its_own() -> None:
    """In an interpreter where nothing else of the package is loaded, without a reactor."""
    done = run(IMPORT_EACH, *MODULES)
    assert done.returncode == 0, done.stderr


WITHOUT_LEVELDB = """
import importlib, sys
sys.modules["plyvel"] = sys.modules["plyvel_next"] = None
for name in sys.argv[1:]:
    importlib.import_module(name)
from scrapy_ha.errors import StoreError
try:
    import scrapy_ha.frontier.leveldb
except StoreError as error:
    print(error)
"""


def test_without_leveldb_only_its_store_is_missing() -> None:
    """Everything else imports, and the store says in one line what to install."""
    needing = (
        "scrapy_ha.frontier.",
        "scrapy_ha.leveldb.",
        "scrapy_ha.seen.store",
        "scrapy_ha.seen.reader",
        "scrapy_ha._plyvel",
    )
    rest = [name for name in MODULES if not name.startswith(needing)]
    done = run(WITHOUT_LEVELDB, *rest)
    assert done.returncode == 0, done.stderr
    assert "pip install plyvel" in done.stdout
    assert len(done.stdout.splitlines()) == 1


def _literals(tree: ast.AST) -> list[tuple[int, str]]:
    """``HA_`` names in code that are not an argument of ``read``; docstrings are no code."""
    parents = {child: parent for parent in ast.walk(tree) for child in ast.iter_child_nodes(parent)}
    found = []
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Constant) and isinstance(node.value, str)):
            continue
        if node.value not in SETTINGS or isinstance(parents[node], ast.Expr):
            continue
        call = parents[node]
        if isinstance(call, ast.Call) and ast.unparse(call.func).rpartition(".")[2] == "read":
            continue
        found.append((node.lineno, node.value))
    return found


@pytest.mark.parametrize(
    "path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: str(path.relative_to(PACKAGE))
)
def test_settings_are_named_only_to_read_them(path: Path) -> None:
    """A default or a second way to read a setting cannot creep in outside ``settings.py``."""
    if path.relative_to(PACKAGE) != Path("settings.py"):
        assert _literals(ast.parse(path.read_text(encoding="utf-8"))) == []


def test_the_literal_check_sees_what_it_should() -> None:
    """It catches ``settings.get("HA_DIR")`` and lets ``read(settings, "HA_DIR")`` pass."""
    name = next(iter(SETTINGS))
    assert _literals(ast.parse(f'settings.get("{name}")')) == [(1, name)]
    assert _literals(ast.parse(f'read(settings, "{name}")\n"{name}"')) == []


def test_marked_as_typed() -> None:
    """Type checkers see the annotations."""
    assert (PACKAGE / "py.typed").is_file()
    assert importlib.import_module("scrapy_ha.typing").Frontier
