"""What the records of a checkpoint mean, and what they come to.

=============  =====================  ====================================================
kind           key                    payload
=============  =====================  ====================================================
``PART``       name                   what a part of the crawl saved last
``MARK``       name                   a mark (:attr:`scrapy_ha.run.Run.marks`); "": none
``SCHEDULED``  id                     :class:`Scheduled`: a request, or what became of it
``DONE``       id                     its key, then marks: see :func:`pack_done`
``SEED``       ordinal                how many such start requests there were (snapshots only)
``SEEDED``                            all start requests are scheduled
``FINISHED``                          nothing was left to do: what came before is over
=============  =====================  ====================================================

Ids and numbers are big-endian, of eight bytes.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from scrapy_ha.checkpoint.wal import Record
from scrapy_ha.errors import BadRecord

PART, MARK, SCHEDULED, DONE, SEED, SEEDED, FINISHED = range(1, 8)

NAMES = {
    PART: "part",
    MARK: "mark",
    SCHEDULED: "scheduled",
    DONE: "done",
    SEED: "seed",
    SEEDED: "seeded",
    FINISHED: "finished",
}
_U64 = struct.Struct(">Q")
_SCHEDULED = struct.Struct(">QBB")
_MARK = struct.Struct(">HI")
MORE_KEYS = 1000
"""Keys of requests that are done, handed on together."""


@dataclass(frozen=True, slots=True)
class Scheduled:
    """A request that is not done."""

    payload: bytes
    """The serialized request."""
    key: bytes = b""
    """What a duplicate filter knows it by; b"": it is not filtered."""
    parent: int = 0
    """Id of the page that yielded it; 0: none."""
    seed: bytes = b""
    """Of start requests without a key: what tells them apart."""

    def pack(self) -> bytes:
        head = _SCHEDULED.pack(self.parent, len(self.key), len(self.seed))
        return b"".join((head, self.key, self.seed, self.payload))

    @classmethod
    def unpack(cls, data: bytes) -> Scheduled:
        """Raises ``BadRecord`` for what is none."""
        try:
            parent, key, seed = _SCHEDULED.unpack_from(data)
        except struct.error as error:
            raise BadRecord(f"no scheduled request ({error})") from error
        at = _SCHEDULED.size
        if len(data) < at + key + seed:
            raise BadRecord("a scheduled request is cut off")
        return cls(data[at + key + seed :], data[at : at + key], parent, data[at + key : at + key + seed])


def pack_id(id_: int) -> bytes:
    return _U64.pack(id_)


def unpack_id(data: bytes) -> int:
    """Raises ``BadRecord`` for what is none."""
    if len(data) != _U64.size:
        raise BadRecord("no id")
    return int(_U64.unpack(data)[0])


def pack_done(key: bytes, marks: Mapping[str, bytes]) -> bytes:
    """The key of a request that is done, and the marks that are to be kept in the same step."""
    parts = [bytes((len(key),)), key]
    for name, value in marks.items():
        encoded = name.encode("utf-8", "surrogatepass")
        parts += (_MARK.pack(len(encoded), len(value)), encoded, value)
    return b"".join(parts)


def unpack_done(data: bytes) -> tuple[bytes, dict[str, bytes]]:
    """Raises ``BadRecord`` for what :func:`pack_done` has not made."""
    marks = {}
    try:
        at = 1 + data[0]
        key = data[1:at]
        while at < len(data):
            name, value = _MARK.unpack_from(data, at)
            at += _MARK.size
            marks[data[at : at + name].decode("utf-8", "surrogatepass")] = data[at + name : at + name + value]
            at += name + value
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        raise BadRecord(f"no end of a request ({error})") from error
    if at != len(data):
        raise BadRecord("an end of a request is cut off")
    return key, marks


@dataclass
class Ledger:
    """What the records come to, but for the requests themselves: of those, where each stands.

    Records that cannot be read are counted, and change nothing.
    """

    done: Callable[[list[bytes]], None] = lambda keys: None
    """Called with keys of requests that are done, when all is read."""
    keep: bool = False
    """Whether keys of a crawl that is over count too."""
    parts: dict[str, bytes] = field(default_factory=dict)
    marks: dict[str, bytes] = field(default_factory=dict)
    pending: dict[int, int] = field(default_factory=dict)
    """Requests that are not done, in order: by id the number of the record that has it."""
    seeds: Counter[bytes] = field(default_factory=Counter)
    seeded: bool = False
    finished: bool = False
    begun: bool = False
    """A request was scheduled, since the last that is over."""
    bad: int = 0
    """Records that could not be read."""
    _keys: list[bytes] = field(default_factory=list)

    def read(self, records: Iterable[Record]) -> None:
        for number, record in enumerate(records):
            try:
                self._apply(number, record)
            except (BadRecord, UnicodeDecodeError):
                self.bad += 1
        self._hand_on()

    def records(self) -> Iterator[Record]:
        """All of it but the pending requests."""
        for name, value in self.parts.items():
            yield Record(PART, name.encode("utf-8", "surrogatepass"), value)
        if self.finished:
            yield Record(FINISHED, b"", b"")
            return
        for name, value in self.marks.items():
            yield Record(MARK, name.encode("utf-8", "surrogatepass"), value)
        if self.seeded:
            yield Record(SEEDED, b"", b"")
        else:
            for ordinal, count in self.seeds.items():
                yield Record(SEED, ordinal, pack_id(count))

    def _apply(self, number: int, record: Record) -> None:
        kind, key, payload = record.kind, record.key, record.payload
        if kind == SCHEDULED:
            id_ = unpack_id(key)
            seed = Scheduled.unpack(payload).seed
            if seed and not self.seeded and id_ not in self.pending:
                self.seeds[seed] += 1
            self.pending[id_] = number
            self.finished, self.begun = False, True
        elif kind == DONE:
            done, marks = unpack_done(payload)
            self.pending.pop(unpack_id(key), None)
            for name, value in marks.items():
                self._mark(name, value)
            if done:
                self._keys.append(done)
        elif kind == PART:
            self.parts[key.decode("utf-8", "surrogatepass")] = payload
        elif kind == MARK:
            self._mark(key.decode("utf-8", "surrogatepass"), payload)
        elif kind == SEED:
            self.seeds[key] += unpack_id(payload)
            self.begun = True
        elif kind == SEEDED:
            self.seeded, self.begun = True, True
            self.seeds.clear()
        elif kind == FINISHED:
            self._end()
        else:
            raise BadRecord(f"a record of kind {kind}")

    def _mark(self, name: str, value: bytes) -> None:
        if value:
            self.marks[name] = value
        else:
            self.marks.pop(name, None)

    def _end(self) -> None:
        if not self.keep:
            self._keys = []
        self.marks.clear()
        self.pending.clear()
        self.seeds.clear()
        self.seeded, self.begun = False, False
        self.finished = True

    def _hand_on(self) -> None:
        for start in range(0, len(self._keys), MORE_KEYS):
            self.done(self._keys[start : start + MORE_KEYS])
        self._keys = []


def fold(
    read: Callable[[], Iterable[Record]], done: Callable[[list[bytes]], None], keep: bool = False
) -> Iterator[Record]:
    """The records of a snapshot of what *read* reads. Takes memory for the ids of pending requests.

    Args:
        done: See :attr:`Ledger.done`. Whatever these keys mean is no longer said by any record.
        keep: See :attr:`Ledger.keep`.
    """
    ledger = Ledger(done, keep)
    ledger.read(read())
    yield from ledger.records()
    yield from pending(read(), ledger)


def pending(records: Iterable[Record], ledger: Ledger) -> Iterator[Record]:
    """Of *records*, from which *ledger* was made, those of requests that are not done; in their order."""
    wanted = {number: id_ for id_, number in ledger.pending.items()}
    if wanted:
        for number, record in enumerate(records):
            if number in wanted:
                yield record
