"""Which policy decides over a failure: by class, from the defaults to what one request says.

A policy is written down as a *spec*: a name (``"never"``, ``"default"``, one of the
backoffs, one that was :func:`registered <register>`, or the path of a class or function), a policy
object, or a dict of numbers that are laid over what would decide otherwise. Later layers are laid
over earlier ones: default of the class, ``HA_RETRY_POLICIES``, the spider's ``ha_retry_policies``,
:meth:`Policies.set`, ``meta["ha_retry"]``.
"""

from __future__ import annotations

import difflib
import math
import pkgutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from random import Random
from reprlib import repr as short
from typing import Any

from scrapy_ha.errors import SettingError
from scrapy_ha.retry.backoff import BACKOFFS, JITTERS
from scrapy_ha.retry.classify import FailureClass
from scrapy_ha.retry.policy import UNLIMITED, Backoff, Failed, GiveUp, Never, Retry, RetryPolicy

Spec = Any
"""A name, a path, a policy or a mapping, see above. Unchecked until it is parsed."""

META_KEY = "ha_retry"
"""Of ``request.meta``: the spec for one request, whatever fails."""

DEFAULT, REQUEST = "default", "request"
"""Where a rule comes from, besides what was set for its class."""

THROTTLED_DEADLINE = 3600.0
"""Seconds for which a server may keep asking for patience."""

_C = FailureClass
BUILT_IN = tuple(cls.value for cls in FailureClass)
HOPELESS = frozenset({_C.TLS.value, _C.AUTH.value, _C.CLIENT.value, _C.PERMANENT.value})
"""Classes that another attempt cannot help by itself."""


@dataclass(frozen=True, slots=True)
class Numbers:
    """The plain numbers of one crawl that defaults are made of; seconds."""

    retry_times: int = 2
    own_times: bool = False
    """The project itself set ``RETRY_TIMES``."""
    base: float = 1.0
    cap: float = 60.0
    floor: float = 0.1
    retry_after_cap: float = 3600.0


@dataclass(frozen=True, slots=True)
class Rule:
    """What decides over one failure."""

    policy: RetryPolicy
    idempotent: bool | None = None
    """Whether sending the request twice does no harm; ``None``: its method tells."""
    source: str = DEFAULT
    """The last layer that has a say in the policy: ``default``, ``request``, or where it was set."""
    own_retries: bool = False
    """The request's own spec says how often, so that its ``max_retry_times`` does not."""


