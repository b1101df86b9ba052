"""The guard: which hosts may be sent requests, learnt from how requests end."""

from __future__ import annotations

import itertools
import math
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scrapy_ha.retry.breaker import BreakerRules
from scrapy_ha.retry.budget import BudgetRules
from scrapy_ha.retry.guard import Guard
from scrapy_ha.retry.outage import OutageRules
from scrapy_ha.retry.pace import PaceRules
from scrapy_ha.testing import FakeClock

RULES = BreakerRules()


def make(clock: FakeClock | None = None, **options: Any) -> tuple[Guard, FakeClock]:
    clock = clock or FakeClock(1000.0)
    given: dict[str, Any] = {
        "budget": BudgetRules(),
        "breaker": RULES,
        "pace": PaceRules(),
        "outage": OutageRules(),
        **options,
    }
    return Guard(clock, Random(1), **given), clock


def fail(guard: Guard, clock: FakeClock, slot: str, cls: str, times: int = 1) -> list[bool]:
    """Requests that are sent one by one and fail."""
    counted = []
    for _ in range(times):
        guard.taken(slot)
        guard.sent(slot, first=True)
        sent = clock.time()
        clock.advance(0.01)
        counted.append(guard.failed(slot, cls, sent).counts)
    return counted


# Breakers (R7)


def test_a_few_failures_among_successes_open_nothing() -> None:
    """Below the minimum of outcomes the rate is not looked at."""
    guard, clock = make(outage=None)
    for outcome in "FFFS" + "SF" * 7:
        if outcome == "F":
            fail(guard, clock, "a", "server")
        else:
            guard.succeeded("a", clock.time())
        assert guard.limit("a") is None


def test_broken_pages_do_not_make_a_host_sick() -> None:
    """However often each is tried; failures to connect count every time."""
    guard, clock = make(outage=None)
    for _ in range(100):
        assert guard.failed("a", "server", clock.time(), again=True).counts
        assert guard.limit("a") is None
    for _ in range(5):
        guard.failed("a", "refused", clock.time(), again=True)
    assert guard.limit("a") == 0


@pytest.mark.parametrize(("cls", "counts"), [("server", True), ("refused", False)])
def test_a_probe_that_is_answered_is_an_attempt(cls: str, counts: bool) -> None:
    """Else a page that is broken would be the probe for ever."""
    guard, clock = make(outage=None)
    fail(guard, clock, "a", "server", 20)
    clock.advance(RULES.cooldown * 1.3)
    guard.taken("a")
    assert guard.failed("a", cls, clock.time(), again=True).counts is counts
    assert guard.limit("a") == 0


def test_what_is_forced_is_known() -> None:
    """So that it can be taken back."""
    guard, clock = make()
    guard.force("a", "open")
    guard.force("b", "closed")
    assert guard.forced() == {"a", "b"}
    again, _ = make(clock)
    again.restore(guard.export())
    assert again.forced() == {"a", "b"}
    again.force("a", None)
    assert again.forced() == {"b"}


@pytest.mark.parametrize(("cls", "times"), [("server", 20), ("refused", 5), ("dns", 5), ("timeout", 5)])
def test_opens_lets_one_probe_through_and_closes(cls: str, times: int) -> None:
    guard, clock = make(outage=None)
    assert all(fail(guard, clock, "a", cls, times))
    assert guard.limit("a") == 0
    assert guard.limit("b") is None
    told: list[str | None] = []
    guard.changed = told.append
    clock.advance(RULES.cooldown * 1.3)
    guard.tick()
    assert told == ["a"]
    assert guard.limit("a") == 1
    guard.taken("a")
    guard.sent("a", first=True)
    assert not guard.admits("a")
    guard.succeeded("a", clock.time())
    assert guard.limit("a") is None
    assert told == ["a", "a"]


def test_a_probe_that_fails_costs_no_attempt_and_doubles_the_wait() -> None:
    guard, clock = make(outage=None)
    fail(guard, clock, "a", "refused", 5)
    waits = []
    for _ in range(7):
        opened = clock.time()
        while guard.limit("a") == 0:
            clock.advance(1)
        waits.append(clock.time() - opened)
        assert fail(guard, clock, "a", "refused") == [False]
    assert all(later >= min(1.5 * sooner, RULES.max_cooldown) for sooner, later in itertools.pairwise(waits))
    assert max(waits) <= RULES.max_cooldown * 1.2 + 1


def test_what_was_on_its_way_when_it_opened_changes_nothing() -> None:
    guard, clock = make(outage=None)
    sent = clock.time()
    fail(guard, clock, "a", "refused", 5)
    guard.succeeded("a", sent)
    assert guard.failed("a", "refused", sent).counts
    assert guard.limit("a") == 0


