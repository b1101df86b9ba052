"""Keys and values of the LevelDB frontier. This is a stored format: see :data:`KIND`.

Every key starts with one letter; numbers are big-endian, so that byte order is numeric order.

=====  ==================================================  ===================================
key    rest of the key                                      value
=====  ==================================================  ===================================
``q``  slot, priority, order                                payload of a ready or leased request
``l``  id                                                   deliveries so far: :class:`Delivered`
``d``  due (microseconds), id                               slot, priority, payload (delayed)
``x``  id                                                   of one given up: :class:`Buried`
``o``  time given up (microseconds), id                     nothing; of those in the dead state
``r``  id                                                   nothing; of those that are pending again
``s``  generation, key                                      when it was seen (epoch seconds)
``c``  generation, parent's id, ordinal                     token, met, stored: see :class:`Family`
``k``  name                                                 a mark
``m``                                                       the state record, :class:`State`
``t``                                                       token of the Bloom filter's file
``i``                                                       what makes the keys
=====  ==================================================  ===================================

A lease does not move a request: the ``q`` entry stays where it is until the request is settled,
and an ``l`` record counts the delivery. So nothing has to be moved back after a crash.
"""

from __future__ import annotations

import math
import struct
from dataclasses import astuple, dataclass

from scrapy_ha.leveldb.kind import Kind

KIND = Kind(
    name="scrapy_ha frontier",
    word="frontier",
    format=1,
    lost="pages done since are fetched again, pages found since may be missing",
)

PRIORITY_LIMIT = 2**62
"""Priorities beyond this, either way, count as this."""

_U32 = struct.Struct(">I")
_U64 = struct.Struct(">Q")
_LEASE = struct.Struct(">IH??")
_U64U64 = struct.Struct(">QQ")
_U32U64 = struct.Struct(">IQ")
_STATE = struct.Struct(">QQII???QQQd")
_FAMILY = struct.Struct(">QII")
_MASK = 2**64 - 1
_TOP = 2**63

ORDER_BYTES = 8
"""Length of the end of a ``q`` key, behind slot and priority."""
RANK_BYTES = 16
"""Length of the end of a ``q`` key, behind the slot."""
STATE_KEY = b"m"
TOKEN_KEY = b"t"
IDENTITY_KEY = b"i"


@dataclass(slots=True)
class State:
    """What must change together with the requests; written in the same batch as they are."""

    next_id: int = 1
    opens: int = 0
    """How often the store was opened: the upper part of every fencing token."""
    generation: int = 0
    """Grows when a crawl starts afresh."""
    seen_generation: int = 0
    """Grows when what was seen is forgotten; keys of earlier generations do not count."""
    started: bool = False
    """Anything was stored in this generation."""
    finished: bool = False
    seeded: bool = False
    queued: int = 0
    """Ready and leased requests."""
    delayed: int = 0
    dead: int = 0
    time: float = 0.0
    """Clock at the latest write: the next start counts from no earlier time."""

    def pack(self) -> bytes:
        return _STATE.pack(*astuple_fast(self))

    @classmethod
    def unpack(cls, data: bytes) -> State:
        """Raises ``struct.error`` for anything but a state record."""
        return cls(*_STATE.unpack(data))


def astuple_fast(state: State) -> tuple[int, int, int, int, bool, bool, bool, int, int, int, float]:
    """Like ``dataclasses.astuple``, which copies deeply and is 20 times slower."""
    return (
        state.next_id,
        state.opens,
        state.generation,
        state.seen_generation,
        state.started,
        state.finished,
        state.seeded,
        state.queued,
        state.delayed,
        state.dead,
        state.time,
    )


assert len(astuple(State())) == len(astuple_fast(State()))


@dataclass(slots=True)
class Family:
    """How many children with one ordinal a parent has.

    A page may yield the same unfiltered request several times, and is delivered again after a
    crash. So what it yields is counted afresh in every delivery, known by its *token*, and only
    the ones beyond the number that is stored already are new.
    """

    token: int
    met: int = 0
    stored: int = 0

    def meet(self, token: int) -> bool:
        """Count one more in the delivery *token*; whether it is new."""
        if token != self.token:
            self.token, self.met = token, 0
        self.met += 1
        if self.met <= self.stored:
            return False
        self.stored = self.met
        return True

    def pack(self) -> bytes:
        return _FAMILY.pack(self.token, self.met, self.stored)

    @classmethod
    def unpack(cls, data: bytes) -> Family:
        return cls(*_FAMILY.unpack(data))


def slot_prefix(slot: str) -> bytes:
    """Start of the ``q`` keys of *slot*. The length in front keeps slots apart."""
    name = slot.encode("utf-8", "surrogatepass")
    return b"q" + _U32.pack(len(name)) + name


def slot_of(queue_key: bytes) -> str:
    return prefix_of(queue_key)[5:].decode("utf-8", "surrogatepass")


def prefix_of(queue_key: bytes) -> bytes:
    (length,) = _U32.unpack_from(queue_key, 1)
    return queue_key[: 5 + length]


def rank(priority: int, id_: int, lifo: bool) -> bytes:
    """End of a ``q`` key: higher priorities first, then the order of arrival or its reverse."""
    clamped = min(max(priority, -PRIORITY_LIMIT), PRIORITY_LIMIT)
    return _U64U64.pack(PRIORITY_LIMIT - clamped, id_ ^ _MASK if lifo else id_)


