"""``scrapy ha explain``: what the project does about failed requests."""

from __future__ import annotations

import builtins
import math
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from scrapy.utils.misc import load_object

from scrapy_ha import settings as declared
from scrapy_ha.commands._sub import UsageError
from scrapy_ha.retry.classify import classify_exception, classify_status
from scrapy_ha.retry.configure import classify_of, decider_of
from scrapy_ha.retry.decide import LISTED_ONLY, UNPROCESSED, Attempt, heeds_retry_after
from scrapy_ha.retry.policies import DEFAULT, Policies
from scrapy_ha.retry.policy import Backoff, Never, RetryPolicy

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from scrapy.settings import BaseSettings

    from scrapy_ha.retry.decide import Decider

_HELP = """\
Print what is done about failed requests, as the project is configured: for every class of failures how
often they are retried, after which delays, and which setting says so; then, for each status (503) and
exception (twisted.internet.error.ConnectionLost) that is named, what would happen. Nothing is sent."""

_SHOWN = 4
"""Delays that are shown of each policy."""


_EXCEPTIONS = {
    "dns": "the name did not resolve",
    "refused": "nothing listens",
    "connection": "reset, closed, no route",
    "tls": "handshake or certificate failed",
    "timeout": "took too long",
    "truncated": "the body ended early",
    "protocol": "the answer was not HTTP",
    "decode": "the body could not be unpacked",
    "proxy": "proxy not reached, no tunnel",
    "throttled": "no answer is",
    "server": "no answer is",
    "auth": "no answer is",
    "client": "no answer is",
    "callback": "a callback asked for it",
    "permanent": "can never work",
    "other": "any other exception",
}


class ExplainCommand:
    def configure(self, parser: argparse.ArgumentParser) -> None:
        parser.description = _HELP
        parser.add_argument("failures", metavar="STATUS | EXCEPTION.PATH", nargs="*")
        parser.add_argument("--spider", metavar="SPIDER", help="with its custom_settings and policies")
        parser.add_argument("--method", metavar="METHOD", default="GET", help="of the request; default: GET")

    def run(self, settings: BaseSettings, options: argparse.Namespace) -> int:
        spider = None
        if options.spider is not None:
            spider, settings = _spider(settings, options.spider)
        declared.check(settings)
        decider = decider_of(settings, spider)
        failures = [_failure(text) for text in options.failures]
        if settings.getbool("RETRY_ENABLED"):
            lines = [*_table(decider), "", *_notes(settings, decider)]
            for failure in failures:
                lines += ["", *_outcome(decider, failure, options.method.upper())]
        else:
            lines = ["RETRY_ENABLED is False: nothing is retried."]
        print("\n".join(lines))
        return 0


def _spider(settings: BaseSettings, name: str) -> tuple[Any, BaseSettings]:
    loader = load_object(settings["SPIDER_LOADER_CLASS"]).from_settings(settings.frozencopy())
    names = sorted(loader.list())
    if name not in names:
        known = f"; there are: {', '.join(names)}" if names else ""
        raise UsageError(f"there is no spider {name!r}{known}")
    spider = loader.load(name)
    settings = settings.copy()
    spider.update_settings(settings)
    return spider, settings


def _failure(text: str) -> int | BaseException:
    """The status, or an exception of the class, that *text* names."""
    if text.isascii() and text.isdigit():
        if 100 <= int(text[:4]) <= 999 and len(text) == 3:
            return int(text)
        raise UsageError(f"{text} is no HTTP status")
    try:
        found = load_object(text) if "." in text else getattr(builtins, text)
    except Exception as error:  # importing runs anybody's code
        raise UsageError(f"{text} is no status, and no exception that can be imported: {error}") from error
    if not (isinstance(found, type) and issubclass(found, BaseException)):
        raise UsageError(f"{text} is no exception")
    try:
        return found()
    except Exception:  # it wants arguments; its class is all that is looked at
        return found.__new__(found)


def _table(decider: Decider) -> list[str]:
    rows = [("CLASS", "FAILURES", "RETRIES", "DELAYS IN SECONDS, EACH DRAWN FROM", "SET BY")]
    for cls in decider.policies.classes():
        rule = decider.policies.of(cls)
        codes = _listed(decider, cls)
        # A class that is never retried is where the project itself lists the status.
        policy = decider.policy_for(Attempt(cls, 0.0, status=codes[0] if codes else 0))
        retries, delays = _plan(policy, decider.policies)
        if rule.source == DEFAULT and cls == "callback":
            retries = "as asked for"
        rows.append((cls, _failures(decider, cls), retries, delays, rule.source))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]


