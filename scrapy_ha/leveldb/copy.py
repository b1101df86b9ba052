"""Reads a LevelDB directory without opening it: also while its owner has it open.

LevelDB lets in one process. But tables that its manifest names never change, and its log and manifest
only grow. So a copy of the database, with hard links for the tables, is made in no time, takes no space,
and can be opened beside its owner. The directory itself is not touched.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from scrapy_ha.errors import StoreDamaged, StoreError
from scrapy_ha.leveldb.database import Database
from scrapy_ha.leveldb.manifest import Manifest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from scrapy_ha.leveldb.kind import Kind

TRIES = 50
"""Copies begun until one did not miss a file that went out of use meanwhile."""
CURRENT_LIMIT = 100
MANIFEST_LIMIT = 2**26
"""Bytes that are read of either; a table takes some hundred bytes of a manifest."""
_MANIFEST = re.compile(r"MANIFEST-\d+")
_TABLES = (".ldb", ".sst")


def is_database(path: Path) -> bool:
    """Whether *path* looks like the directory of a database."""
    return (path / "FORMAT.json").is_file() and (path / "db").is_dir()


@contextmanager
def copied(path: Path, kind: Kind) -> Iterator[Database]:
    """The database in the directory *path* as it is at this moment, open and apart from it.

    Raises:
        StoreDamaged: It is none of this kind, or is damaged, or of a newer format.
        StoreError: It cannot be read, or nowhere is space for a copy.
    """
    if not is_database(path):
        raise StoreDamaged(f"{path} is not the directory of a {kind.word} ({kind.name!r})")
    with _copy(path) as copy:
        db = Database(copy, kind)
        try:
            db.open()
            with db.translated("read"):
                yield db
        except StoreError as error:  # it names the copy
            raise type(error)(str(error).replace(str(copy), str(path))) from error
        finally:
            db.close()


@contextmanager
def _copy(path: Path) -> Iterator[Path]:
    """A copy of the directory *path*, beside it if that may be written to; gone afterwards."""
    try:
        holder = Path(tempfile.mkdtemp(prefix=".scrapy-ha-copy-", dir=path.parent))
    except OSError:
        holder = Path(tempfile.mkdtemp(prefix="scrapy-ha-copy-"))
    try:
        yield _copy_whole(path, holder)
    finally:
        shutil.rmtree(holder, ignore_errors=True)


def _copy_whole(path: Path, holder: Path) -> Path:
    try:
        for attempt in range(TRIES):
            copy = holder / str(attempt)
            try:
                _copy_once(path, copy)
            except FileNotFoundError:  # no longer in use
                shutil.rmtree(copy)
            else:
                return copy
    except ValueError as error:
        raise StoreDamaged(f"{path} cannot be read: its manifest is damaged ({error})") from None
    except OSError as error:
        raise StoreError(f"{path} cannot be copied in order to be read: {error}") from error
    raise StoreError(f"{path} is not whole, or changes too fast to be copied")


def _copy_once(source: Path, target: Path) -> None:
    """Copy a database as it is at one moment: that of its manifest, and what the logs hold beyond it.

    Raises:
        FileNotFoundError: A file is missing: it changed meanwhile, or it is not whole.
        ValueError: The manifest is none.
    """
    (target / "db").mkdir(parents=True)
    shutil.copyfile(source / "FORMAT.json", target / "FORMAT.json")
    source, target = source / "db", target / "db"
    current = _read(source / "CURRENT", CURRENT_LIMIT)
    name = current.decode("ascii").rstrip("\n")
    if not _MANIFEST.fullmatch(name):
        raise ValueError(f"CURRENT names {name[:50]!r}")
    content = _read(source / name, MANIFEST_LIMIT)
    manifest = Manifest.read(content)
    (target / "CURRENT").write_bytes(current)
    (target / name).write_bytes(content)
    for number in manifest.tables:
        # LevelDB writes over a file with a number that is not given yet, and a link would lead that
        # to the original. Tables that are being written have such numbers.
        if number >= manifest.next:
            raise ValueError(f"table {number} has a number that is not given yet")
        _link_table(source, target, number)
    logs = [int(log.stem) for log in source.glob("*.log") if log.stem.isascii() and log.stem.isdigit()]
    if manifest.log not in logs:
        raise FileNotFoundError(manifest.log)
    for number in sorted(logs):
        file = source / f"{number:06}.log"
        # One that is gone went out of use: what it held may be missing from this manifest.
        if number >= manifest.log and (file.is_file() or not os.path.lexists(file)) and not file.is_symlink():
            shutil.copyfile(file, target / file.name)


def _link_table(source: Path, target: Path, number: int) -> None:
    for suffix in _TABLES:
        table = source / f"{number:06}{suffix}"
        if table.is_file() and not table.is_symlink():
            try:
                os.link(table, target / table.name)
            except FileNotFoundError:
                raise
            except OSError:  # another file system, or one without links
                shutil.copyfile(table, target / table.name)
            return
    raise FileNotFoundError(f"table {number}")


def _read(file: Path, limit: int) -> bytes:
    if file.is_symlink() or (file.exists() and not file.is_file()):
        raise ValueError(f"{file.name} is no file")
    with file.open("rb") as opened:
        content = opened.read(limit + 1)
    if len(content) > limit:
        raise ValueError(f"{file.name} has more than {limit} bytes")
    return content