def priority_of(queue_key: bytes) -> int:
    (inverse,) = _U64.unpack_from(queue_key, len(queue_key) - RANK_BYTES)
    return int(PRIORITY_LIMIT - inverse)


def id_of(queue_key: bytes) -> int:
    """The id, whichever order the key was made for: ids stay below 2**63."""
    (order,) = _U64.unpack_from(queue_key, len(queue_key) - 8)
    return int(order ^ _MASK if order >= _TOP else order)


def lease_key(id_: int) -> bytes:
    return b"l" + _U64.pack(id_)


@dataclass(slots=True)
class Delivered:
    """Value of an ``l`` record: what is known of the deliveries of one request."""

    deliveries: int
    """Counted ones, the present one included while it is held."""
    unexposed: int
    """Deliveries that ended with the worker before anything came of them."""
    held: bool
    exposed: bool
    queue_key: bytes

    def pack(self) -> bytes:
        return _LEASE.pack(self.deliveries, self.unexposed, self.held, self.exposed) + self.queue_key

    @classmethod
    def unpack(cls, value: bytes) -> Delivered:
        deliveries, unexposed, held, exposed = _LEASE.unpack_from(value)
        return cls(deliveries, unexposed, held, exposed, value[_LEASE.size :])


def delayed_key(due: float, id_: int) -> bytes:
    microseconds = min(max(math.ceil(due * 1e6), 0), _TOP)  # never before its time
    return b"d" + _U64U64.pack(microseconds, id_)


def last_delayed_key(now: float) -> bytes:
    """The last key that something due at *now* can have."""
    return b"d" + _U64U64.pack(min(max(int(now * 1e6), 0), _TOP), _MASK)


def due_of(key: bytes) -> tuple[float, int]:
    """Time, in seconds, and id of a ``d`` or ``o`` key."""
    due, id_ = _U64U64.unpack_from(key, 1)
    return due / 1e6, id_


def pack_placed(slot: str, priority: int, *parts: bytes) -> bytes:
    """Value of a request outside the queues: slot, priority, then each part with its length."""
    name = slot.encode("utf-8", "surrogatepass")
    clamped = min(max(priority, -PRIORITY_LIMIT), PRIORITY_LIMIT)
    packed = [_U32.pack(len(name)), name, _U64.pack(clamped & _MASK)]
    for part in parts:
        packed += (_U32.pack(len(part)), part)
    return b"".join(packed)


def unpack_placed(value: bytes) -> tuple[str, int, list[bytes]]:
    """Raises ``struct.error`` or ``ValueError`` for what :func:`pack_placed` has not made."""
    (length,) = _U32.unpack_from(value)
    at = 4 + length
    slot = value[4:at].decode("utf-8", "surrogatepass")
    (inverse,) = _U64.unpack_from(value, at)
    priority = inverse - 2**64 if inverse >= _TOP else inverse
    at += 8
    parts = []
    while at < len(value):
        (length,) = _U32.unpack_from(value, at)
        parts.append(value[at + 4 : at + 4 + length])
        at += 4 + length
    if at != len(value):
        raise ValueError("cut off")
    return slot, priority, parts


@dataclass(slots=True)
class Buried:
    """Value of an ``x`` record: a request that was given up."""

    time: float
    """When it was."""
    slot: str
    priority: int
    record: bytes
    payload: bytes

    def pack(self) -> bytes:
        return _U64.pack(_microseconds(self.time)) + pack_placed(
            self.slot, self.priority, self.record, self.payload
        )

    @classmethod
    def unpack(cls, value: bytes) -> Buried:
        """Raises ``struct.error`` or ``ValueError`` for what is none."""
        (time,) = _U64.unpack_from(value)
        slot, priority, (record, payload) = unpack_placed(value[8:])
        return cls(time / 1e6, slot, priority, record, payload)


def dead_key(id_: int) -> bytes:
    return b"x" + _U64.pack(id_)


def dead_id(key: bytes) -> int:
    return int(_U64.unpack_from(key, 1)[0])


def order_key(time: float, id_: int) -> bytes:
    return b"o" + _U64U64.pack(_microseconds(time), id_)


def returned_key(id_: int) -> bytes:
    return b"r" + _U64.pack(id_)


def returned_id(key: bytes) -> int:
    return int(_U64.unpack_from(key, 1)[0])


def _microseconds(time: float) -> int:
    """Rounded to the nearest, so that a time that was read back gives the same key."""
    return min(max(round(time * 1e6), 0), _TOP)


def seen_prefix(generation: int) -> bytes:
    return b"s" + _U32.pack(generation)


def children_prefix(generation: int, parent: int) -> bytes:
    return b"c" + _U32U64.pack(generation, parent)


def children_of_generation(generation: int) -> bytes:
    return b"c" + _U32.pack(generation)


def parent_of(key: bytes) -> int:
    return int(_U32U64.unpack_from(key, 1)[1])


def pack_time(now: float) -> bytes:
    return _U32.pack(int(now) & 0xFFFFFFFF)


def unpack_time(value: bytes) -> float:
    """Raises ``struct.error`` for what :func:`pack_time` has not made."""
    return float(_U32.unpack(value)[0])


def mark_key(name: str) -> bytes:
    return b"k" + name.encode("utf-8", "surrogatepass")


def after(prefix: bytes) -> bytes:
    """The first key behind all those that start with *prefix*."""
    for at in range(len(prefix) - 1, -1, -1):
        if prefix[at] != 0xFF:
            return prefix[:at] + bytes((prefix[at] + 1,))
    raise ValueError("no key comes after a prefix of 0xff only")
