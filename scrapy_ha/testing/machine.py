"""A Hypothesis state machine that runs any sequence of calls, crashes included, against a model."""

from __future__ import annotations

import asyncio
import math
import sys
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from scrapy_ha.testing._model import Model
from scrapy_ha.testing.clock import FakeClock
from scrapy_ha.typing import SEED, Entry, Lease, Replay, Settlement, SlotSet

if TYPE_CHECKING:
    from scrapy_ha.typing import Frontier

T = TypeVar("T")

KEYS = [b"", b"\0", b"a", b"a\0", b"\xff", *(b"key %d" % n for n in range(6))]
SLOTS = ["", "a", "a\0", "b"]
ORDINALS = [b"", b"1", b"2"]
DEAD_LIMIT = 3
DEAD_SECONDS = 100.25
"""Limits of every frontier that the machine makes."""
TTLS = [10.25, 60.25, math.inf]
"""Time advances by halves, so no deadline is ever met exactly."""

workers = st.integers(0, 1)
batches = st.lists(
    st.fixed_dictionaries(
        {
            "slot": st.sampled_from(SLOTS),
            "key": st.none() | st.none() | st.sampled_from(KEYS),
            "priority": st.sampled_from([0, 0, 0, 1, -1, 2**31, -(2**31)]),
            "delay": st.sampled_from([0, 0, 0, -1, 0.5, 5, 50]),
            "parent": st.none() | st.just(SEED) | st.integers(1, 3),
            "ordinal": st.sampled_from(ORDINALS),
        }
    ),
    min_size=1,
    max_size=5,
)
endings = st.lists(
    st.fixed_dictionaries(
        {
            "which": st.integers(0, 4),
            "way": st.sampled_from(["done", "done", "retry", "dead", "release"]),
            "payload": st.booleans(),
            "delay": st.sampled_from([-1, 0, 0.5, 20]),
            "priority": st.none() | st.integers(-2, 2),
        }
    ),
    min_size=1,
    max_size=4,
)
limits = st.sampled_from([0, 1, 2, 3, 6])
loads = st.dictionaries(st.sampled_from(SLOTS), st.integers(0, 3))
ttls = st.sampled_from(TTLS)
picks = st.lists(st.integers(0, 4), min_size=1, max_size=4)