@pytest.mark.parametrize("cls", ["client", "auth", "callback", "a class of the project's"])
def test_answers_that_are_no_fault_of_the_host_open_nothing(cls: str) -> None:
    guard, clock = make()
    fail(guard, clock, "a", cls, 100)
    assert guard.limit("a") is None
    assert len(guard) == 0


def test_a_host_that_stays_down_is_dead_and_is_tried_again_later() -> None:
    guard, clock = make(breaker=BreakerRules(deadline=100), outage=None)
    fail(guard, clock, "a", "refused", 5)
    while not guard.is_dead("a"):
        clock.advance(1)
        if guard.limit("a") == 1:
            fail(guard, clock, "a", "refused")
        assert clock.time() < 1500
    assert guard.limit("a") is None  # what waits comes out, to be given up
    clock.advance(1200)
    assert not guard.is_dead("a")
    assert guard.limit("a") == 1
    guard.taken("a")
    guard.succeeded("a", clock.time())
    assert guard.state("a") == "closed"


def test_by_hand() -> None:
    guard, clock = make(outage=None)
    guard.force("a", "open")
    clock.advance(10_000)
    assert guard.limit("a") == 0
    guard.force("a", "closed")
    fail(guard, clock, "a", "refused", 50)
    assert guard.limit("a") is None
    guard.force("a", None)
    fail(guard, clock, "a", "refused", 5)
    assert guard.limit("a") == 0
    with pytest.raises(ValueError, match="half"):
        guard.force("a", "half")


def half_open(slot: str = "a") -> tuple[Guard, FakeClock]:
    guard, clock = make(outage=None)
    fail(guard, clock, slot, "refused", 5)
    clock.advance(RULES.cooldown * 1.3)
    assert guard.state(slot) == "half-open"
    return guard, clock


def send(guard: Guard, clock: FakeClock, slot: str) -> float:
    guard.taken(slot)
    guard.sent(slot, first=True)
    return clock.time()


def test_what_the_probe_waits_for_may_be_sent() -> None:
    """A page that was handed out needs robots.txt first: that is the probe, and nothing beside it."""
    guard, clock = half_open()
    guard.taken("a")
    assert guard.admits("a")
    sent = send(guard, clock, "a")
    assert not guard.admits("a")
    guard.succeeded("a", sent)
    assert guard.state("a") == "closed"


def test_a_probe_of_which_nothing_went_out_makes_room() -> None:
    """It was answered out of a cache: it is no success, and another one may go at once."""
    guard, clock = half_open()
    guard.unsent("a", send(guard, clock, "a"))
    assert guard.state("a") == "half-open"
    assert guard.admits("a")


def test_a_response_that_others_keep_to_themselves_makes_room() -> None:
    """Something came back, but what it says is never reported."""
    guard, clock = half_open()
    guard.heard("a", send(guard, clock, "a"))
    assert guard.state("a") == "half-open"
    assert guard.admits("a")


def test_a_long_sleep_does_not_use_up_the_budget() -> None:
    """Sixteen requests fail after a day in which the process was stopped: their retries go within minutes."""
    guard, clock = make(outage=None)
    sent = clock.time()
    clock.advance(86_400)
    for n in range(16):
        guard.failed(f"host{n}", "timeout", sent)
    times = [guard.reserve_retry(f"host{n}") for n in range(16)]
    assert max(times) - clock.time() <= 16 * BudgetRules().longest / BudgetRules().connections


# Holds


def test_a_hold_stands_until_its_time_and_the_longer_one_counts() -> None:
    guard, clock = make()
    guard.hold("a", 1010.0)
    guard.hold("a", 1005.0)
    guard.hold("b", math.inf)
    assert (guard.limit("a"), guard.limit("b")) == (0, None)
    assert guard.free_at("a") == 1010.0
    clock.advance(9.9)
    assert guard.limit("a") == 0
    clock.advance(0.1)
    guard.tick()
    assert guard.limit("a") is None
    assert guard.next_event() is None or guard.next_event() > clock.time()  # type: ignore[operator]


# Simulations


