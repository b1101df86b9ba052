"""Who may import whom, read from the source with ``ast``; nothing is imported here."""

from __future__ import annotations

import ast
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

import scrapy_ha

PACKAGE = Path(scrapy_ha.__file__).parent

PLAIN = {
    "_plyvel": {"plyvel", "plyvel_next"},
    "_version": set[str](),
    "clock": set[str](),
    "crc": {"google_crc32c"},
    "deadletter": set[str](),
    "errors": set[str](),
    "lock": set[str](),
    "typing": set[str](),
}
"""Root modules that know no Scrapy, with their client libraries. Engines may import these alone."""

ROOT = {
    "_values": set[str](),
    "duplicates": {"stats"},
    "fingerprint": set[str](),
    "inflight": {"settings"},
    "lifecycle": {"run", "stats"},
    "loop": set[str](),
    "run": set[str](),
    "seeding": {"loop", "run"},
    "serialize": {"_values", "fingerprint"},
    "settings": set[str](),
    "slot": {"fingerprint"},
    "state": set[str](),
    "stats": set[str](),
}
"""The other root modules, with those of them that they lean on; few, and none in a circle."""

BASES: dict[str, set[str]] = {"leveldb": set(), "seen": {"leveldb"}, "segments": set()}
"""Folders of engines that features build on, with those of them that they lean on."""

COMPONENTS = {
    "checkpoint.extension",
    "checkpoint.journal",
    "checkpoint.parts",
    "dupefilter.component",
    "feeds.exporter",
    "feeds.formats",
    "feeds.snapshot",
    "feeds.storage",
    "pipelines.mongo",
    "retry.configure",
    "retry.decompression",
    "retry.middleware",
    "retry.protection",
    "retry.remedies",
    "retry.reports",
    "retry.timers",
    "scheduler",
}
"""Components, module or whole folder. What else is in a feature's folder is an engine, apart from
its ``__init__``."""

LIBRARIES: dict[str, set[str]] = {
    "frontier.redis": {"msgpack", "redis"},
    "pipelines.document": {"itemadapter"},
    "seen.bloom": {"pybloom_live", "rbloom"},
}
"""Engines that import a client library of their own."""

FREE = {"__init__", "addon", "commands", "testing"}
"""May import anything; nothing imports them."""

CLIENTS = {
    "bson",
    "google_crc32c",
    "plyvel",
    "plyvel_next",
    "prometheus_client",
    "pybloom_live",
    "pymongo",
    "rbloom",
    "redis",
}
"""Client libraries: each is imported in one module, so that its absence is met in one place."""


@dataclass(frozen=True)
class Import:
    module: str
    """The importing module, without the package's name; "" is the package itself."""
    line: int
    target: str
    """What is imported, as deep as it is a module or a name of one."""
    annotation: bool
    """Under ``TYPE_CHECKING``."""
    in_function: bool

    @property
    def library(self) -> str:
        return self.target.partition(".")[0]

    @property
    def own(self) -> str | None:
        """The imported module of this package, without the package's name."""
        parts = self.target.split(".")
        if parts[0] != "scrapy_ha":
            return None
        while len(parts) > 1 and not _exists(parts[1:]):
            parts.pop()
        return ".".join(parts[1:]) or "__init__"

    def __str__(self) -> str:
        return f"{self.module}:{self.line} imports {self.target}"


def _exists(parts: list[str]) -> bool:
    path = PACKAGE.joinpath(*parts)
    return path.is_dir() or path.with_suffix(".py").is_file()


def _name(path: Path) -> str:
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1]) if parts[-1] == "__init__" and len(parts) > 1 else ".".join(parts)