class Policies:
    """The rules of one crawl, by failure class.

    Args:
        layers: What was set for classes: where it stands, for messages, and the specs by class.
        own_classes: Classes other than the built-in ones may be named: a function of the user's
            gives them.

    Raises:
        SettingError: A spec or a class is not allowed; one line says which, where, and what is.
    """

    def __init__(
        self,
        numbers: Numbers | None = None,
        layers: Iterable[tuple[str, Mapping[str, Spec]]] = (),
        own_classes: bool = False,
    ) -> None:
        self.numbers = numbers or Numbers()
        self._own_classes = own_classes
        self._layers = [(source, dict(specs)) for source, specs in layers]
        self._set: dict[str, Spec] = {}
        self._paths: dict[str, RetryPolicy] = {}
        self._rules = {cls: Rule(policy) for cls, policy in _defaults(self.numbers).items()}
        for _, specs in self._layers:
            for cls in specs:
                self._rules[cls] = self._resolve(cls)

    def __contains__(self, cls: object) -> bool:
        """Whether something is known to do about failures of *cls*."""
        return cls in self._rules

    def classes(self) -> tuple[str, ...]:
        """Built-in ones first, each once."""
        return tuple(self._rules)

    def of(self, cls: str) -> Rule:
        """The rule for failures of *cls*, without regard to the request."""
        return self._rules.get(cls) or self._rules[_C.OTHER.value]

    def default(self, cls: str) -> Rule:
        """What decides when nothing is set for *cls*."""
        defaults = _defaults(self.numbers)
        return Rule(defaults.get(cls) or defaults[_C.OTHER.value])

    def standard(self) -> Backoff:
        """What a hopeless class gets where the project itself asks for a retry."""
        return _standard(self.numbers)

    def set(self, cls: str, spec: Spec) -> None:
        """Change the policy of *cls* from now on, also of requests that wait; ``None`` takes it back.

        Raises:
            SettingError: The class or the spec is not allowed; nothing is changed.
        """
        before = dict(self._set)
        if spec is None:
            self._set.pop(cls, None)
        else:
            self._set[cls] = spec
        try:
            rule = self._resolve(cls)
        except SettingError:
            self._set = before
            raise
        if rule.source == DEFAULT and cls not in BUILT_IN:
            self._rules.pop(cls, None)
        else:
            self._rules[cls] = rule

    def for_request(self, rule: Rule, spec: Spec, cls: str) -> Rule:
        """*rule*, which is that of *cls*, with the *spec* of one request laid over it.

        Stored requests are anybody's: a path is followed only if the settings have it too.

        Raises:
            SettingError: The spec is not allowed.
        """
        laid = self._laid(rule, spec, f'meta["{META_KEY}"]', REQUEST, cls)
        says = not isinstance(spec, Mapping) or bool(spec.keys() & {"policy", "retries", "steps"})
        return replace(laid, own_retries=says)

    def _resolve(self, cls: str) -> Rule:
        rule = self.default(cls)
        for source, specs in [*self._layers, ("set", self._set)]:
            if cls in specs:
                self._check_class(cls, source)
                rule = self._laid(rule, specs[cls], f"{source}[{cls!r}]", source, cls)
        return rule

    def _check_class(self, cls: Any, source: str) -> None:
        if cls in BUILT_IN:
            return
        near = _nearest(cls, BUILT_IN)
        if self._own_classes and isinstance(cls, str) and cls and not near:
            return
        hint = near or f" The classes are: {', '.join(BUILT_IN)}; others take HA_RETRY_CLASSIFY."
        raise SettingError(f"{source}: there is no failure class {short(cls)}.{hint}")

    def _laid(self, under: Rule, spec: Spec, where: str, source: str, cls: str) -> Rule:
        """*spec* laid over the rule *under*."""
        if not isinstance(spec, Mapping):
            return replace(under, policy=self._named(spec, where, source, cls), source=source)
        _check_keys(spec, where)
        idempotent = under.idempotent
        if "idempotent" in spec:
            idempotent = _one_of(spec, "idempotent", (True, False), where)
        policy = under.policy
        if "policy" in spec:
            policy = self._named(spec["policy"], where, source, cls)
        numbers = {key: value for key, value in spec.items() if key not in {"policy", "idempotent"}}
        if numbers:
            if "policy" in spec and not isinstance(policy, Backoff):
                raise SettingError(
                    f"{where}: {', '.join(numbers)} cannot be laid over policy {spec['policy']!r}"
                )
            policy = _backoff(numbers, policy if isinstance(policy, Backoff) else self.standard(), where)
        says = bool(numbers) or "policy" in spec
        return Rule(policy, idempotent, source if says else under.source)

    def _named(self, name: Any, where: str, source: str, cls: str) -> RetryPolicy:
        if isinstance(name, RetryPolicy) and not isinstance(name, type):
            return name
        if callable(name):
            return _made(name, where)
        if not isinstance(name, str) or not name:
            raise SettingError(
                f"{where}: {short(name)} is no policy: give a name, a path or a dict of numbers"
            )
        if name == "default":
            return self.default(cls).policy
        if name == "never":
            return Never()
        if name in BACKOFFS[:3]:
            return replace(self.standard(), kind=name)
        if name in _registry:
            return _made(_registry[name], where)
        if name in self._paths:
            return self._paths[name]
        names = ["default", "never", *BACKOFFS[:3], *_registry]
        if source == REQUEST or ("." not in name and ":" not in name):
            hint = _nearest(name, names) or f" The names are: {', '.join(names)}."
            raise SettingError(f"{where}: there is no policy {short(name)}.{hint}")
        try:
            found = pkgutil.resolve_name(name)
        except Exception as error:  # importing runs the user's code
            raise SettingError(f"{where}: {name} cannot be loaded: {error!r}") from error
        self._paths[name] = _made(found, where)
        return self._paths[name]


_registry: dict[str, Any] = {}


def register(name: str, policy: RetryPolicy | Callable[..., Any]) -> None:
    """Let specs, also those of requests, say *name* for *policy*: an object, its class, or a function.

    Raises:
        SettingError: The name has a meaning already.
    """
    taken = name in {"default", "never", *BACKOFFS} or _registry.get(name, policy) is not policy
    if taken or not name or "." in name or ":" in name:
        raise SettingError(f"no retry policy can be registered as {name!r}: choose a free name without dots")
    _registry[name] = policy


@dataclass(frozen=True, slots=True)
class Function:
    """A function of the user's as a policy: it answers with seconds, or ``None`` to give up."""

    function: Callable[[Failed, Random], Any]

    def decide(self, failed: Failed, random: Random) -> Retry | GiveUp:
        answer = self.function(failed, random)
        if isinstance(answer, (Retry, GiveUp)):
            return answer
        if answer is None:
            return GiveUp(f"{getattr(self.function, '__name__', 'the policy')} said so")
        return Retry(float(answer))


def _made(found: Any, where: str) -> RetryPolicy:
    if isinstance(found, type):
        try:
            found = found()
        except Exception as error:
            raise SettingError(f"{where}: {found.__qualname__}() raised {error!r}") from error
    if isinstance(found, RetryPolicy):
        return found
    if callable(found):
        return Function(found)
    raise SettingError(f"{where}: {short(found)} is no policy: it has no method decide(failed, random)")


def _standard(numbers: Numbers) -> Backoff:
    return Backoff(base=numbers.base, cap=numbers.cap, floor=numbers.floor)