def test_a_server_that_answers_503_for_ten_minutes() -> None:
    """A thousand URLs, eight at a time: hardly more is sent than there are; then full speed again."""
    guard, clock = make()
    waiting = [(0.0, n) for n in range(1000)]
    sent = done = 0
    fine_from = clock.time() + 600
    recovered = None
    while done < 1000 and clock.time() < fine_from + 2000:
        guard.tick()
        now = clock.time()
        limit = guard.limit("a") if guard.is_open() else 0
        due = sorted(one for one in waiting if one[0] <= now)[: 8 if limit is None else min(limit, 8)]
        for one in due:
            waiting.remove(one)
            guard.taken("a")
            guard.sent("a", first=one[0] == 0)
            sent += 1
        clock.advance(0.1)
        for one in due:
            if now >= fine_from:
                guard.succeeded("a", now)
                done += 1
                recovered = recovered or now
            else:
                guard.failed("a", "server", now)
                waiting.append((max(now + 1, guard.reserve_retry("a")), one[1]))
    assert done == 1000
    assert sent <= 1.2 * 1000
    assert recovered is not None
    assert recovered - fine_from <= RULES.max_cooldown * 1.2
    assert clock.time() - recovered <= 120


def test_a_dead_host_sees_one_request_at_a_time() -> None:
    guard, clock = make(outage=None)
    fail(guard, clock, "dead", "refused", 5)
    sent = 0
    for _ in range(7200):
        guard.tick()
        limit = guard.limit("dead")
        if guard.is_dead("dead"):
            break
        assert limit in (0, 1)
        if limit:
            fail(guard, clock, "dead", "refused")
            sent += 1
        clock.advance(1)
    assert sent <= 15


def test_an_outage_counts_at_most_once_for_each_request() -> None:
    """R5: 50 hosts fail for 10 s, two requests each in turn; then it goes on with the first answer."""
    guard, clock = make()
    for n in range(50):
        guard.succeeded(f"host{n}", clock.time())
    clock.advance(1)
    counted: dict[str, int] = {}
    ends = clock.time() + 10
    while clock.time() < ends:
        for n in range(50):
            if guard.is_open() and guard.limit(f"host{n}") is None:
                slot = f"host{n}"
                counted[slot] = counted.get(slot, 0) + fail(guard, clock, slot, "refused")[0]
        clock.advance(0.5)
        guard.tick()
    assert max(counted.values()) <= 1
    assert guard.in_outage
    while not guard.is_open():
        clock.advance(0.5)
        guard.tick()
    guard.taken("host7")
    assert not guard.is_open()
    guard.succeeded("host7", clock.time())
    assert guard.is_open()
    assert all(guard.limit(f"host{n}") in (None, 1) for n in range(50))


def in_outage() -> tuple[Guard, FakeClock]:
    """A probe may go at this moment."""
    guard, clock = make()
    for n in range(10):
        fail(guard, clock, f"host{n}", "refused")
    clock.advance(3)
    guard.tick()
    assert guard.in_outage
    clock.advance(5)
    guard.tick()
    assert guard.is_open()
    return guard, clock


@pytest.mark.parametrize("sent", [False, True])
def test_a_dropped_probe_of_an_outage_is_replaced(sent: bool) -> None:
    """A thousand queued requests that are dropped, or come out of a cache, keep none waiting."""
    guard, clock = in_outage()
    for n in range(1000):
        assert guard.is_open()
        guard.taken(f"host{n}")
        assert not guard.is_open()
        if sent:
            guard.sent(f"host{n}", first=True)
        guard.unsent(f"host{n}", clock.time() if sent else None)
    assert guard.is_open()
    guard.taken("host1")
    guard.sent("host1", first=True)
    assert guard.free_at("host1") - clock.time() == 10


def test_what_never_was_a_probe_brings_no_other() -> None:
    """While one is on its way, requests that end unsent change nothing."""
    guard, clock = in_outage()
    before = clock.time() - 1
    send(guard, clock, "host1")
    guard.unsent("host2")
    guard.unsent("host3", before)
    assert not guard.is_open()


def test_what_the_probe_of_an_outage_waits_for_may_be_sent() -> None:
    """And nothing else until the time of the next."""
    guard, clock = in_outage()
    guard.taken("host1")
    assert not guard.is_open()
    assert guard.admits("host1")
    send(guard, clock, "host1")
    assert not guard.admits("host1")
    assert guard.free_at("host1") - clock.time() == 10
    clock.advance(10)
    assert guard.is_open()


def test_any_response_ends_an_outage() -> None:
    """Whatever becomes of it."""
    guard, clock = in_outage()
    guard.heard("host1", send(guard, clock, "host1"))
    assert not guard.in_outage


def test_dead_names_among_good_hosts_are_no_outage() -> None:
    """R6: a thousand of them, and ten hosts that answer."""
    guard, clock = make()
    for n in range(1000):
        fail(guard, clock, f"dead{n}.invalid", "dns", 3)
        guard.succeeded(f"good{n % 10}", clock.time())
        assert guard.is_open()
    assert all(guard.limit(f"good{n}") is None for n in range(10))


