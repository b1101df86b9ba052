"""From the facts of a failed attempt to what is done about it."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

from scrapy_ha.errors import SettingError
from scrapy_ha.retry.backoff import after
from scrapy_ha.retry.classify import FailureClass
from scrapy_ha.retry.policies import DEFAULT, HOPELESS, META_KEY, Policies, Rule
from scrapy_ha.retry.policy import Backoff, Failed, GiveUp, Never, Retry, RetryPolicy

logger = logging.getLogger(__name__)

_C = FailureClass

UNPROCESSED = frozenset(
    cls.value for cls in (_C.DNS, _C.REFUSED, _C.TLS, _C.PROXY, _C.THROTTLED, _C.AUTH, _C.CALLBACK)
)
"""Classes whose requests were not acted upon, or that a callback wants repeated, whatever the method."""

LISTED_ONLY = frozenset({_C.SERVER.value, _C.THROTTLED.value, _C.PERMANENT.value})
"""Classes in which ``RETRY_HTTP_CODES`` and ``RETRY_EXCEPTIONS`` alone say what is a failure. In the
others a policy that is set for the class says it too: they would never meet it otherwise."""

LOGGED_AT_MOST = 1000
"""Different troubles of one crawl that get a line in the log."""


@dataclass(frozen=True, slots=True)
class Lists:
    """What Scrapy's settings name."""

    http_codes: Collection[int]
    exceptions: tuple[type[BaseException], ...]
    methods: Collection[str]
    """Methods whose requests may be sent twice after any failure."""
    own_codes: bool = False
    """The project itself set ``RETRY_HTTP_CODES``."""
    own_exceptions: bool = False
    retry_after_cap: float = 3600.0
    """Longest wait that a server may ask for, seconds."""
    park: bool = True
    """A request whose server asks for more waits until the cap; ``False``: it is given up."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt that ended: plain facts. Exactly one of *status* and *exception* is given."""

    cls: str | None
    """Failure class; ``None``: by itself it is no failure (a status below 400)."""
    now: float
    """Epoch seconds."""
    status: int | None = None
    exception: BaseException | None = None
    named: bool = False
    """A function of the user's or a callback says that it is a failure, of this class."""
    method: str = "GET"
    meta: Mapping[str, Any] = field(default_factory=dict)
    """Of the request."""
    state: Mapping[str, Any] = field(default_factory=dict)
    """What is kept with the request, as it was before: ``attempts``, ``first_failure``, ``delay``."""
    retry_after: float | None = None
    """Seconds that the server asks for; ``None``: it says nothing valid."""
    counts: bool = True
    """``False``: the attempt is not used up by this failure (a breaker's probe, an outage)."""


@dataclass(frozen=True, slots=True)
class Decision:
    """What is done about a failure."""

    cls: str
    """Its class, final."""
    delay: float | None = None
    """Seconds until the next attempt, at least 0; ``None``: given up."""
    reason: str = ""
    """Why it is given up, a few words."""
    exhausted: bool = False
    """It is given up after as many or as long tries as are allowed, and not because it is never retried."""
    capped: bool = False
    """The server asked for more than the cap."""


