"""Bloom filters over keys that are random already.

A key is what a request fingerprinter gives: the digest of a hash. So no hash is made of it again: the
positions of its bits are two 64-bit numbers cut from it, combined by double hashing (Kirsch and
Mitzenmacher, «Less Hashing, Same Performance: Building a Better Bloom Filter», 2006). Growth in layers
follows Almeida, Baquero, Preguiça and Hutchison, «Scalable Bloom Filters» (2007).
"""

from __future__ import annotations

import hashlib
import importlib.util
import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from operator import add
from pathlib import Path
from struct import Struct
from typing import Any, Protocol

from pybloom_live import BloomFilter

from scrapy_ha.errors import SettingError

KEY_BYTES = 20
"""Of a key, as of a SHA-1 digest."""
KINDS = ("auto", "pybloom", "rbloom")
TIGHTENING = 0.5
"""Error rate of a layer over that of the one before: all layers together stay below twice the first's,
and the first is given half of what is asked for."""
GROWTH = 2
"""Capacity of a layer over that of the one before."""
_HALVES = Struct("<QQ").unpack_from
_ALL_HALVES = Struct("<QQ4x").iter_unpack
_CHUNK = 4096


def normal(key: bytes) -> bytes:
    """*key* with :data:`KEY_BYTES` bytes: itself, if it has so many, else a digest of it."""
    return key if len(key) == KEY_BYTES else hashlib.blake2b(key, digest_size=KEY_BYTES).digest()


class Bloom(Protocol):
    """A Bloom filter of one size. Keys are normal ones."""

    capacity: int
    error_rate: float
    count: int
    """Keys added."""

    def __contains__(self, key: bytes) -> bool:
        """False: *key* was certainly never added. True: it perhaps was."""

    def add(self, key: bytes) -> None: ...

    def add_many(self, keys: Sequence[bytes]) -> None:
        """As :meth:`add` of each; for some thousand at a time."""

    def dump(self) -> bytes:
        """The bits, for :meth:`load` of one with the same capacity and error rate."""

    def load(self, bits: bytes, count: int) -> None:
        """Raises ``ValueError`` for bits of another size, or what is no count."""

    def fill_ratio(self) -> float:
        """Share of the bits that are set; the error rate promised is reached at one half."""

    @property
    def memory(self) -> int:
        """Bytes of the bits."""


class PyBloom:
    """Sizes and bits of pybloom-live's filter, which hashes each key anew; here the key is the hash."""

    def __init__(self, capacity: int, error_rate: float) -> None:
        self.capacity = capacity
        self.error_rate = error_rate
        self.count = 0
        filter_ = BloomFilter(capacity, error_rate)
        self._bits: Any = filter_.bitarray
        self._slice: int = filter_.bits_per_slice
        self._slices = range(filter_.num_slices)

    def __contains__(self, key: bytes) -> bool:
        bits, size = self._bits, self._slice
        at, step = _HALVES(key)
        if not bits[at % size]:  # most keys that are new end here
            return False
        step |= 1
        offset = 0
        for _ in self._slices:
            if not bits[offset + at % size]:
                return False
            at += step
            offset += size
        return True

    def add(self, key: bytes) -> None:
        bits, size = self._bits, self._slice
        at, step = _HALVES(key)
        step |= 1
        offset = 0
        for _ in self._slices:
            bits[offset + at % size] = 1
            at += step
            offset += size
        self.count += 1

    def add_many(self, keys: Sequence[bytes]) -> None:
        bits, size = self._bits, self._slice
        halves = list(_ALL_HALVES(b"".join(keys)))
        places = [at % size for at, _ in halves]  # small numbers are added faster
        steps = [(step | 1) % size for _, step in halves]
        offset = 0
        for _ in self._slices:
            bits[[offset + at % size for at in places]] = 1
            places = list(map(add, places, steps))
            offset += size
        self.count += len(keys)

    def dump(self) -> bytes:
        return bytes(self._bits.tobytes())

    def load(self, bits: bytes, count: int) -> None:
        _refuse_other_size(bits, self.memory, count)
        own = self._bits
        size = len(own)
        del own[:]
        own.frombytes(bits)
        del own[size:]
        self.count = count

    def fill_ratio(self) -> float:
        return float(self._bits.count() / len(self._bits))

    @property
    def memory(self) -> int:
        return (len(self._bits) + 7) // 8


