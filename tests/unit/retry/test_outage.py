"""Our own network is down when slots fail alike and nobody answers; dead hosts are no outage."""

from __future__ import annotations

from scrapy_ha.retry.outage import UNSURE, Outage, OutageRules

RULES = OutageRules()


def fail(outage: Outage, slots: int, now: float, each: int = 1, since: float | None = None) -> list[bool]:
    return [
        outage.failed(f"s{number}", now if since is None else since, now, True)
        for number in range(slots)
        for _ in range(each)
    ]


def down(now: float = 0.0, outage: Outage | None = None) -> Outage:
    outage = outage or Outage(RULES)
    fail(outage, 10, now)
    assert outage.check(now + RULES.silence)
    assert outage.on
    return outage


def test_suspected_before_it_is_believed() -> None:
    """From the tenth failure on nothing counts; the pause comes when the silence has lasted."""
    outage = Outage(RULES)
    assert fail(outage, 12, 0) == [False] * 9 + [True] * 3
    assert outage.next_event(0) == 3
    assert not outage.check(2.9)
    assert outage.allows(2.9)
    assert outage.check(3)
    assert not outage.allows(3)


def test_many_failures_of_few_slots_are_none() -> None:
    """Four dead hosts with a thousand URLs each."""
    outage = Outage(RULES)
    assert not any(fail(outage, 4, 0, each=1000))
    assert not outage.check(3)


def test_slots_that_fail_otherwise_are_counted_against_it() -> None:
    """Nine of eleven slots are no nine tenths."""
    outage = Outage(RULES)
    for slot in ("t1", "t2"):
        outage.failed(slot, 0, 0, False)
    assert not any(fail(outage, 9, 0, each=2))
    assert not outage.check(3)


def test_one_answer_in_the_silence_ends_the_suspicion() -> None:
    """And what failed before it is no sign any more, nor is it when it fails again."""
    outage = Outage(RULES)
    fail(outage, 100, 0)
    assert not outage.answered("good", 1)
    assert not any(fail(outage, 100, 2, since=0))
    assert not outage.check(10)


def test_old_failures_are_no_sign() -> None:
    """One every two seconds is no outage."""
    outage = Outage(RULES)
    for number in range(100):
        assert not outage.failed(f"s{number}", 2.0 * number, 2.0 * number, True)
    assert outage.next_event(200) is None


def test_probes_after_5_10_20_40_60_60_seconds() -> None:
    """One request each; none between them."""
    outage, now = down(0), 3.0
    waits = []
    for _ in range(6):
        probe = outage.next_event(now)
        assert probe is not None
        assert probe == outage.free_at(probe - 0.001)
        waits.append(probe - now)
        assert not outage.allows(probe - 0.001)
        assert outage.allows(probe)
        outage.taken(probe)
        assert not outage.allows(probe)
        now = probe
    assert waits == [5, 10, 20, 40, 60, 60]


def test_a_probe_that_nobody_takes_is_no_event() -> None:
    """The gate stays open for it; there is nothing to wake for but the deadline."""
    outage = down(0)
    assert outage.next_event(100) == 3 + RULES.deadline
    assert outage.allows(100)


def test_any_answer_ends_it() -> None:
    """At once."""
    outage = down(0)
    assert outage.answered("a", 4)
    assert not outage.on
    assert outage.allows(4)
    assert not outage.answered("a", 5)


def test_it_is_believed_for_so_long_only() -> None:
    """Then the crawl goes on, failures count, and only an answer makes another one possible."""
    outage = down(0)
    assert not outage.check(3 + RULES.deadline - 1)
    assert outage.check(3 + RULES.deadline)
    assert not outage.on
    now = 4 + RULES.deadline
    assert not any(fail(outage, 50, now))
    assert not outage.check(now + 10)
    outage.answered("s1", now + 20)
    down(now + 21, outage)


def test_it_is_believed_less_of_slots_that_never_answered() -> None:
    """Others had: perhaps most of those left are dead. Those that did answer are surely there."""
    strangers = Outage(RULES)
    strangers.answered("s1", 0)
    down(1, strangers)
    assert strangers.check(4 + RULES.deadline * UNSURE)
    friends = Outage(RULES)
    for number in range(10):
        friends.answered(f"s{number}", 0)
    down(1, friends)
    assert not friends.check(4 + RULES.deadline * UNSURE)


def test_strangers_alone_are_no_outage() -> None:
    """Dead names that are slow to fail keep a host that has answered from being asked. Nothing pauses; they
    are tried again now and then, at no cost, but not for ever."""
    outage = Outage(RULES)
    outage.answered("good", 0)
    now = 1.0
    while now < RULES.deadline * UNSURE:
        counted = fail(outage, 16, now)
        assert now < 1.1 or all(counted)
        assert not outage.check(now + RULES.silence)
        assert outage.allows(now + RULES.silence)
        assert now < outage.free_at(now + RULES.silence) <= now + RULES.silence + RULES.max_probe
        now += 5
    assert not outage.check(RULES.deadline * UNSURE + 1)
    assert not any(fail(outage, 16, now + 1))
    outage.answered("good", now + 2)
    outage.failed("good", now + 3, now + 3, True)
    down(now + 3, outage)


def test_without_rules_there_is_none() -> None:
    """And nothing to wake for."""
    outage = Outage(None)
    assert not any(fail(outage, 1000, 0))
    assert not outage.check(100)
    assert outage.next_event(0) is None
    assert outage.allows(0)


def test_memory_is_bounded() -> None:
    """A million failures in one window, of different slots; a million slots that answered."""
    outage = Outage(OutageRules(failures=10**9))
    for number in range(50_000):
        outage.failed(f"s{number}", 1, 1, True)
    assert len(outage._entries) <= 1000
    assert len(outage._signs) <= 1000
    for number in range(50_000):
        outage.answered(f"s{number}", 2)
    assert len(outage._worked) + len(outage._worked_before) <= 20_000