class FrontierMachine(RuleBasedStateMachine):
    """Derive a class, give it the store, and use its ``TestCase``::

        class MyMachine(FrontierMachine):
            def make_frontier(self, worker, order, max_deliveries):
                ...  # with at most DEAD_LIMIT requests in the dead state, for DEAD_SECONDS
            def crash(self, frontier): ...

        TestMyMachine = MyMachine.TestCase

    Checked after every step: each accepted request is in exactly one state, nothing is lost and
    nothing doubled (I1); what is seen was stored (I2); nobody holds what another one holds, and
    poison is dead (I4); nothing is leased before it is due (I5).

    Attributes:
        shared: Whether two workers take turns.
        clock: Of all frontiers of this machine.
    """

    shared = False

    def __init__(self) -> None:
        super().__init__()
        self.clock = FakeClock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._frontiers: dict[str, Frontier] = {}
        self._leases: dict[str, list[Lease]] = {"a": [], "b": []}
        self._full = SlotSet()
        self._payloads = 0

    # What a store provides

    def make_frontier(self, worker: str, order: str, max_deliveries: int) -> Frontier:
        """A frontier that is not open yet, over the store of this machine."""
        raise NotImplementedError

    def crash(self, frontier: Frontier) -> None:
        """End the worker of an open *frontier* as ``kill -9`` does. It is not used any more."""
        raise NotImplementedError

    def drive(self, work: Coroutine[Any, Any, T]) -> T:
        """Run one call to its end. An embedded store should be driven without an event loop."""
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
        return self._loop.run_until_complete(work)

    # Setting up and taking down

    @initialize(order=st.sampled_from(["fifo", "lifo"]), max_deliveries=st.sampled_from([1, 2, 3, 3]))
    def start(self, order: str, max_deliveries: int) -> None:
        self._order = order
        self.model = Model(max_deliveries, order)
        for worker in "ab" if self.shared else "a":
            self._open(worker)

    def _open(self, worker: str) -> None:
        frontier = self.make_frontier(worker, self._order, self.model.max_deliveries)
        found = self.drive(frontier.open())
        assert found == self.model.open(worker, self.clock.time())
        self._frontiers[worker] = frontier

    def _worker(self, number: int) -> tuple[str, Frontier]:
        worker = sorted(self._frontiers)[number % len(self._frontiers)]
        return worker, self._frontiers[worker]

    def _pick(self, worker: str, numbers: list[int]) -> list[Lease]:
        """Leases that *worker* had, the latest first: held, lost or settled."""
        leases = self._leases[worker]
        return [leases[-1 - number % len(leases)] for number in numbers if leases]

    def _entries(self, worker: str, drawn: list[dict[str, Any]]) -> list[Entry]:
        made = []
        for fields in drawn:
            parent = fields["parent"]
            if parent is not None and parent != SEED:
                found = self._pick(worker, [parent - 1])
                parent = found[0].id if found else None
            due = self.clock.time() + fields["delay"] if fields["delay"] else 0.0
            made.append(
                Entry(
                    self._payload(),
                    fields["slot"],
                    fields["key"],
                    fields["priority"],
                    due,
                    parent,
                    fields["ordinal"],
                )
            )
        return made

    def _payload(self) -> bytes:
        self._payloads += 1
        return b"payload %d" % self._payloads

    def teardown(self) -> None:
        try:
            if sys.exc_info()[0] is None:  # no step has failed
                self._drain()
            for frontier in self._frontiers.values():
                self.drive(frontier.close())
        finally:
            if self._loop is not None:
                self._loop.close()

    def _drain(self) -> None:
        """Whatever happened: everything that is pending can be had, once (I1)."""
        self.check()
        for worker in sorted(self._frontiers):
            self.close(ord(worker) - ord("a"), crash=True)
        self.clock.advance(1000)
        expected = sorted(one.payload for one in self.model.pending)
        worker, frontier = self._worker(0)
        leases = []
        while found := self.drive(frontier.lease(7, {}, (), math.inf)):
            leases += found
            assert all(self.drive(frontier.settle([Settlement(one) for one in found])))
        assert sorted(one.payload for one in leases) == expected
        assert self.drive(frontier.counts()).pending == 0

    # What can happen

    @rule(number=workers, drawn=batches)
    def offer(self, number: int, drawn: list[dict[str, Any]]) -> None:
        worker, frontier = self._worker(number)
        batch = self._entries(worker, drawn)
        verdicts = self.drive(frontier.offer(batch))
        assert verdicts == self.model.offer(worker, batch, self.clock.time())

    @rule(
        number=workers,
        limit=limits,
        busy=loads,
        full=st.sets(st.sampled_from(SLOTS), max_size=2),
        ttl=ttls,
    )
    def lease(self, number: int, limit: int, busy: dict[str, int], full: set[str], ttl: float) -> None:
        worker, frontier = self._worker(number)
        if number % 2:  # the same set, time and again, of which a store may follow the changes
            for slot in SLOTS:
                (self._full.add if slot in full else self._full.discard)(slot)
        leases = self.drive(frontier.lease(limit, busy, self._full if number % 2 else full, ttl))
        self.model.leased(worker, leases, limit, busy, full, self.clock.time(), ttl)
        self._leases[worker] += leases

    @rule(
        number=workers,
        drawn=endings,
        children=st.just([]) | batches,
        seen=st.lists(st.sampled_from(KEYS), max_size=1),
        marks=st.dictionaries(st.sampled_from(["", "x", "y"]), st.binary(max_size=2), max_size=2),
    )
    def settle(
        self,
        number: int,
        drawn: list[dict[str, Any]],
        children: list[dict[str, Any]],
        seen: list[bytes],
        marks: dict[str, bytes],
    ) -> None:
        worker, frontier = self._worker(number)
        now = self.clock.time()
        settlements = []
        for fields in drawn:
            for lease in self._pick(worker, [fields["which"]]):
                settlement = Settlement(lease)
                if fields["way"] == "retry":
                    settlement.retry_at = now + fields["delay"]
                    settlement.priority = fields["priority"]
                elif fields["way"] == "dead":
                    settlement.dead = b"record of %d" % lease.id
                elif fields["way"] == "release":
                    settlement.release = True
                if fields["way"] != "done" and fields["payload"]:
                    settlement.payload = self._payload()
                settlements.append(settlement)
        batch = self._entries(worker, children)
        verdicts = self.drive(frontier.settle(settlements, batch, seen, marks))
        self.model.offer(worker, batch, now)
        self.model.store_marks(worker, seen, marks)
        assert verdicts == self.model.settle(worker, settlements, now)

    @rule(number=workers, drawn=batches, limit=limits, ttl=ttls, ended=st.just([]) | endings)
    def work(
        self,
        number: int,
        drawn: list[dict[str, Any]],
        limit: int,
        ttl: float,
        ended: list[dict[str, Any]],
    ) -> None:
        """What most calls are, so that something is going on when the rest happens."""
        self.offer(number, drawn)
        self.lease(number, limit, {}, set(), ttl)
        self.settle(number, ended, [], [], {})

    @precondition(lambda self: self.model.having("leased"))
    @rule(number=workers, chosen=picks)
    def bury(self, number: int, chosen: list[int]) -> None:
        """Leases are given up, and go on."""
        worker, frontier = self._worker(number)
        for lease in self._pick(worker, chosen):
            record = b"early record of %d" % lease.id
            verdict = self.drive(frontier.bury(lease, record))
            assert verdict == self.model.bury(lease, record, self.clock.time())

    @precondition(lambda self: self.model.having("leased"))
    @rule(number=workers, chosen=picks, ttl=ttls)
    def renew(self, number: int, chosen: list[int], ttl: float) -> None:
        worker, frontier = self._worker(number)
        leases = self._pick(worker, chosen)
        verdicts = self.drive(frontier.renew(leases, ttl))
        assert verdicts == self.model.renew(leases, self.clock.time() + ttl)

    @rule(seconds=st.sampled_from([0.5, 5.0, 11.0, 61.0]))
    def advance(self, seconds: float) -> None:
        self.clock.advance(seconds)

    @precondition(lambda self: self.model.having("leased"))
    @rule(number=workers, seconds=st.sampled_from([0.0, 11.0, 61.0]))
    def reclaim(self, number: int, seconds: float) -> None:
        _, frontier = self._worker(number)
        self.clock.advance(seconds)
        now = self.clock.time()
        expired = [one for one in self.model.having("leased") if one.deadline < now]
        assert self.drive(frontier.reclaim()) == self.model.take_back(expired, now)

    @rule(number=workers, crash=st.booleans())
    def close(self, number: int, crash: bool) -> None:
        """One worker ends, in order or not, and starts again."""
        worker, frontier = self._worker(number)
        if crash:
            self.crash(frontier)
        else:
            self.drive(frontier.close())
            self.model.close(worker)
        self._open(worker)

    @rule(number=workers, drain=st.booleans(), crash=st.booleans())
    def finish(self, number: int, drain: bool, crash: bool) -> None:
        """The crawl is complete, or so one worker says; all of them start again."""
        worker, frontier = self._worker(number)
        now = self.clock.time()
        if drain:
            for holder in sorted(self._frontiers):
                self.close(ord(holder) - ord("a"), crash=False)
            worker, frontier = self._worker(number)
            while self.model.pending:
                leases = self.drive(frontier.lease(5, {}, (), 10.25))
                self.model.leased(worker, leases, 5, {}, (), now, 10.25)
                self._leases[worker] += leases
                settlements = [Settlement(one) for one in leases]
                assert self.drive(frontier.settle(settlements)) == self.model.settle(worker, settlements, now)
                self.clock.advance(50)
                now = self.clock.time()
        self.drive(frontier.finish())
        self.model.finished = True
        for worker, frontier in self._frontiers.items():
            if crash:
                self.crash(frontier)
            else:
                self.drive(frontier.close())
                self.model.close(worker)
        for worker in sorted(self._frontiers):
            self._open(worker)

    @precondition(lambda self: not self.model.seeded)
    @rule(number=workers)
    def seeding_done(self, number: int) -> None:
        _, frontier = self._worker(number)
        self.drive(frontier.settle([], seeded=True))
        self.model.begun = self.model.seeded = True
        self.model.seeds.clear()

    @precondition(lambda self: self.model.having("dead"))
    @rule(
        number=workers,
        chosen=picks,
        others=picks,
        purge=st.sampled_from([False, False, True]),
        delay=st.sampled_from([0.0, 0.5, 20.0]),
        fresh=st.booleans(),
    )
    def repair(
        self, number: int, chosen: list[int], others: list[int], purge: bool, delay: float, fresh: bool
    ) -> None:
        """An operator replays or purges some of the dead, and ids that are of no dead request."""
        _, frontier = self._worker(number)
        dead = self.model.having("dead")
        ids = [dead[n].id for n in chosen if n < len(dead)] + [10**9]
        ids += [one.id for n in others for one in self.model.accepted[n : n + 1]]
        if purge:
            assert self.drive(frontier.purge(ids)) == self.model.purge(ids)
        else:
            now = self.clock.time()
            due = now + delay if delay else 0.0
            replays = [Replay(id_, due, self._payload() if fresh else None) for id_ in ids]
            assert self.drive(frontier.replay(replays)) == self.model.replay(replays, now)

    @rule(number=workers, seconds=st.sampled_from([0.0, 0.0, 101.0]))
    def expire(self, number: int, seconds: float) -> None:
        """The oldest of the dead are forgotten."""
        _, frontier = self._worker(number)
        self.clock.advance(seconds)
        expected = self.model.expire(DEAD_LIMIT, DEAD_SECONDS, self.clock.time())
        found = 0
        while step := self.drive(frontier.expire()):
            found += step
        assert found == expected

    @rule(number=workers)
    def keep_house(self, number: int) -> None:
        _, frontier = self._worker(number)
        self.drive(frontier.sync())
        self.drive(frontier.maintain())

    # What holds after each step

    @invariant()
    def check(self) -> None:
        for frontier in self._frontiers.values():
            now = self.clock.time()
            self.model.judge_counts(self.drive(frontier.counts()), now)
            self.model.judge_next_due(self.drive(frontier.next_due()), now)
            self.model.judge_dead(self.drive(frontier.dead(1000)))
            for key in KEYS:
                assert frontier.knows(key) in (key in self.model.seen, None)