class RBloom:
    """The filter of the package ``rbloom``, written in Rust."""

    def __init__(self, capacity: int, error_rate: float) -> None:
        import rbloom  # noqa: PLC0415 - optional

        self.capacity = capacity
        self.error_rate = error_rate
        self.count = 0
        self._type: Any = rbloom.Bloom
        # It takes no Python hash, which differs from one process to the next, but a number of 128 bits.
        self._number = partial(int.from_bytes, byteorder="little", signed=True)
        self._filter: Any = rbloom.Bloom(capacity, error_rate, self._number)

    def __contains__(self, key: bytes) -> bool:
        return key[:16] in self._filter

    def add(self, key: bytes) -> None:
        self._filter.add(key[:16])
        self.count += 1

    def add_many(self, keys: Sequence[bytes]) -> None:
        self._filter.update([key[:16] for key in keys])
        self.count += len(keys)

    def dump(self) -> bytes:
        return bytes(self._filter.save_bytes())

    def load(self, bits: bytes, count: int) -> None:
        own = self.dump()
        _refuse_other_size(bits, len(own), count)
        # Before the bits stands how many are asked for each key: any number would be believed.
        head = len(own) - self.memory
        if bits[:head] != own[:head]:
            raise ValueError("bits of another number of hashes")
        self._filter = self._type.load_bytes(bits, self._number)
        self.count = count

    def fill_ratio(self) -> float:
        # Kept by the filter as an estimate of its entries, made from the bits set: solved for those.
        bits = self._filter.size_in_bits
        hashes = max(1, round(-math.log2(self.error_rate)))
        return float(1 - math.exp(-hashes * self._filter.approx_items / bits))

    @property
    def memory(self) -> int:
        return int(self._filter.size_in_bits) // 8


def _refuse_other_size(bits: bytes, size: int, count: int) -> None:
    if len(bits) != size or type(count) is not int or not 0 <= count < 2**63:
        raise ValueError("bits of another size")


def pick(kind: str) -> type[PyBloom] | type[RBloom]:
    """The class for one of :data:`KINDS`; ``auto``: rbloom where it is installed.

    Raises:
        SettingError: rbloom is asked for, and is not installed.
    """
    found = importlib.util.find_spec("rbloom") is not None
    if kind == "rbloom" and not found:
        raise SettingError('HA_SEEN_BLOOM = "rbloom" is not possible: pip install scrapy-ha[rbloom]')
    return RBloom if found and kind != "pybloom" else PyBloom


