"""What a frontier should do, told in a second way: by what its answers must be.

The model does not choose what is leased, it judges what was. Requests are recognised by their
payloads, which are all different.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from scrapy_ha.deadletter import POISON, DeadLetter
from scrapy_ha.typing import (
    SEED,
    SUSPECT_PATIENCE,
    Counts,
    Dead,
    Entry,
    Lease,
    Opened,
    Replay,
    Settlement,
    is_suspect,
)


@dataclass
class Known:
    """One accepted request."""

    arrival: int
    payload: bytes
    slot: str
    priority: int
    state: str
    """``ready``, ``delayed``, ``leased``, ``dead`` or ``done``."""
    due: float = 0.0
    deliveries: int = 0
    id: int = 0
    """0 until it is leased for the first time."""
    holder: str = ""
    since: float = 0.0
    token: int = 0
    deadline: float = 0.0
    given_up: bool = False
    """It has a record; so it has until it is done."""
    record: bytes | None = None
    """``None`` while it has one: poison."""
    buried: bytes = b""
    """Its payload when it was given up."""
    died: float = 0.0
    children: Counter[bytes] = field(default_factory=Counter)
    """Stored children without a key, by ordinal, until it is done."""


@dataclass
class Produced:
    """Children that one delivery of a page has offered so far."""

    token: int
    ordinals: Counter[bytes] = field(default_factory=Counter)


class Model:
    def __init__(self, max_deliveries: int, order: str) -> None:
        self.max_deliveries = max_deliveries
        self.sign = 1 if order == "fifo" else -1
        self.accepted: list[Known] = []
        self.produced: dict[str, dict[int, Produced]] = {}
        """By worker and parent."""
        self.last_token = 0
        self.finished = False
        self.start_afresh()

    def start_afresh(self) -> None:
        self.begun = self.seeded = False
        self.seen: set[bytes] = set()
        self.marks: dict[str, dict[str, bytes]] = {}
        self.seeds: Counter[bytes] = Counter()
        for one in self.accepted:
            one.children.clear()

    def having(self, *states: str) -> list[Known]:
        return [one for one in self.accepted if one.state in states]

    @property
    def pending(self) -> list[Known]:
        return self.having("ready", "delayed", "leased")

    def named(self, id_: int) -> Known:
        (one,) = (one for one in self.accepted if one.id == id_)
        return one

    def holds(self, lease: Lease) -> bool:
        one = self.named(lease.id)
        return one.state == "leased" and one.token == lease.token

    # What happens

    def offer(self, worker: str, entries: Sequence[Entry], now: float) -> list[bool]:
        """The verdicts that are right."""
        verdicts = []
        for entry in entries:
            new = self._is_new(worker, entry)
            verdicts.append(new)
            if new:
                self.begun = True
                state = "delayed" if entry.due > now else "ready"
                self.accepted.append(
                    Known(len(self.accepted), entry.payload, entry.slot, entry.priority, state, entry.due)
                )
        return verdicts

    def _is_new(self, worker: str, entry: Entry) -> bool:
        if entry.key is not None:
            if entry.key in self.seen:
                return False
            self.seen.add(entry.key)
            return True
        if entry.parent is None:
            return True
        produced = self.produced[worker].get(entry.parent)
        if entry.parent == SEED:
            if self.seeded:
                return True
            stored = self.seeds
        else:
            parent = self.named(entry.parent)
            if parent.state == "done" or produced is None:
                return True
            stored = parent.children
        assert produced is not None
        produced.ordinals[entry.ordinal] += 1
        if produced.ordinals[entry.ordinal] <= stored[entry.ordinal]:
            return False
        stored[entry.ordinal] += 1
        return True

    def leased(
        self,
        worker: str,
        leases: Sequence[Lease],
        limit: int,
        busy: Mapping[str, int],
        full: Collection[str],
        now: float,
        ttl: float,
    ) -> None:
        """Judge the answer of a lease call (I4, I5, fairness and order)."""
        assert len(leases) <= limit
        load = Counter(busy)
        for lease in leases:
            eligible = self._eligible(full, now)
            one = next((one for one in eligible if one.payload == lease.payload), None)
            assert one is not None, f"{lease} is of no request that is ready"
            assert one.slot == lease.slot
            assert load[one.slot] == min(load[other.slot] for other in eligible), "a slot less busy has work"
            first = min(
                (other for other in eligible if other.slot == one.slot),
                key=lambda other: (-other.priority, self.sign * other.arrival),
            )
            assert one is first, f"{first} comes before {one}"
            load[one.slot] += 1
            one.deliveries += 1
            assert (lease.priority, lease.deliveries) == (one.priority, one.deliveries)
            assert lease.token > one.token
            assert one.id in (0, lease.id)
            one.id, one.token, one.state = lease.id, lease.token, "leased"
            one.holder, one.deadline, one.since = worker, now + ttl, now
            self.produced[worker][one.id] = Produced(lease.token)
        if len(leases) < limit:
            assert self._eligible(full, now) == [], "what is due was not leased"
        for known in self.having("delayed"):
            if known.due <= now:
                known.state = "ready"
        self._judge_ids()

    def _eligible(self, full: Collection[str], now: float) -> list[Known]:
        watched = any(
            is_suspect(one.deliveries - 1, self.max_deliveries) and now - one.since < SUSPECT_PATIENCE
            for one in self.having("leased")
        )
        return [
            one
            for one in self.having("ready", "delayed")
            if one.slot not in full
            and (one.state == "ready" or one.due <= now)
            and not (watched and is_suspect(one.deliveries, self.max_deliveries))
        ]

    def _judge_ids(self) -> None:
        ids = [one.id for one in self.accepted if one.id]
        assert ids == sorted(set(ids)), "ids do not tell the order of arrival"

    def settle(self, worker: str, settlements: Sequence[Settlement], now: float) -> list[bool]:
        """The verdicts that are right; children are offered before."""
        verdicts = []
        for settlement in settlements:
            lease = settlement.lease
            valid = self.holds(lease)
            verdicts.append(valid)
            produced = self.produced[worker].get(lease.id)
            if produced is not None and produced.token == lease.token:
                del self.produced[worker][lease.id]
            if not valid:
                continue
            one = self.named(lease.id)
            if settlement.payload is not None:
                one.payload = settlement.payload
            if settlement.release:
                one.state, one.deliveries = "ready", one.deliveries - 1
            elif settlement.retry_at is not None:
                one.state, one.due, one.deliveries = "delayed", settlement.retry_at, 0
                if settlement.priority is not None:
                    one.priority = settlement.priority
            else:
                one.children.clear()
                if settlement.dead is None:
                    one.state, one.given_up = "done", False
                else:
                    one.state = "dead"
                    self._give_up(one, settlement.dead, now)
        return verdicts

    def bury(self, lease: Lease, record: bytes, now: float) -> bool:
        held = self.holds(lease)
        if held:
            self._give_up(self.named(lease.id), record, now)
        return held

    def _give_up(self, one: Known, record: bytes | None, now: float) -> None:
        one.given_up, one.record, one.buried, one.died = True, record, one.payload, now

    def store_marks(self, worker: str, seen: Sequence[bytes], marks: Mapping[str, bytes]) -> None:
        self.seen.update(seen)
        kept = {**self.marks.get(worker, {}), **marks}
        self.marks[worker] = {name: value for name, value in kept.items() if value}
        self.begun = self.begun or bool(seen or marks)

    def renew(self, leases: Sequence[Lease], deadline: float) -> list[bool]:
        for lease in leases:
            if self.holds(lease):
                self.named(lease.id).deadline = deadline
        return [self.holds(lease) for lease in leases]

    def take_back(self, requests: Sequence[Known], now: float) -> tuple[int, int]:
        """Ready, or dead as poison: how many of each it should be."""
        poison = [one for one in requests if one.deliveries >= self.max_deliveries]
        for one in requests:
            one.state = "ready"
        for one in poison:
            one.state = "dead"
            self._give_up(one, None, now)
        return len(requests) - len(poison), len(poison)

    def open(self, worker: str, now: float) -> Opened:
        """What should be found."""
        if self.finished and not self.pending:
            self.start_afresh()
        self.finished = False
        resumed = self.begun
        held = [one for one in self.having("leased") if one.holder == worker]
        reclaimed, poisoned = self.take_back(held, now)
        self.produced[worker] = {SEED: Produced(-1)}
        return Opened(resumed, self.seeded, reclaimed, poisoned, marks=dict(self.marks.get(worker, {})))

    def close(self, worker: str) -> None:
        for one in self.having("leased"):
            if one.holder == worker:
                one.state, one.deliveries = "ready", one.deliveries - 1

    def replay(self, replays: Sequence[Replay], now: float) -> int:
        first = {replay.id: replay for replay in reversed(replays)}
        found = [one for one in self.having("dead") if one.id in first]
        for one in found:
            replay = first[one.id]
            one.state, one.due, one.deliveries = "ready", 0.0, 0
            if replay.due > now:
                one.state, one.due = "delayed", replay.due
            if replay.payload is not None:
                one.payload = replay.payload
        return len(found)

    def purge(self, ids: Collection[int]) -> int:
        found = [one for one in self.having("dead") if one.id in ids]
        for one in found:
            one.state, one.given_up = "done", False
        return len(found)

    def expire(self, limit: int, seconds: float, now: float) -> int:
        dead = sorted(self.having("dead"), key=lambda one: (one.died, one.id))
        beyond = dead[: max(len(dead) - limit, 0)] + [one for one in dead if now - one.died >= seconds]
        return self.purge([one.id for one in beyond])

    # What must hold at any time

    def judge_counts(self, counts: Counts, now: float) -> None:
        assert counts.leased == len(self.having("leased"))
        assert counts.dead == len(self.having("dead"))
        assert counts.ready + counts.delayed == len(self.having("ready", "delayed"))
        waiting = len([one for one in self.having("delayed") if one.due > now])
        assert waiting <= counts.delayed <= len(self.having("delayed"))
        assert counts.pending == len(self.pending)

    def judge_next_due(self, due: float | None, now: float) -> None:
        delayed = [one.due for one in self.having("delayed")]
        waiting = [time for time in delayed if time > now]
        if due is None:
            assert not waiting
        else:
            assert due in delayed
            assert due <= min(waiting, default=due)

    def judge_dead(self, found: Sequence[Dead]) -> None:
        expected = sorted((one for one in self.accepted if one.given_up), key=lambda one: one.id)
        assert [(dead.id, dead.slot, dead.payload, dead.pending) for dead in found] == [
            (one.id, one.slot, one.buried, one.state != "dead") for one in expected
        ]
        for dead, one in zip(found, expected, strict=True):
            if one.record is None:
                assert DeadLetter.unpack(dead.record).cls == POISON
            else:
                assert dead.record == one.record