def _defaults(numbers: Numbers) -> dict[str, RetryPolicy]:
    """By class: ``RETRY_TIMES`` retries, but for what is hopeless, and for what has a deadline."""
    standard = _standard(numbers)
    policies: dict[str, RetryPolicy] = dict.fromkeys(BUILT_IN, standard)
    policies.update({cls: Never() for cls in HOPELESS})
    # A name server that stumbled answers at the next packet; one that is down needs time.
    policies[_C.DNS.value] = replace(
        standard, base=0.05, floor=min(0.05, numbers.floor), jitter="equal", last=min(30.0, numbers.cap)
    )
    if not numbers.own_times:
        # A retry as late as Retry-After may ask is allowed.
        deadline = max(THROTTLED_DEADLINE, numbers.retry_after_cap)
        policies[_C.THROTTLED.value] = replace(standard, retries=UNLIMITED, deadline=deadline)
    # How often is for who asks to say: Scrapy's get_retry_request counts by itself.
    policies[_C.CALLBACK.value] = replace(standard, retries=UNLIMITED)
    return policies


_NUMBERS: Mapping[str, str] = {
    "base": "a number of seconds, at least 0",
    "factor": "a number, at least 1",
    "cap": "a number of seconds, at least 0",
    "floor": "a number of seconds, at least 0",
    "last": "a number of seconds, at least 0, or None",
    "deadline": "a number of seconds, at least 0, or None",
}
KEYS = ("policy", "idempotent", "backoff", "steps", "jitter", "retries", *_NUMBERS)
"""What a dict may hold."""


def _backoff(spec: Mapping[str, Any], under: Backoff, where: str) -> Backoff:
    """*spec*, whose keys are known, laid over *under*."""
    given: dict[str, Any] = {}
    if "backoff" in spec:
        given["kind"] = _one_of(spec, "backoff", BACKOFFS, where)
        given["last"] = None
    elif "steps" in spec:
        given["kind"], given["last"] = "steps", None
    elif under.kind == "steps" and spec.keys() & {"base", "factor"}:
        given["kind"] = "exponential"
    if "jitter" in spec:
        given["jitter"] = _one_of(spec, "jitter", JITTERS, where)
        if given["jitter"] == "decorrelated" and "factor" not in spec:
            given["factor"] = 3.0  # as in the article
    for key, allowed in _NUMBERS.items():
        if key in spec:
            given[key] = _number(spec[key], f"{where}: {key}", allowed)
    if "steps" in spec:
        given["steps"] = _steps(spec["steps"], where)
        given["retries"] = len(given["steps"])
    if "retries" in spec:
        given["retries"] = _retries(spec["retries"], where)
    made = replace(under, **given)
    if (made.kind == "steps") != bool(made.steps):
        made = replace(made, steps=()) if made.steps else made
        if made.kind == "steps":
            raise SettingError(f'{where}: backoff "steps" needs steps, a list of seconds')
    if made.jitter == "decorrelated" and made.kind != "exponential":
        if "jitter" in spec:
            raise SettingError(f'{where}: jitter "decorrelated" goes with backoff "exponential" only')
        made = replace(made, jitter="full")
    return made


def _check_keys(spec: Mapping[Any, Any], where: str) -> None:
    for key in spec:
        if key not in KEYS:
            hint = _nearest(key, KEYS) or f" The keys are: {', '.join(KEYS)}."
            raise SettingError(f"{where}: there is no key {short(key)}.{hint}")


def _one_of(spec: Mapping[str, Any], key: str, choices: tuple[Any, ...], where: str) -> Any:
    value = spec[key]
    for choice in choices:
        if type(value) is type(choice) and value == choice:
            return choice
    allowed = ", ".join(repr(choice) for choice in choices)
    hint = _nearest(value, [choice for choice in choices if isinstance(choice, str)])
    raise SettingError(f"{where}: {key} = {short(value)} is not allowed: it must be one of {allowed}.{hint}")


def _number(value: Any, where: str, allowed: str) -> float | None:
    if value is None and "None" in allowed:
        return None
    try:
        number = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if math.isfinite(number) and number >= (1 if "at least 1" in allowed else 0):
        return number
    raise SettingError(f"{where} = {short(value)} is not allowed: it must be {allowed}")


def _steps(value: Any, where: str) -> tuple[float, ...]:
    if not isinstance(value, (list, tuple)) or not 0 < len(value) <= 1000:
        raise SettingError(f"{where}: steps = {short(value)} is not allowed: it must be a list of seconds")
    steps = [_number(one, f"{where}: each of steps", _NUMBERS["base"]) for one in value]
    return tuple(step for step in steps if step is not None)


def _retries(value: Any, where: str) -> float | None:
    if value is None:
        return None
    if value == "unlimited":
        return UNLIMITED
    if isinstance(value, str) and value.strip().isascii() and value.strip().isdigit() and len(value) < 10:
        value = int(value)
    if type(value) is int and 0 <= value < 10**9:
        return value
    raise SettingError(
        f"{where}: retries = {short(value)} is not allowed: it must be a whole number, at least 0, "
        '"unlimited", or None for RETRY_TIMES'
    )


def _nearest(name: Any, names: Iterable[str]) -> str:
    near = difflib.get_close_matches(name[:100], list(names), n=1) if isinstance(name, str) else []
    return f' Did you mean "{near[0]}"?' if near else ""