class _Collector(ast.NodeVisitor):
    def __init__(self, module: str, package: str) -> None:
        self.found: list[Import] = []
        self._module = module
        self._package = package
        self._annotation = False
        self._in_function = False

    def _add(self, node: ast.stmt, target: str) -> None:
        self.found.append(Import(self._module, node.lineno, target, self._annotation, self._in_function))

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            self._add(node, alias.name)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        base = node.module or ""
        if node.level:
            above = self._package.split(".")
            base = ".".join([*above[: len(above) - node.level + 1], *filter(None, [base])])
        for alias in node.names:
            self._add(node, f"{base}.{alias.name}")

    def visit_If(self, node: ast.If) -> None:
        before, self._annotation = self._annotation, ast.unparse(node.test).endswith("TYPE_CHECKING")
        for child in node.body:
            self.visit(child)
        self._annotation = before
        for child in node.orelse:
            self.visit(child)

    def _visit_function(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        before, self._in_function = self._in_function, True
        self.generic_visit(node)
        self._in_function = before

    visit_FunctionDef = _visit_function
    visit_AsyncFunctionDef = _visit_function


@cache
def imports() -> list[Import]:
    found: list[Import] = []
    for path in sorted(PACKAGE.rglob("*.py")):
        package = ".".join(("scrapy_ha", *path.parent.relative_to(PACKAGE).parts))
        collector = _Collector(_name(path), package)
        collector.visit(ast.parse(path.read_text(encoding="utf-8"), str(path)))
        found += collector.found
    return found


def modules() -> set[str]:
    return {_name(path) for path in PACKAGE.rglob("*.py")}


def features() -> set[str]:
    return {path.parent.name for path in PACKAGE.glob("*/__init__.py")} - FREE - {*BASES}


def part(module: str) -> str:
    """The root module or feature folder that *module* belongs to."""
    return module.partition(".")[0]


def is_engine(module: str) -> bool:
    above = {module[:dot] for dot in range(len(module)) if module[dot] == "."}
    if part(module) in BASES:
        return True
    return part(module) in features() and bool(above) and not COMPONENTS & {module, *above}


def test_every_module_has_its_place() -> None:
    """A new root module or feature folder is put into one of the tables above, an old one taken out."""
    roots = {module for module in modules() if "." not in module} - features() - {*BASES}
    assert roots - FREE == {*PLAIN, *ROOT}
    for name in {*COMPONENTS, *LIBRARIES}:
        assert _exists(name.split(".")) or part(name) not in features(), name
    unmarked = [folder.name for folder in PACKAGE.iterdir() if any(folder.glob("*.py"))]
    assert {*unmarked} <= {*features(), *FREE, *BASES}, "a folder without __init__.py"


def test_nothing_imports_the_add_on_or_the_commands() -> None:
    """They stand at the top, and only the package's public names reach the add-on."""
    top = {"addon", "commands"}
    allowed = FREE | {""}
    assert not [
        str(found)
        for found in imports()
        if found.own is not None and part(found.own) in top and part(found.module) not in allowed
    ]


def test_features_do_not_import_one_another() -> None:
    """Not even for annotations: a collaborator comes by class path, typed by a Protocol."""
    assert not [
        str(found)
        for found in imports()
        if part(found.module) in features()
        and found.own is not None
        and part(found.own) in features() - {part(found.module)}
    ]


def test_components_import_their_folder_root_modules_and_scrapy() -> None:
    """And nothing that stands above them."""
    allowed = {*PLAIN, *ROOT, *BASES, *features()}
    assert not [
        str(found)
        for found in imports()
        if part(found.module) in features() and found.own is not None and part(found.own) not in allowed
    ]


def test_engines_know_no_scrapy() -> None:
    """They import the plain root modules, the standard library and their own client library."""
    wrong = []
    for found in imports():
        if not is_engine(found.module):
            continue
        if found.own is None:
            fine = found.library in {*sys.stdlib_module_names, *LIBRARIES.get(found.module, ())}
        else:
            fine = part(found.own) in PLAIN or is_engine(found.own)
        if not fine:
            wrong.append(str(found))
    assert not wrong
    assert any(is_engine(module) for module in modules())


def test_plain_modules_know_no_scrapy() -> None:
    """At run time; an annotation may name a Scrapy class."""
    wrong = []
    for found in imports():
        if found.module not in PLAIN or found.annotation:
            continue
        if found.own is None:
            fine = found.library in {*sys.stdlib_module_names, *PLAIN[found.module]}
        else:
            fine = found.own in {"errors", "typing"}
        if not fine:
            wrong.append(str(found))
    assert not wrong


def test_bases_lean_on_few_others() -> None:
    """On plain modules and on those that the table names."""
    allowed = {base: {base, *PLAIN, *others} for base, others in BASES.items()}
    assert not [
        str(found)
        for found in imports()
        if (base := part(found.module)) in BASES
        and found.own is not None
        and part(found.own) not in allowed[base]
    ]


def test_root_modules_lean_on_few_others() -> None:
    """On plain ones, on those the table names, and never on a feature."""
    assert not [
        str(found)
        for found in imports()
        if found.module in ROOT
        and not found.annotation
        and found.own is not None
        and found.own not in {*PLAIN, *ROOT[found.module]}
    ]


def test_root_modules_form_no_circle() -> None:
    """The table of who leans on whom can be put into an order."""
    left = {name: set(others) for name, others in ROOT.items()}
    while free := [name for name, others in left.items() if not others & left.keys()]:
        for name in free:
            del left[name]
    assert not left


def test_the_reactor_is_never_imported_with_a_module() -> None:
    """Only :mod:`scrapy_ha.loop` touches it, inside functions: importing installs no reactor."""
    reactor = [found for found in imports() if found.target.startswith("twisted.internet.reactor")]
    assert not [str(found) for found in reactor if found.module != "loop" or not found.in_function]


def test_nothing_that_can_run_stored_bytes_is_imported() -> None:
    """Invariant I8: no pickle and no relative of it."""
    forbidden = {"_pickle", "cPickle", "cloudpickle", "dill", "marshal", "pickle", "shelve"}
    assert not [str(found) for found in imports() if found.library in forbidden]


@pytest.mark.parametrize("client", sorted(CLIENTS))
def test_a_client_library_is_imported_in_one_module(client: str) -> None:
    """At run time; annotations may name its classes elsewhere."""
    users = {found.module for found in imports() if found.library == client and not found.annotation}
    assert len(users) <= 1
