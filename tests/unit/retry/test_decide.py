"""Retry, give up, or not our business: decided from the facts of one attempt."""

from __future__ import annotations

import logging
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scrapy.settings import Settings

from scrapy_ha.errors import SettingError
from scrapy_ha.retry.classify import classify_status
from scrapy_ha.retry.configure import classify_of, decider_of
from scrapy_ha.retry.decide import Attempt, Decider, heeds_retry_after, reclassify
from scrapy_ha.retry.policy import Failed, GiveUp, Retry
from scrapy_ha.retry.retry_after import parse_retry_after


class Bench:
    def __init__(self, spider: Any = None, **settings: Any) -> None:
        self.troubles: list[str] = []
        self.decider: Decider = decider_of(Settings(settings), spider, Random(1), self.troubles.append)

    def status(self, status: int, **facts: Any) -> str:
        cls = classify_status(status, facts.get("retry_after") is not None)
        return self.attempt(cls=cls and cls.value, status=status, **facts)

    def attempt(self, cls: str | None = "connection", retries: int = 0, **facts: Any) -> str:
        """In short: ``passes``, ``retry``, or why it is given up. Of *retries* so far, all in this class."""
        facts.setdefault("now", 1000.0)
        facts.setdefault("state", {"attempts": {cls: retries}, "first_failure": 1000.0} if retries else {})
        facts["meta"] = {"retry_times": retries, **facts.get("meta", {})}
        decision = self.decider.decide(Attempt(cls, **facts))
        if decision is None:
            return "passes"
        return decision.reason if decision.delay is None else "retry"

    def failure(self, exception: BaseException, cls: str, **facts: Any) -> str:
        return self.attempt(cls, exception=exception, **facts)


@pytest.mark.parametrize(
    ("settings", "status", "outcome"),
    [
        ({}, 503, "retry"),
        ({}, 429, "retry"),
        ({}, 520, "passes"),
        ({}, 404, "passes"),
        ({}, 403, "passes"),
        ({}, 200, "passes"),
        ({"RETRY_HTTP_CODES": [404, 202]}, 404, "retry"),
        ({"RETRY_HTTP_CODES": [404, 202]}, 202, "retry"),
        ({"RETRY_HTTP_CODES": [404, 202]}, 503, "passes"),
        ({"HA_RETRY_POLICIES": {"auth": {"retries": 1}}}, 403, "retry"),
        ({"HA_RETRY_POLICIES": {"auth": "never"}}, 403, "passes"),
        ({"HA_RETRY_POLICIES": {"server": {"base": 1}}}, 520, "passes"),
        ({"HA_RETRY_POLICIES": {"server": "never"}}, 503, "never retried"),
        ({"HA_RETRY_POLICIES": '{"server": "never"}'}, 503, "never retried"),
        ({"HA_RETRY_POLICIES": {"client": "never"}, "RETRY_HTTP_CODES": [404]}, 404, "never retried"),
    ],
)
def test_answers(settings: dict[str, Any], status: int, outcome: str) -> None:
    """By Scrapy's list; a policy adds the answers of a class that the list leaves out."""
    assert Bench(**settings).status(status) == outcome


@pytest.mark.parametrize(
    ("settings", "exception", "cls", "outcome"),
    [
        ({}, ConnectionResetError(), "connection", "retry"),
        ({}, OSError(), "tls", "never retried"),
        ({}, KeyError(), "other", "passes"),
        ({}, FileNotFoundError(), "permanent", "never retried"),
        ({"RETRY_EXCEPTIONS": [FileNotFoundError]}, FileNotFoundError(), "permanent", "retry"),
        ({"RETRY_EXCEPTIONS": [OSError]}, FileNotFoundError(), "permanent", "never retried"),
        ({"HA_RETRY_POLICIES": {"other": {"retries": 1}}}, KeyError(), "other", "retry"),
        ({"HA_RETRY_POLICIES": {"permanent": {"retries": 1}}}, KeyError(), "permanent", "passes"),
    ],
)
def test_exceptions(settings: dict[str, Any], exception: Exception, cls: str, outcome: str) -> None:
    """Likewise; what is hopeless is retried where the very exception is named."""
    assert Bench(**settings).failure(exception, cls) == outcome


@pytest.mark.parametrize(
    ("settings", "meta", "retries"),
    [
        ({}, {}, 2),
        ({"RETRY_TIMES": 5}, {}, 5),
        ({"RETRY_TIMES": 5}, {"max_retry_times": 1}, 1),
        ({"HA_RETRY_POLICIES": {"server": {"retries": 4}}, "RETRY_TIMES": 1}, {}, 4),
        ({"HA_RETRY_POLICIES": {"server": {"retries": 4}}}, {"max_retry_times": 1}, 1),
        ({"HA_RETRY_POLICIES": {"server": {"base": 4}}, "RETRY_TIMES": 1}, {}, 1),
        ({}, {"max_retry_times": 1, "ha_retry": {"retries": 3}}, 3),
        ({}, {"max_retry_times": 1, "ha_retry": {"base": 3}}, 1),
        ({}, {"max_retry_times": "x"}, 2),
        ({}, {"dont_retry": False}, 2),
    ],
)
def test_number_of_retries(settings: dict[str, Any], meta: dict[str, Any], retries: int) -> None:
    """The nearer to the request, the more it counts."""
    bench = Bench(**settings)
    for n in range(retries):
        assert bench.status(503, retries=n, meta=meta) == "retry"
    assert bench.status(503, retries=retries, meta=meta) == f"failed {retries + 1} times"