# Storage


def troubled() -> tuple[Guard, FakeClock]:
    guard, clock = make(outage=None)
    fail(guard, clock, "open", "refused", 5)
    guard.hold("held", clock.time() + 500)
    fail(guard, clock, "slow", "throttled", 10)
    guard.force("forced", "open")
    fail(guard, clock, "few", "server", 3)
    for _ in range(200):
        guard.reserve_retry("spent")
    return guard, clock


SLOTS = ("open", "held", "slow", "forced", "few", "spent", "healthy")


def answers(guard: Guard) -> list[Any]:
    return [
        (guard.limit(slot), guard.free_at(slot), guard.state(slot), guard.delay_of(slot)) for slot in SLOTS
    ]


def test_what_is_exported_answers_alike() -> None:
    guard, clock = troubled()
    other, _ = make(clock, outage=None)
    other.restore(guard.export())
    assert answers(other) == answers(guard)
    assert other.reserve_retry("spent") == pytest.approx(guard.reserve_retry("spent"))
    assert other.bad_records == 0


def test_restoring_twice_and_in_any_order_is_the_same() -> None:
    guard, clock = troubled()
    records = list(guard.export().items())
    one, _ = make(clock, outage=None)
    two, _ = make(clock, outage=None)
    for record in [*records, *records]:
        one.restore(dict([record]))
    for record in reversed(records):
        two.restore(dict([record]))
    assert answers(one) == answers(two) == answers(guard)


def test_only_changes_are_exported() -> None:
    guard, clock = troubled()
    assert guard.export()
    assert guard.export() == {}
    guard.hold("held", clock.time() + 900)
    assert set(guard.export()) == {"retry:slot:held"}


def test_bad_records_are_replaced() -> None:
    """So they are counted once, and the store does not keep them for ever."""
    guard, _ = make()
    guard.restore({"retry:slot:a": b"{", "retry:crawl": b"[]", "feed:x": b"?"})
    assert guard.bad_records == 2
    changes = guard.export()
    assert changes.pop("retry:slot:a") == b""
    again, _ = make()
    again.restore(changes)
    assert (set(changes), again.bad_records) == ({"retry:crawl"}, 0)


def test_changes_that_nobody_stores_are_forgotten() -> None:
    """Else a crawl with another scheduler would remember every slot that ever failed."""
    guard, clock = make(outage=None)
    for n in range(100):
        fail(guard, clock, f"host{n}", "server")
    guard.discard_changes()
    assert guard.export().keys() <= {"retry:crawl"}


@given(st.dictionaries(st.sampled_from(["retry:slot:a", "retry:crawl", "else"]), st.binary(max_size=200)))
def test_any_bytes_are_survived(records: dict[str, bytes]) -> None:
    guard, _ = make()
    guard.restore(records)
    assert guard.limit("a") in (None, 0, 1)
    assert guard.is_open()


# Whatever happens

steps = st.lists(
    st.tuples(
        st.sampled_from(
            ["take", "answer", "refused", "server", "throttled", "other", "hold", "retry", "wait"]
        ),
        st.sampled_from("abc"),
        st.floats(0.01, 100),
    ),
    max_size=80,
)


@given(steps)
def test_holds_are_kept_to_probes_are_single_and_time_goes_on(taken: list[tuple[str, str, float]]) -> None:
    guard, clock = make()
    held: dict[str, float] = {}
    for what, slot, number in taken:
        now = clock.time()
        if what == "take" and guard.is_open() and guard.limit(slot) != 0 and guard.admits(slot):
            guard.taken(slot)
            guard.sent(slot, first=True)
            if guard.limit(slot) == 1:
                assert not guard.admits(slot)
        elif what == "answer":
            guard.succeeded(slot, now)
        elif what in ("refused", "server", "throttled", "other"):
            guard.failed(slot, what, now)
        elif what == "hold":
            guard.hold(slot, now + number)
            held[slot] = max(held.get(slot, 0), now + number)
        elif what == "retry":
            assert now <= guard.reserve_retry(slot) <= now + 3600
        else:
            clock.advance(number)
        guard.tick()
        event = guard.next_event()
        assert event is None or event > clock.time()
        for one, until in held.items():
            assert clock.time() >= until or guard.limit(one) == 0


def test_the_number_of_records_is_bounded() -> None:
    guard, clock = make(outage=None, max_slots=100)
    for n in range(1000):
        fail(guard, clock, f"host{n}", "server")
    assert len(guard) <= 100
    assert guard.forgotten >= 900
