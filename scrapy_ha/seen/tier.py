"""A Bloom filter in front of an exact store, and its file.

The file is a cache and nothing more: whatever is in doubt about it, the filter is made anew from the
store's keys. There is no doubt when

- ``<n>.bloom``, the filter as it was at some moment, is whole (checksum), of this format, hash, size and
  error rate, and of this store: it bears the store's *token*, which the store draws anew whenever it is
  opened or emptied; and
- either it was written when the store was closed; or every key that came afterwards stands in
  ``<n>.delta`` and those with higher numbers, which bear the token too, and the machine has not been
  started anew since: a killed process leaves all it wrote, a power cut does not.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from scrapy_ha import crc
from scrapy_ha.seen.bloom import KEY_BYTES, LayeredBloom, normal
from scrapy_ha.seen.delta import Delta, read_header, read_keys

logger = logging.getLogger(__name__)

MAGIC = b"scrapy_ha bloom\n"
VERSION = 1
HASH = "double hashing of bytes 0-7 and 8-15, little-endian"
FIRST_ENTRIES, MOST_ENTRIES = 1 << 16, 1 << 20
"""Keys after which the filter is written anew: as many as it holds, within these bounds."""
SAY_EVERY = 5.0
"""Seconds between two lines on how far a rebuild is."""
_LENGTH = 4
_CHUNK = 4096


class BloomTier:
    """Says of a key that it is certainly new, or perhaps seen; never wrong in the first.

    Args:
        path: Directory of its files; made when missing.
        capacity, error_rate, kind: See :class:`~scrapy_ha.seen.bloom.LayeredBloom`.
        on_filling: Called once per layer when it holds four fifths of what it can.
    """

    def __init__(
        self,
        path: Path,
        *,
        capacity: int,
        error_rate: float,
        kind: str = "auto",
        on_filling: Callable[[LayeredBloom], None] = lambda bloom: None,
    ) -> None:
        self.bloom = LayeredBloom(capacity, error_rate, kind)
        self.rebuilt = False
        """Its file was of no use when it was opened."""
        self.certain = 0
        """Answers «certainly new»."""
        self.confirmed = 0
        """Answers «perhaps seen» of keys that the store had."""
        self.false_positives = 0
        """Those of keys that it had not."""
        self._path = path
        self._on_filling = on_filling
        self._filling_said = 0
        self._number = 0
        self._delta: Delta | None = None
        self._token = ""
        self._due = False

    def open(self, old: str, new: str, keys: Callable[[], Iterator[bytes]]) -> None:
        """Load the file or, at any doubt, make the filter anew.

        Args:
            old: The token that the store bore when its owner closed it, or died.
            new: The one that it bears from now on. The store writes it down after this call.
            keys: All keys of the store.
        """
        try:
            self._path.mkdir(parents=True, exist_ok=True)
            self._number = self._load(old)
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as doubt:
            self.rebuilt = True
            self.bloom.clear()
            self._rebuild(keys(), doubt)
        self._token = new
        self.save()

    def __contains__(self, key: bytes) -> bool:
        """As :meth:`perhaps`, for one that is not counted."""
        return (key if len(key) == KEY_BYTES else normal(key)) in self.bloom

    def perhaps(self, key: bytes) -> bool:
        """False: *key* is certainly new."""
        if (key if len(key) == KEY_BYTES else normal(key)) in self.bloom:  # as above, at half its cost
            return True
        self.certain += 1
        return False

    def settle(self, had: bool) -> None:
        """Whether the store had a key that was perhaps seen."""
        if had:
            self.confirmed += 1
        else:
            self.false_positives += 1

    def add(self, key: bytes) -> None:
        """To be called before the store has *key*, which is new."""
        key = normal(key)
        if self._delta is not None:
            if self._delta.is_full:
                self._begin_delta()
                self._due = True
            if self._delta is not None:
                self._delta.note(key)
        self.bloom.add(key)
        if self.bloom.is_filling and self._filling_said < len(self.bloom.layers):
            self._filling_said = len(self.bloom.layers)
            self._on_filling(self.bloom)

    @property
    def wants_saving(self) -> bool:
        """:meth:`save` is due: some time before long, and only once."""
        return self._due

    def begin_save(self) -> Callable[[], None]:
        """Take the filter as it is now; what is returned writes it, in any thread."""
        self._due = False
        self._begin_delta()
        number, content = self._number, self._content(closed=False)

        def write() -> None:
            self._write(number, content)
            if self._delta is None:  # keys have come that stand nowhere
                self._remove([number], ".bloom")

        return write

    def save(self) -> None:
        """Write the filter now."""
        self.begin_save()()

    def clear(self, token: str) -> None:
        """The store is empty, and bears *token* from now on."""
        self.bloom.clear()
        self._filling_said = 0
        self._token = token
        self.save()

    def close(self) -> None:
        """Write the filter, so that the next one needs no keys. Idempotent."""
        if self._delta is None:
            return
        self._number += 1
        self._write(self._number, self._content(closed=True))
        self._delta.close()
        self._delta = None

    # Files

    def _load(self, token: str) -> int:
        numbers = sorted(self._numbered(".bloom"), reverse=True)
        if not numbers:
            raise ValueError("there is no file of it")
        number = numbers[0]
        header, layers = self._read(number)
        if header["token"] != token:
            raise ValueError("it belongs to another state of the store")
        self.bloom.load(layers)
        deltas = sorted(n for n in self._numbered(".delta") if n >= number)
        if not header["closed"]:
            if deltas != list(range(number, number + len(deltas))) or not deltas:
                raise ValueError("what came after it is missing")
            for n in deltas:
                path = self._file(n, ".delta")
                if read_header(path) != self._delta_header(token):
                    raise ValueError("the machine was started anew, or another store wrote to it")
                self.bloom.add_many(read_keys(path))
        return max([number, *deltas])

    def _rebuild(self, keys: Iterable[bytes], doubt: Exception) -> None:
        began = said = time.monotonic()
        count = 0
        keys = iter(keys)
        while chunk := list(islice(keys, _CHUNK)):
            self.bloom.add_many([key if len(key) == KEY_BYTES else normal(key) for key in chunk])
            count += len(chunk)
            if time.monotonic() - said >= SAY_EVERY:
                said = time.monotonic()
                logger.info("The Bloom filter in %s is being made anew: %d keys so far", self._path, count)
        if count:
            logger.info(
                "The Bloom filter in %s was made anew from %d keys in %.1f s (%s)",
                self._path,
                count,
                time.monotonic() - began,
                doubt,
            )

    def _begin_delta(self) -> None:
        if self._delta is not None:
            self._delta.close()
        self._number += 1
        entries = min(max(self.bloom.count, FIRST_ENTRIES), MOST_ENTRIES)
        try:
            self._delta = Delta(self._file(self._number, ".delta"), self._delta_header(self._token), entries)
        except OSError as error:  # the next start makes the filter anew
            self._delta = None
            self._remove(self._numbered(".bloom"), ".bloom")
            logger.warning("The Bloom filter in %s is kept in memory only: %s", self._path, error)

    def _content(self, closed: bool) -> list[bytes]:
        layers = list(self.bloom.dump())
        header = {
            **self._parameters(),
            "token": self._token,
            "closed": closed,
            "layers": [[count, len(bits)] for count, bits in layers],
        }
        packed = json.dumps(header).encode()
        return [MAGIC, len(packed).to_bytes(_LENGTH, "big"), packed, *(bits for _, bits in layers)]

    def _write(self, number: int, content: list[bytes]) -> None:
        path = self._file(number, ".bloom")
        new = path.with_suffix(".new")
        checksum = 0
        try:
            with new.open("wb") as file:
                for part in content:
                    checksum = crc.extend(checksum, part)
                    file.write(part)
                file.write(checksum.to_bytes(4, "big"))
                file.flush()
                os.fsync(file.fileno())
            new.replace(path)
        except OSError as error:
            new.unlink(missing_ok=True)
            logger.warning("The Bloom filter in %s could not be written: %s", self._path, error)
            return
        self._remove((n for n in self._numbered(".bloom") if n < number), ".bloom")
        self._remove((n for n in self._numbered(".delta") if n < number), ".delta")

    def _read(self, number: int) -> tuple[dict[str, Any], list[tuple[int, bytes]]]:
        data = self._file(number, ".bloom").read_bytes()
        body, checksum = data[:-4], data[-4:]
        if crc.crc32c(body).to_bytes(4, "big") != checksum:
            raise ValueError("its file is damaged")
        at = len(MAGIC) + _LENGTH
        size = int.from_bytes(body[len(MAGIC) : at], "big")
        header = json.loads(body[at : at + size])
        if not body.startswith(MAGIC) or any(header[k] != v for k, v in self._parameters().items()):
            raise ValueError("its file is of another size, hash or format")
        at += size
        layers = []
        for count, length in header["layers"]:
            layers.append((count, body[at : at + length]))
            at += length
        return header, layers

    def _parameters(self) -> dict[str, Any]:
        bloom = self.bloom
        return {
            "version": VERSION,
            "kind": bloom.kind,
            "hash": HASH,
            "capacity": bloom.capacity,
            "error_rate": bloom.error_rate,
        }

    def _delta_header(self, token: str) -> dict[str, object]:
        return {"version": VERSION, "token": token, "boot": _boot_id()}

    def _file(self, number: int, suffix: str) -> Path:
        return self._path / f"{number:08}{suffix}"

    def _numbered(self, suffix: str) -> list[int]:
        return [int(path.stem) for path in self._path.glob(f"*{suffix}") if path.stem.isdigit()]

    def _remove(self, numbers: Iterable[int], suffix: str) -> None:
        for number in numbers:
            self._file(number, suffix).unlink(missing_ok=True)


def _boot_id() -> str:
    """What tells one run of the machine from another; where that is not to be had, from every other."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return os.urandom(16).hex()
