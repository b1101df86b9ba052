"""A directory with a LevelDB: whose it is, and whether it is one at all."""

from __future__ import annotations

import errno
import json
import logging
import os
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scrapy_ha._plyvel import plyvel
from scrapy_ha.errors import StoreDamaged, StoreError, StoreFull
from scrapy_ha.leveldb.tail import is_whole, torn_tail
from scrapy_ha.lock import DirectoryLock

if TYPE_CHECKING:
    from scrapy_ha.leveldb.kind import Kind

logger = logging.getLogger(__name__)

_NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_NO_SPACE_TEXTS = ("No space left", "quota exceeded", "File too large")
OPTIONS: Mapping[str, Any] = {
    "paranoid_checks": True,
    "bloom_filter_bits": 10,
    "write_buffer_size": 8 * 2**20,
    "lru_cache_size": 16 * 2**20,
    "max_file_size": 16 * 2**20,
    "max_open_files": 128,
}
"""``paranoid_checks`` makes LevelDB report a damaged log where it would else skip records."""


class Directory:
    """``FORMAT.json`` says what the directory is, ``db/`` is LevelDB's, a lock file shows the owner.

    A directory that is not a whole one of this kind and format is refused before anything in it is
    written. A torn end of the newest log, as a power cut leaves it, is cut off; the log as it was is kept
    beside, as ``<log>.torn-<unix time>``.
    """

    def __init__(self, path: Path, kind: Kind, crawl: str | None = None) -> None:
        self.path = path
        self._kind = kind
        self._crawl = crawl
        self._lock = DirectoryLock(path)
        self._db: Any = None

    def open(self) -> Any:
        """The open LevelDB.

        Raises:
            StoreLocked: Another process has it.
            StoreDamaged: It is damaged, of another kind or of a newer format.
            StoreError: The directory cannot be made or read.
        """
        try:
            self._refuse_foreign()
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock.acquire()
        except OSError as error:
            raise StoreError(
                f"{self.path}: cannot be used as the {self._kind.word}'s directory: {error}"
            ) from error
        try:
            self._db = self._open_db()
        except BaseException:
            self._lock.release()
            raise
        return self._db

    def check(self) -> None:
        """Open and close it: raises what :meth:`open` raises, before anything depends on it."""
        self.open()
        self.close()

    def close(self) -> None:
        if self._db is not None:
            self._db.close()
            self._db = None
        self._lock.release()

    def fsync(self) -> None:
        """fsync LevelDB's logs: with them all that was written survives a power cut."""
        newest = self._newest_log()
        size = newest.stat().st_size if newest is not None and newest.exists() else 0
        for log in sorted((self.path / "db").glob("*.log")):
            try:
                _fsync(log)
            except FileNotFoundError:  # LevelDB has moved its content into a table, and synced that
                continue
        _fsync(self.path / "db")
        if newest is not None:
            self._note(newest, size)

    def damaged(self, why: str) -> str:
        return (
            f"The {self._kind.word} in {self.path} cannot be read: {why}. It was left as it is. Move the "
            "directory away to start a new crawl, or bring back a copy of it."
        )

    def _refuse_foreign(self) -> None:
        marker = self.path / "FORMAT.json"
        if not self.path.exists():
            return
        if not self.path.is_dir():
            raise StoreDamaged(
                f"{self.path} is not a directory; the {self._kind.word} needs one of its own (HA_DIR)"
            )
        if not marker.exists():
            own = {self._lock.path.name, "FORMAT.json.new"}
            others = [name for name in os.listdir(self.path) if name not in own]
            if others:
                raise StoreDamaged(
                    f"{self.path} holds files that are not a {self._kind.word}'s (such as "
                    f"{sorted(others)[0]!r}); it was left as it is. Set HA_DIR to another directory, or move "
                    "the files away."
                )
            return
        try:
            content = json.loads(marker.read_bytes())
            kind, version, crawl = content["kind"], content["format"], content.get("crawl")
        except (ValueError, KeyError, TypeError, RecursionError):
            raise StoreDamaged(self.damaged("FORMAT.json is damaged")) from None
        if kind != self._kind.name or not isinstance(version, int):
            raise StoreDamaged(self.damaged(f"FORMAT.json says it is {str(kind)[:80]!r}"))
        if self._crawl is not None and crawl not in (None, self._crawl):
            raise StoreDamaged(
                f"{self.path} holds the data of another crawl, {str(crawl)[:80]!r}; this one is "
                f"{self._crawl!r}. It was left as it is. Give each crawl a directory of its own (HA_DIR) or, "
                "if this is the same crawl under another name, its name (HA_NAMESPACE)."
            )
        if version > self._kind.format:
            raise StoreDamaged(
                self.damaged(
                    f"it has format {version}, and this version of scrapy_ha knows up to {self._kind.format}"
                )
            )

    def _open_db(self) -> Any:
        marker = self.path / "FORMAT.json"
        database = self.path / "db"
        made = marker.exists() and json.loads(marker.read_bytes()).get("made", False)
        if made and not (database / "CURRENT").exists():
            raise StoreDamaged(self.damaged("the file db/CURRENT is missing"))
        if made:
            self._check_log()
        else:
            self._mark(made=False)
        try:
            db = self._connect(create=not made)
        except plyvel.CorruptionError as error:
            raise StoreDamaged(self.damaged(text_of(error))) from error
        except plyvel.Error as error:
            said = text_of(error)
            if is_full(error):
                raise StoreFull(
                    f"{self.path} cannot be opened: {said}; free some space and start again"
                ) from error
            raise StoreDamaged(self.damaged(said)) from error
        if not made:
            self._mark(made=True)
        return db

    def _connect(self, create: bool) -> Any:
        connect = partial(
            plyvel.DB, str(self.path / "db"), create_if_missing=create, **{**OPTIONS, **self._kind.options}
        )
        log = self._newest_log()
        try:
            if log is None or is_whole(log):
                return connect()
        except plyvel.CorruptionError:
            end = torn_tail(log) if log else None
            if log is None or end is None:
                raise
        else:
            end = torn_tail(log)
            if end is None:
                raise StoreDamaged(
                    self.damaged(f"db/{log.name} is damaged, and whole records stand behind it")
                )
        try:
            with self._cut(log, end):
                return connect()
        except plyvel.Error:  # some of them are OSErrors too
            raise
        except OSError as error:
            raise StoreError(
                f"{self.path}: the torn end of {log.name} cannot be cut off: {error}. Free some space and "
                "start the crawl again, or bring back a copy of the directory."
            ) from error

    def _note(self, log: Path, size: int) -> None:
        """Write down how long *log* is at least, for :meth:`_check_log`."""
        new = self.path / "log-size.new"
        new.write_text(f"{log.name} {size}\n")
        new.replace(self.path / "log-size")

    def _check_log(self) -> None:
        """Notice that the newest log is gone or shorter than it was: LevelDB would go back in silence."""
        try:
            name, text = (self.path / "log-size").read_text().split()
            number, size = int(Path(name).stem), int(text)
        except (OSError, ValueError):
            return
        log = self._newest_log()
        if log is None or int(log.stem) < number:
            raise StoreDamaged(self.damaged(f"the file db/{name} is missing"))
        if int(log.stem) == number and log.stat().st_size < size:
            logger.warning(
                "The %s in %s: db/%s has %d bytes, and had %d at least. What was written last is gone: %s",
                self._kind.word,
                self.path,
                name,
                log.stat().st_size,
                size,
                self._kind.lost,
            )

    def _newest_log(self) -> Path | None:
        logs = [log for log in (self.path / "db").glob("*.log") if log.stem.isdigit()]
        return max(logs, key=lambda log: int(log.stem), default=None)

    @contextmanager
    def _cut(self, log: Path, end: int) -> Iterator[None]:
        """Cut *log* to *end* bytes and keep a copy of it; if the block fails, all is as it was."""
        size = log.stat().st_size
        copy = self._free_name(log)
        try:
            shutil.copyfile(log, copy)
            _fsync(copy)
            _fsync(self.path)
            os.truncate(log, end)
            _fsync(log)
            yield
        except BaseException:
            _put_back(copy, log, end, size)
            raise
        logger.warning(
            "The %s in %s: the last %d bytes of its log are not a whole write, as after a crash. "
            "They were cut off; the log as it was found is kept as %s",
            self._kind.word,
            self.path,
            size - end,
            copy,
        )

    def _free_name(self, log: Path) -> Path:
        now = int(time.time())
        while (copy := self.path / f"{log.name}.torn-{now}").exists():
            now += 1
        return copy

    def _mark(self, made: bool) -> None:
        new = self.path / "FORMAT.json.new"
        with new.open("w") as file:
            json.dump(
                {"kind": self._kind.name, "format": self._kind.format, "made": made, "crawl": self._crawl},
                file,
            )
            file.flush()
            os.fsync(file.fileno())
        new.replace(self.path / "FORMAT.json")
        _fsync(self.path)


def _put_back(copy: Path, log: Path, end: int, size: int) -> None:
    """Give *log* the bytes from *end* to *size* again; *copy* goes when they are there."""
    if log.stat().st_size != size:
        with copy.open("rb") as whole, log.open("r+b") as file:
            whole.seek(end)
            file.seek(end)
            shutil.copyfileobj(whole, file)
            file.flush()
            os.fsync(file.fileno())
    copy.unlink(missing_ok=True)


def _fsync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def is_full(error: Exception) -> bool:
    """Whether *error* says that there is no space."""
    said = text_of(error)
    return getattr(error, "errno", None) in _NO_SPACE or any(sign in said for sign in _NO_SPACE_TEXTS)


def text_of(error: Exception) -> str:
    """What *error* says; LevelDB's client gives it as bytes."""
    said = error.args[0] if error.args else ""
    return said.decode(errors="replace") if isinstance(said, bytes) else str(error)