def test_what_a_callback_asks_for_was_counted_already() -> None:
    """By Scrapy's ``get_retry_request``, whose own arguments are not seen here; a policy may count again."""
    facts: dict[str, Any] = {"cls": "callback", "status": 200, "named": True, "method": "POST"}
    assert Bench().attempt(retries=9, meta={"max_retry_times": 2}, **facts) == "retry"
    limited = Bench(HA_RETRY_POLICIES={"callback": {"retries": 3}})
    assert limited.attempt(retries=3, **facts) == "failed 4 times"


def test_dont_retry() -> None:
    """Nothing is decided."""
    assert Bench().status(503, meta={"dont_retry": True}) == "passes"


def test_throttled_until_a_deadline() -> None:
    """Any number of times, unless the project counts; what it costs does not count for other classes."""
    bench = Bench()
    state = {"attempts": {"throttled": 500}, "first_failure": 0.0}
    assert bench.status(429, retries=500, state=state, now=3500.0) == "retry"
    assert "over 3600 s" in bench.status(429, retries=500, state=state, now=3600.0)
    assert bench.status(503, retries=500, state=state, now=3600.0) == "retry"
    assert Bench(RETRY_TIMES=2).status(429, retries=2) == "failed 3 times"
    assert bench.status(429, retries=2, meta={"max_retry_times": 2}) == "failed 3 times"


def test_what_does_not_count_is_retried_always() -> None:
    """A breaker's probe or an outage uses up no attempt and no time."""
    bench = Bench()
    assert bench.status(503, retries=2, counts=False) == "retry"
    assert bench.status(429, retries=2, counts=False, now=10**6) == "retry"


@pytest.mark.parametrize("cls", ["dns", "refused", "proxy", "throttled"])
def test_what_was_not_processed_is_retried_with_any_method(cls: str) -> None:
    """Nobody acted upon it."""
    assert Bench().attempt(cls, exception=OSError(), method="POST") == "retry"


def test_methods_that_may_not_be_repeated() -> None:
    """Unless the request or a setting says that they may."""
    assert Bench().status(503, method="POST") == "POST may have been processed"
    assert Bench().status(503, method="put") == "retry"
    assert Bench(HA_RETRY_METHODS="GET, post").status(503, method="POST") == "retry"
    meta = {"ha_retry": {"idempotent": True}}
    assert Bench().status(503, method="POST", meta=meta) == "retry"
    assert Bench().status(503, method="GET", meta={"ha_retry": {"idempotent": False}}).startswith("GET may")
    assert Bench(HA_RETRY_POLICIES={"server": {"idempotent": True}}).status(503, method="POST") == "retry"


def test_spider_goes_before_settings() -> None:
    """By an attribute; what is wrong with it fails at start."""

    class Mine:
        ha_retry_policies: Any = None

    Mine.ha_retry_policies = {"server": "never"}
    assert Bench(Mine, HA_RETRY_POLICIES={"server": {"retries": 9}}).status(503) == "never retried"
    Mine.ha_retry_policies = ["server"]
    with pytest.raises(SettingError, match="ha_retry_policies"):
        Bench(Mine)


def test_bad_meta_is_ignored(caplog: pytest.LogCaptureFixture) -> None:
    """Logged once, counted each time."""
    bench = Bench()
    for _ in range(3):
        assert bench.status(503, meta={"ha_retry": {"retrys": 5}}) == "retry"
    assert bench.troubles == ["bad_meta"] * 3
    assert [record.getMessage() for record in caplog.records] == [
        """meta["ha_retry"]: there is no key 'retrys'. Did you mean "retries"? It is ignored."""
    ]


@pytest.mark.parametrize("answer", [Retry(-1), Retry(float("nan")), "soon", KeyError("x")])
def test_a_bad_policy_of_the_users(answer: Any) -> None:
    """What raises or answers nonsense: the default of the class decides."""

    def policy(failed: Failed, random: Random) -> Any:
        if isinstance(answer, Exception):
            raise answer
        return answer

    bench = Bench(HA_RETRY_POLICIES={"server": policy})
    assert bench.status(503) == "retry"
    assert bench.troubles == ["bad_policy"]
    assert bench.status(503, retries=2, meta={"max_retry_times": 2}) == "failed 3 times"


