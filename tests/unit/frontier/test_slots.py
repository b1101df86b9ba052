"""What it costs to find the next request, in slots looked at, not in time."""

from __future__ import annotations

from scrapy_ha.frontier._slots import Item, Slots
from scrapy_ha.typing import SlotSet

HELD = 5000
HEALTHY = 50


class Counting(SlotSet):
    """Counts how often a slot is looked up in it."""

    looked = 0

    def __contains__(self, slot: object) -> bool:
        self.looked += 1
        return super().__contains__(slot)


def make(slots: int) -> Slots:
    """So many slots, each with entries without end."""
    one = Slots(lambda prefix, bound, limit: [(b"%b %09d" % (prefix, n), b"") for n in range(limit)])
    for n in range(slots):
        one.load(b"%d" % n, str(n), more=True)
    return one


def name(found: tuple[str, Item] | None) -> str:
    assert found is not None
    return found[0]


def test_slots_held_for_long_are_met_once() -> None:
    """A broad crawl with thousands of hosts on hold pays for them once, not with every request."""
    slots = make(HELD + HEALTHY)
    full = Counting(map(str, range(HELD)))
    taken = [name(slots.take({}, full)) for _ in range(1000)]
    assert full.looked <= HELD + 2 * 1000
    assert set(taken) == set(map(str, range(HELD, HELD + HEALTHY)))
    assert [taken.count(one) for one in set(taken)] == [1000 // HEALTHY] * HEALTHY


def test_a_slot_that_comes_and_goes_costs_a_step_each() -> None:
    """As those do that reach their limit and are free again with every request."""
    slots = make(HELD + HEALTHY)
    full = Counting(map(str, range(HELD)))
    slots.take({}, full)
    full.looked = 0
    for _ in range(1000):
        busy = name(slots.take({}, full))
        full.add(busy)
        slots.take({}, full)
        full.discard(busy)
    assert full.looked <= 5 * 1000


def test_a_slot_that_is_free_again_is_next() -> None:
    """At once, with thousands of others on hold."""
    slots = make(HELD + HEALTHY)
    full = SlotSet(map(str, range(HELD)))
    for n in (7, HELD - 1, 0):
        assert int(name(slots.take({}, full))) >= HELD
        full.discard(str(n))
        assert name(slots.take({}, full)) == str(n)
        full.add(str(n))
    assert int(name(slots.take({}, full))) >= HELD


def test_another_set_is_judged_anew() -> None:
    """What was set aside for one set is there for the next, whatever kind it is."""
    slots = make(3)
    full = SlotSet(["0", "1"])
    assert name(slots.take({}, full)) == "2"
    assert {name(slots.take({}, ())) for _ in range(3)} == {"0", "1", "2"}
    assert name(slots.take({}, {"0", "2"})) == "1"
    assert name(slots.take({}, SlotSet(["1", "2"]))) == "0"
    assert slots.take({}, {"0", "1", "2"}) is None


def test_new_entries_of_a_held_slot_wait_with_it() -> None:
    """They are found when it is free again."""
    slots = Slots(lambda prefix, bound, limit: [])
    full = SlotSet(["a"])
    slots.load(b"a", "a", more=False)
    slots.add(b"a", (b"a1", b"one"))
    assert slots.take({}, full) is None
    slots.add(b"a", (b"a2", b"two"))
    assert len(slots) == 1
    full.discard("a")
    assert [slots.take({}, full) for _ in range(3)] == [("a", (b"a1", b"one")), ("a", (b"a2", b"two")), None]
    assert len(slots) == 0