def _listed(decider: Decider, cls: str) -> list[int]:
    """Statuses of *cls* that are failures because ``RETRY_HTTP_CODES`` says so."""
    return [code for code in sorted(decider.lists.http_codes) if (classify_status(code) or "server") == cls]


def _failures(decider: Decider, cls: str) -> str:
    """What is a failure of *cls*."""
    codes = [str(code) for code in _listed(decider, cls)]
    if cls == "throttled" and 503 in decider.lists.http_codes:
        codes.append("503 with Retry-After")
    rule = decider.policies.of(cls)
    if cls in {"auth", "client"} and rule.source != DEFAULT and not isinstance(rule.policy, Never):
        codes = ["401, 403, 407" if cls == "auth" else "any other 4xx"]
    return ", ".join(codes) or _EXCEPTIONS.get(cls, "what HA_RETRY_CLASSIFY names so")


def _plan(policy: RetryPolicy, policies: Policies) -> tuple[str, str]:
    """How often, and after which delays."""
    if isinstance(policy, Never):
        return "never", "-"
    if not isinstance(policy, Backoff):
        return "decided by", type(policy).__name__
    own = policy.retries is not None
    number = policy.retries if policy.retries is not None else max(policies.numbers.retry_times, 0)
    retries = "any number" if math.isinf(number) else f"{number:g}" + ("" if own else " (RETRY_TIMES)")
    if policy.deadline is not None:
        retries += f" within {policy.deadline:g} s"
    delays: list[str] = []
    previous = 0.0
    for n in range(1, int(min(number, _SHOWN)) + 1):
        low, high = policy.between(n, previous, is_last=n == number)
        previous = high
        delays.append(f"{low:.3g}" if low == high else f"{low:.3g}-{high:.3g}")
    if number > _SHOWN:
        delays.append("…")
    return retries, ", ".join(delays) or "-"


def _notes(settings: BaseSettings, decider: Decider) -> list[str]:
    lists, policies = decider.lists, decider.policies
    excess = "waits until the cap" if lists.park else "is given up"
    safe = ", ".join(sorted(UNPROCESSED & {*policies.classes()}))
    adding = ", ".join(cls for cls in policies.classes() if cls not in LISTED_ONLY)
    cap = f"{lists.retry_after_cap:g} s"
    lines = [
        f"Answers are failures by status: {', '.join(map(str, sorted(lists.http_codes)))}.",
        f"Exceptions are by their class: {len(lists.exceptions)} classes (RETRY_EXCEPTIONS).",
        f"A policy that is set adds the failures of its class, where that is one of: {adding}.",
        f"Methods that are retried after any failure: {', '.join(lists.methods)}. Others only after: {safe}.",
        f"Retry-After: never earlier, for the whole slot; above {cap} a request {excess}.",
        "One request: meta dont_retry, max_retry_times and ha_retry go before all this.",
    ]
    if classify_of(settings) is not None:
        lines.append("HA_RETRY_CLASSIFY is asked first, and may name another class than is shown here.")
    return lines


def _outcome(decider: Decider, failure: int | BaseException, method: str) -> Sequence[str]:
    if isinstance(failure, int):
        try:
            phrase = f" {HTTPStatus(failure).phrase}"
        except ValueError:
            phrase = ""
        lines = [_happens(decider, f"{failure}{phrase}", failure, method, None)]
        if heeds_retry_after(failure):
            lines.append(_happens(decider, f"{failure} with Retry-After: 120", failure, method, 120.0))
        return lines
    cls = type(failure)
    return [_happens(decider, f"{cls.__module__}.{cls.__qualname__}", failure, method, None)]


def _happens(
    decider: Decider, name: str, failure: int | BaseException, method: str, retry_after: float | None
) -> str:
    if isinstance(failure, int):
        cls = classify_status(failure, retry_after is not None)
        attempt = Attempt(cls and cls.value, 0.0, status=failure, method=method, retry_after=retry_after)
        passes = "the spider gets the response"
    else:
        cls = classify_exception(failure)
        attempt = Attempt(cls.value, 0.0, exception=failure, method=method)
        passes = "the errback gets it"
    decision = decider.decide(attempt)
    label = f"{name}: class {cls.value}" if cls else name
    if decision is None:
        return f"{label}; not retried and not kept, {passes}."
    if decision.delay is None:
        return f"{label}; given up at once, and kept as dead: {decision.reason}."
    retries, delays = _plan(decider.policy_for(attempt), decider.policies)
    if retry_after is not None:
        delays = f"{retry_after:g} s at least, then as the server says, else {delays}"
    return f"{label}; retried. Retries: {retries}; delays: {delays}; then given up, and kept as dead."