def test_a_policy_of_the_users_keeps_to_retry_after() -> None:
    """What the server asks for goes before it."""
    bench = Bench(HA_RETRY_POLICIES={"throttled": lambda failed, random: 1})
    decision = bench.decider.decide(Attempt("throttled", 0.0, status=429, retry_after=60.0))
    assert decision is not None
    assert decision.delay is not None
    assert 60 <= decision.delay <= 66


def test_retry_after_above_the_cap() -> None:
    """Parked until the cap, or given up."""
    decision = Bench().decider.decide(Attempt("throttled", 0.0, status=429, retry_after=1e6))
    assert decision is not None
    assert (decision.delay, decision.capped) == (3600, True)
    give_up = Bench(HA_RETRY_AFTER_BEYOND="give_up")
    assert give_up.status(429, retry_after=1e6) == "Retry-After asks for 1000000 s"
    assert give_up.status(429, retry_after=3600.0) == "retry"


@given(st.binary() | st.from_regex(rb"[0-9]{1,30}", fullmatch=True), st.integers(0, 50), st.integers())
def test_never_before_retry_after_for_any_header(header: bytes, retries: int, seed: int) -> None:
    """Nor negative, nor above the caps."""
    asked = parse_retry_after(header, 1000.0)
    decider = decider_of(Settings(), random=Random(seed))
    state = {"attempts": {"throttled": retries}, "first_failure": 1000.0, "delay": 7.0}
    decision = decider.decide(Attempt("throttled", 1000.0, status=429, state=state, retry_after=asked))
    assert decision is not None
    assert decision.delay is not None
    assert min(asked or 0, 3600) <= decision.delay <= (3600 if asked else 60)


@given(st.dictionaries(st.sampled_from(["attempts", "first_failure", "delay"]), st.text() | st.floats()))
def test_any_state_is_survived(state: dict[str, Any]) -> None:
    """It comes from disk or from a server."""
    assert Bench().status(503, state=state) == "retry"


def test_refused_together_they_do_not_come_back_together() -> None:
    """200 requests, 429 in the same instant, base 10 s: over 8 s, at most a tenth in any 200 ms."""
    decider = decider_of(Settings({"HA_RETRY_BASE": 10}), random=Random(3))
    delays = []
    for _ in range(200):
        decision = decider.decide(Attempt("throttled", 0.0, status=429))
        assert decision is not None
        assert decision.delay is not None
        delays.append(decision.delay)
    assert max(delays) - min(delays) >= 8
    assert max(sum(one <= other < one + 0.2 for other in delays) for one in delays) <= 20


def test_the_users_function() -> None:
    """It names a class that has a policy; anything else is logged, counted, and changes nothing."""
    bench = Bench(HA_RETRY_CLASSIFY=str, HA_RETRY_POLICIES={"ban": {"retries": 1}})

    def named(answer: Any) -> str | None:
        def function(request: Any, outcome: Any) -> Any:
            if isinstance(answer, Exception):
                raise answer
            return answer

        return reclassify(function, None, None, bench.decider.policies, bench.decider.trouble)

    assert [named("ban"), named("client"), named(None)] == ["ban", "client", None]
    assert bench.troubles == []
    assert [named("captcha"), named(5), named(KeyError("x"))] == [None, None, None]
    assert bench.troubles == ["bad_classify"] * 3
    assert bench.attempt("ban", status=200, named=True) == "retry"
    assert bench.attempt("ban", status=200, named=True, retries=1) == "failed 2 times"
    assert bench.attempt("client", status=200, named=True) == "never retried"


def test_path_of_the_users_function() -> None:
    """What cannot be loaded or called fails at start."""
    assert classify_of(Settings()) is None
    assert classify_of(Settings({"HA_RETRY_CLASSIFY": "operator.eq"})) is not None
    for path in ("no.such.function", "math.pi"):
        with pytest.raises(SettingError, match=f"HA_RETRY_CLASSIFY = '{path}'"):
            classify_of(Settings({"HA_RETRY_CLASSIFY": path}))


def test_statuses_that_retry_after_goes_with() -> None:
    """And no others."""
    assert [s for s in (200, 301, 404, 408, 413, 429, 500, 503) if heeds_retry_after(s)] == [
        301,
        408,
        413,
        429,
        503,
    ]


def test_a_trouble_in_the_log_is_one_line(caplog: pytest.LogCaptureFixture) -> None:
    """Whatever stands in what was written."""
    with caplog.at_level(logging.WARNING):
        Bench().decider.trouble("bad_meta", "a\nb" + "x" * 10_000)
    assert len(caplog.records[0].getMessage()) <= 1000
    assert "\n" not in caplog.records[0].getMessage()


def test_answers_of_policies_are_what_they_seem() -> None:
    """A give-up of the user's policy keeps its reason."""
    bench = Bench(HA_RETRY_POLICIES={"server": lambda failed, random: GiveUp("enough")})
    assert bench.status(503) == "enough"