class Decider:
    """Decides over failures by lists, limits and policies.

    Args:
        count: Called with the kind of every trouble met on the way: ``bad_meta``, ``bad_policy``.
            The first of each is logged too.
    """

    def __init__(
        self,
        policies: Policies,
        lists: Lists,
        random: Random | None = None,
        count: Callable[[str], None] = lambda kind: None,
    ) -> None:
        self.policies = policies
        self.lists = lists
        self.random = random or Random()
        self._methods = frozenset(method.upper() for method in self.lists.methods)
        self.trouble = Trouble(count)

    def decide(self, attempt: Attempt) -> Decision | None:
        """Retry or give up; ``None``: it is no failure to be dealt with here. Never raises."""
        meta = attempt.meta
        if meta.get("dont_retry"):
            return None
        cls = attempt.cls or _C.SERVER.value  # a success is a failure where the lists say so
        if not (attempt.named or self._is_listed(attempt) or self._is_covered(attempt)):
            return None
        rule = self._rule(attempt, cls)
        failed, policy = self._failed(attempt, cls, rule)
        capped = (attempt.retry_after or 0) > self.lists.retry_after_cap
        if isinstance(policy, Never):
            answer = policy.decide(failed, self.random)
        elif not failed.idempotent and cls not in UNPROCESSED:
            answer = GiveUp(f"{attempt.method[:20]} may have been processed", exhausted=False)
        elif capped and not self.lists.park:
            asked = attempt.retry_after or 0
            answer = GiveUp(f"Retry-After asks for {asked:.0f} s", exhausted=False)
        else:
            answer = self._ask(policy, failed)
        if isinstance(answer, GiveUp):
            return Decision(cls, None, answer.reason, answer.exhausted, capped)
        return Decision(cls, max(answer.delay, failed.asked), capped=capped)

    def policy_for(self, attempt: Attempt) -> RetryPolicy:
        """What decides over *attempt*, if it is a failure."""
        return self._rule(attempt, attempt.cls or _C.SERVER.value).policy

    def _rule(self, attempt: Attempt, cls: str) -> Rule:
        rule = self.policies.of(cls)
        if rule.source == DEFAULT and cls in HOPELESS and self._is_named(attempt):
            rule = replace(rule, policy=self.policies.standard())
        spec = attempt.meta.get(META_KEY)
        if spec is not None:
            try:
                return self.policies.for_request(rule, spec, cls)
            except SettingError as error:
                self.trouble("bad_meta", f"{error} It is ignored.")
            except Exception as error:  # whatever stands there may fail to be compared or shown
                self.trouble("bad_meta", f'meta["{META_KEY}"] is ignored: {type(error).__name__}')
        return rule

    def _is_listed(self, attempt: Attempt) -> bool:
        if attempt.exception is None:
            return attempt.status in self.lists.http_codes
        return isinstance(attempt.exception, self.lists.exceptions)

    def _is_named(self, attempt: Attempt) -> bool:
        """The project itself names the very status or exception."""
        if attempt.exception is None:
            return self.lists.own_codes and attempt.status in self.lists.http_codes
        return self.lists.own_exceptions and type(attempt.exception) in self.lists.exceptions

    def _is_covered(self, attempt: Attempt) -> bool:
        if attempt.cls is None or attempt.cls in LISTED_ONLY:
            return False
        rule = self.policies.of(attempt.cls)
        return rule.source != DEFAULT and not isinstance(rule.policy, Never)

    def _failed(self, attempt: Attempt, cls: str, rule: Rule) -> tuple[Failed, RetryPolicy]:
        """The failure as the policy sees it, and the policy with the request's own limit in it."""
        state, meta, policy = attempt.state, attempt.meta, rule.policy
        before = _counts(state.get("attempts"))
        this = 1 if attempt.counts else 0
        total = _whole(meta.get("retry_times"), 0) + this
        limit = self.policies.numbers.retry_times
        # What a callback asks for was counted by Scrapy's get_retry_request, with that limit or another.
        counted = rule.own_retries or cls == _C.CALLBACK
        if meta.get("max_retry_times") is not None and not counted:
            limit = _whole(meta["max_retry_times"], limit)
            if isinstance(policy, Backoff):
                deadline = None if rule.source == DEFAULT else policy.deadline
                policy = replace(policy, retries=None, deadline=deadline)
            elif total > limit and not isinstance(policy, Never):
                policy = Backoff(retries=0)
        else:
            total -= sum(n for other, n in before.items() if other != cls and self._counts_apart(other))
        asked = 0.0
        if attempt.retry_after:
            numbers = self.policies.numbers
            asked = after(
                attempt.retry_after, numbers.base, self.lists.retry_after_cap, numbers.floor, self.random
            )
        idempotent = rule.idempotent
        if idempotent is None:
            idempotent = attempt.method.upper() in self._methods
        exception = attempt.exception
        failed = Failed(
            cls=cls,
            attempt=max(before.get(cls, 0) + this, 1),
            attempts=max(total, this),
            limit=limit,
            # What costs no attempt costs no time that is allowed either.
            first_failure=_seconds(state.get("first_failure"), attempt.now) if this else attempt.now,
            now=attempt.now,
            method=attempt.method,
            idempotent=idempotent,
            status=attempt.status,
            exception="" if exception is None else _full_name(type(exception)),
            delay=_seconds(state.get("delay"), 0.0),
            asked=asked,
        )
        return failed, policy

    def _counts_apart(self, cls: str) -> bool:
        policy = self.policies.of(cls).policy
        return not isinstance(policy, Backoff) or policy.retries is not None

    def _ask(self, policy: RetryPolicy, failed: Failed) -> Retry | GiveUp:
        if isinstance(policy, Backoff):
            return policy.decide(failed, self.random)
        try:
            answer = policy.decide(failed, self.random)
            if isinstance(answer, GiveUp) or (0 <= answer.delay < math.inf):
                return answer
            problem = f"a delay of {answer.delay!r}"
        except Exception as error:
            problem = f"{type(error).__name__}: {error}"
        self.trouble("bad_policy", f"the policy {type(policy).__name__} gave {problem}; the default decides")
        return self.policies.default(failed.cls).policy.decide(failed, self.random)


class Trouble:
    """Counts what went wrong in what others wrote, and logs each different one once."""

    def __init__(self, count: Callable[[str], None]) -> None:
        self._count = count
        self._logged: set[tuple[str, str]] = set()

    def __call__(self, kind: str, message: str, exception: BaseException | None = None) -> None:
        self._count(kind)
        message = " ".join(message[:1000].split())
        if (kind, message) not in self._logged and len(self._logged) < LOGGED_AT_MOST:
            self._logged.add((kind, message))
            logger.warning("%s", message, exc_info=exception)


def reclassify(
    function: Callable[[Any, Any], str | None],
    request: Any,
    outcome: Any,
    policies: Policies,
    trouble: Trouble,
) -> str | None:
    """The class that the user's *function* names for *outcome*, a response or an exception.

    ``None``: it names none, or none that has a policy, or it raised, which is logged and counted;
    then the package's own class stands. Never raises.
    """
    try:
        cls = function(request, outcome)
        if cls is None:
            return None
        if isinstance(cls, FailureClass):
            return cls.value
        if isinstance(cls, str) and cls in policies:
            return cls
        problem, error = f"named {str(cls)[:50]!r}, which is no failure class with a policy", None
    except Exception as raised:
        problem, error = f"raised {type(raised).__name__}", raised
    trouble("bad_classify", f"HA_RETRY_CLASSIFY {problem}; the class by status or exception stands", error)
    return None


def heeds_retry_after(status: int) -> bool:
    """Whether ``Retry-After`` means something with *status* (RFC 9110, 10.2.3 and what servers do)."""
    return status in {408, 413, 429, 503} or 300 <= status < 400


def _full_name(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"


def _counts(value: Any) -> dict[str, int]:
    """Attempts by class, as they were stored: what is not such is left out."""
    if not isinstance(value, Mapping):
        return {}
    return {cls: n for cls, n in value.items() if isinstance(cls, str) and type(n) is int and n > 0}


def _whole(value: Any, default: int) -> int:
    return value if isinstance(value, int) else default


def _seconds(value: Any, default: float) -> float:
    return value if isinstance(value, (int, float)) and 0 <= value < math.inf else default