class LayeredBloom:
    """A Bloom filter that grows by further layers, each with a tighter error rate.

    Args:
        capacity: Keys planned for; the first layer takes so many.
        error_rate: Share of new keys, at most, that it says to have seen, however many come.
        kind: One of :data:`KINDS`.

    Raises:
        SettingError: The first layer does not fit into the memory there is.
    """

    def __init__(self, capacity: int, error_rate: float, kind: str = "auto") -> None:
        self._class = pick(kind)
        self.capacity = capacity
        """Keys planned for."""
        self.error_rate = error_rate
        _refuse_too_large(capacity, error_rate * (1 - TIGHTENING))
        self.layers: list[Bloom] = []
        self._grow()

    @property
    def kind(self) -> str:
        return "rbloom" if self._class is RBloom else "pybloom"

    @property
    def count(self) -> int:
        return sum(layer.count for layer in self.layers)

    @property
    def memory(self) -> int:
        return sum(layer.memory for layer in self.layers)

    @property
    def is_filling(self) -> bool:
        """The newest layer holds four fifths of what it can."""
        return 5 * self._last.count >= 4 * self._last.capacity

    def __contains__(self, key: bytes) -> bool:
        for layer in self._newest_first:  # noqa: SIM110 - any() of a generator costs as much as the answer
            if key in layer:
                return True
        return False

    def add(self, key: bytes) -> None:
        if self._last.count >= self._last.capacity:
            self._grow()
        self._last.add(key)

    def add_many(self, keys: Iterable[bytes]) -> None:
        keys = iter(keys)
        while chunk := list(islice(keys, min(_CHUNK, max(1, self._last.capacity - self._last.count)))):
            if self._last.count >= self._last.capacity:
                self._grow()
            self._last.add_many(chunk)

    def fill_ratio(self) -> float:
        return self._last.fill_ratio()

    def estimated_error(self) -> float:
        """Share of new keys that are said to be seen, from what the layers hold now."""
        right = 1.0
        for layer in self.layers:
            hashes = max(1, round(-math.log2(layer.error_rate)))
            right *= 1 - layer.fill_ratio() ** hashes
        return 1 - right

    def dump(self) -> Iterator[tuple[int, bytes]]:
        """Count and bits of each layer."""
        for layer in self.layers:
            yield layer.count, layer.dump()

    def load(self, layers: Iterable[tuple[int, bytes]]) -> None:
        """Hold what :meth:`dump` gave. Raises ``ValueError`` if it was of another size or kind."""
        number = -1
        for number, (count, bits) in enumerate(layers):
            if number == len(self.layers):
                if len(bits) < GROWTH * (self._last.memory - 1):  # no memory for what cannot be a layer
                    raise ValueError("bits of another size")
                self._grow()
            self.layers[number].load(bits, count)
        if number < 0:
            raise ValueError("no bits")

    def clear(self) -> None:
        self.layers = []
        self._grow()

    def _grow(self) -> None:
        depth = len(self.layers)
        error = self.error_rate * (1 - TIGHTENING) * TIGHTENING**depth
        self._last: Bloom = self._class(self.capacity * GROWTH**depth, error)
        self.layers = [*self.layers, self._last]
        self._newest_first = self.layers[::-1]


def bytes_needed(capacity: int, error_rate: float) -> int:
    """Memory of a filter; the source of the formula: Bloom (1970), at the best number of hashes."""
    return math.ceil(capacity * -math.log(error_rate) / math.log(2) ** 2 / 8)


def _refuse_too_large(capacity: int, error_rate: float) -> None:
    needed = bytes_needed(capacity, error_rate)
    available = available_memory()
    if available is not None and needed > available:
        raise SettingError(
            f"HA_SEEN_CAPACITY = {capacity} is not possible: its Bloom filter needs {needed / 1e6:,.0f} MB "
            f"of memory, and {available / 1e6:,.0f} MB are available. Plan for fewer (the filter grows by "
            "itself), or raise HA_SEEN_ERROR_RATE"
        )


def available_memory() -> int | None:
    """Bytes that this process can still take, as far as Linux says; else ``None``."""
    limits = []
    with suppress(OSError, ValueError, KeyError):
        limits.append(int(_fields("/proc/meminfo", ":")["MemAvailable"].split()[0]) * 1024)
    with suppress(OSError, ValueError, KeyError):  # "max", where there is no limit, is no number
        group = Path("/sys/fs/cgroup")
        limit = int((group / "memory.max").read_text())
        files = _fields(group / "memory.stat", " ")  # in memory because there was room
        room = int(files["inactive_file"]) + int(files["active_file"])
        limits.append(max(0, limit - int((group / "memory.current").read_text()) + room))
    return min(limits, default=None)


def _fields(path: str | Path, separator: str) -> dict[str, str]:
    lines = (line.partition(separator) for line in Path(path).read_text().splitlines())
    return {name: value for name, _, value in lines}
