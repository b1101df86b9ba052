"""What is built and shipped."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

import scrapy_ha

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The sdist and the wheel, the latter built from the former, of a copy of the tree."""
    tree, out = tmp_path_factory.mktemp("tree"), tmp_path_factory.mktemp("out")
    for name in ("setup.cfg", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tree)
    for name in ("scrapy_ha", "tests"):
        shutil.copytree(ROOT / name, tree / name, ignore=shutil.ignore_patterns("__pycache__", "*.pyc"))
    done = subprocess.run(
        [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(tree)],
        cwd=out,
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (sdist,), (wheel,) = out.glob("*.tar.gz"), out.glob("*.whl")
    return sdist, wheel


def _sources() -> set[str]:
    """Every file of the package that belongs into the wheel."""
    return {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "scrapy_ha").rglob("*")
        if path.is_file() and path.suffix != ".pyc"
    }


def _metadata(wheel: Path) -> dict[str, list[str]]:
    with zipfile.ZipFile(wheel) as archive:
        name = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        message = Parser().parsestr(archive.read(name).decode())
    return {key: message.get_all(key, []) for key in message}


def test_wheel_holds_the_package_and_nothing_else(built: tuple[Path, Path]) -> None:
    """Every module, ``py.typed`` and every Lua script; no test, no example."""
    with zipfile.ZipFile(built[1]) as archive:
        names = set(archive.namelist())
    inside = {name for name in names if ".dist-info/" not in name}
    assert inside == _sources()
    assert "scrapy_ha/py.typed" in inside
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in names)


def test_sdist_holds_the_package(built: tuple[Path, Path]) -> None:
    """With what is needed to build it again, and without generated files."""
    with tarfile.open(built[0]) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert _sources() | {"setup.cfg", "pyproject.toml", "LICENSE", "README.md"} <= names
    assert not [name for name in names if "__pycache__" in name]


def test_metadata(built: tuple[Path, Path]) -> None:
    """Name, version, Python and licence as announced."""
    metadata = _metadata(built[1])
    assert metadata["Name"] == ["scrapy-ha"]
    assert metadata["Version"] == [scrapy_ha.__version__]
    assert metadata["Requires-Python"] == [">=3.10"]
    assert metadata["License-Expression"] == ["BSD-3-Clause"]


@pytest.mark.parametrize(
    ("python", "leveldb"),
    [("3.10", "plyvel"), ("3.12", "plyvel"), ("3.13", "plyvel-next"), ("3.14", "plyvel-next")],
)
def test_requirements(built: tuple[Path, Path], python: str, leveldb: str) -> None:
    """One LevelDB client for each Python, and the rest for all."""
    requirements = [Requirement(text) for text in _metadata(built[1])["Requires-Dist"]]
    environment = {"python_version": python, "extra": ""}
    needed = {each.name for each in requirements if each.marker is None or each.marker.evaluate(environment)}
    others = {
        "bitarray",
        "google-crc32c",
        "itemadapter",
        "msgpack",
        "msgspec",
        "prometheus-client",
        "pybloom-live",
        "pymongo",
        "redis",
        "scrapy",
        "scrapy-redis",
    }
    assert needed == {leveldb, *others}
    scrapy = next(each for each in requirements if each.name == "scrapy")
    assert scrapy.specifier.contains("2.13.0")
    assert not scrapy.specifier.contains("2.12.0")


def test_oldest_dependencies_are_the_lower_bounds(built: tuple[Path, Path]) -> None:
    """``make oldest`` installs exactly what the metadata promise to work."""
    lines = (ROOT / "tests" / "oldest.txt").read_text(encoding="utf-8").splitlines()
    pinned = [Requirement(line) for line in lines if line and not line.startswith("#")]
    oldest = {each.name: Version(str(each.specifier).removeprefix("==")) for each in pinned}
    required = [Requirement(text) for text in _metadata(built[1])["Requires-Dist"] if "extra ==" not in text]
    lower = {each.name: Version(str(each.specifier).removeprefix(">=")) for each in required}
    del lower["plyvel-next"]  # newer than the Pythons that the oldest set is for
    assert {name: oldest.get(name) for name in lower} == lower


def test_command_entry_point(built: tuple[Path, Path]) -> None:
    """``scrapy ha`` exists as soon as the package is installed."""
    with zipfile.ZipFile(built[1]) as archive:
        name = next(name for name in archive.namelist() if name.endswith(".dist-info/entry_points.txt"))
        lines = archive.read(name).decode().split("\n")
    assert [line for line in lines if line] == ["[scrapy.commands]", "ha = scrapy_ha.commands.ha:Command"]


@pytest.mark.skipif("SCRAPY_HA_WHEEL" not in os.environ, reason="only `make test` installs the wheel")
def test_the_suite_meets_the_installed_wheel() -> None:
    """In this process and in those that the tests start: not the source tree beside the tests."""
    installed = Path(sysconfig.get_path("purelib"))
    assert Path(scrapy_ha.__file__).parent == installed / "scrapy_ha"
    code = "import scrapy_ha; print(scrapy_ha.__file__)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert Path(found.stdout.strip()).parent == installed / "scrapy_ha"
