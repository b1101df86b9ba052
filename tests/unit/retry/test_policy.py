"""What the built-in policy makes of a failure."""

from __future__ import annotations

from random import Random
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from scrapy_ha.retry.policy import UNLIMITED, Backoff, Failed, GiveUp, Never, Retry

seconds = st.floats(0, 1e9)


def failed(attempt: int = 1, **facts: Any) -> Failed:
    given: dict[str, Any] = {
        "cls": "server",
        "attempt": attempt,
        "attempts": attempt,
        "limit": 2,
        "first_failure": 1000.0,
        "now": 1000.0,
        **facts,
    }
    return Failed(**given)


def plan(policy: Backoff, seed: int, n: int = 8) -> list[float]:
    """Delays of one request that carries its last one along."""
    random, delays = Random(seed), [0.0]
    for attempt in range(1, n + 1):
        answer = policy.decide(failed(attempt, delay=delays[-1]), random)
        assert isinstance(answer, Retry)
        delays.append(answer.delay)
    return delays[1:]


@given(
    st.builds(
        Backoff,
        kind=st.sampled_from(["fixed", "linear", "exponential"]),
        base=seconds,
        factor=st.floats(1, 100),
        cap=seconds,
        floor=seconds,
        jitter=st.sampled_from(["none", "full", "equal"]),
        last=st.none() | seconds,
        retries=st.none() | st.integers(0, 50) | st.just(UNLIMITED),
        deadline=st.none() | seconds,
    ),
    st.builds(
        Failed,
        cls=st.just("server"),
        attempt=st.integers(1, 10**6),
        attempts=st.integers(0, 10**6),
        limit=st.integers(-1, 100),
        first_failure=seconds,
        now=seconds,
        delay=seconds,
        asked=seconds,
    ),
    st.integers(),
)
def test_any_decision_keeps_to_the_limits(policy: Backoff, failure: Failed, seed: int) -> None:
    """Never negative, never above the cap unless the server asks, never past number and deadline."""
    answer = policy.decide(failure, Random(seed))
    assert answer == policy.decide(failure, Random(seed))
    if isinstance(answer, GiveUp):
        return
    assert 0 <= answer.delay <= max(policy.cap, failure.asked)
    assert answer.delay >= failure.asked
    assert policy.retries is None or failure.attempt <= policy.retries
    assert policy.retries is not None or failure.attempts <= failure.limit
    assert policy.deadline is None or failure.elapsed + answer.delay <= policy.deadline


def test_number_of_retries() -> None:
    """Its own counts its class, RETRY_TIMES all classes."""
    random = Random(1)
    assert isinstance(Backoff().decide(failed(2), random), Retry)
    assert Backoff().decide(failed(3), random) == GiveUp("failed 3 times")
    assert isinstance(Backoff(retries=3).decide(failed(3, attempts=9), random), Retry)
    assert isinstance(Backoff(retries=3).decide(failed(4), random), GiveUp)
    assert isinstance(Backoff(retries=UNLIMITED).decide(failed(10**6), random), Retry)


def test_deadline_stops_early() -> None:
    """No wait is begun whose end would be too late."""
    policy = Backoff("fixed", base=10, jitter="none", retries=UNLIMITED, deadline=25)
    assert policy.decide(failed(now=1015), Random()) == Retry(10)
    answer = policy.decide(failed(now=1015.1), Random())
    assert isinstance(answer, GiveUp)
    assert answer.exhausted
    assert isinstance(policy.decide(failed(asked=25.1), Random()), GiveUp)


def test_last_retry_may_be_a_long_one() -> None:
    """A few quick ones, then one that gives it time."""
    policy = Backoff(base=0.05, floor=0.01, jitter="none", last=30, retries=4)
    assert plan(policy, 1, 4) == [0.05, 0.1, 0.2, 30]


def test_decorrelated_jitter_goes_on_from_the_last_wait() -> None:
    """It travels with the request: the same after a restart; and no two requests keep step."""
    policy = Backoff(base=1, factor=3, cap=60, jitter="decorrelated", retries=UNLIMITED)
    assert policy.between(1) == (1, 3)
    assert policy.between(2, previous=10) == (1, 30)
    assert policy.between(9, previous=50) == (1, 60)
    assert plan(policy, 5) == plan(policy, 5) != plan(policy, 6)


def test_never() -> None:
    """At the first failure, and not for having been tried too often."""
    assert Never().decide(failed(), Random()) == GiveUp("never retried", exhausted=False)
