"""Every ``HA_`` setting, declared once: name, type, default, unit, range and meaning.

Values come from ``settings.py``, from ``-s NAME=value`` or from scrapyd, so each may be given
as text; it means the same then. A value that is not allowed fails when the crawl starts.
"""

from __future__ import annotations

import difflib
import json
import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scrapy_ha.errors import SettingError

if TYPE_CHECKING:
    from scrapy.settings import BaseSettings

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Setting:
    """One declared setting."""

    name: str
    kind: Callable[[Any], Any]
    """Turns the given value into the typed one; raises ``ValueError`` or ``TypeError``."""
    default: Any
    allowed: str
    """What is allowed, as said in error messages and in the docs."""
    meaning: str
    check: Callable[[Any], bool] = lambda value: True

    def parse(self, value: Any) -> Any:
        """The typed value.

        Raises:
            SettingError: It is not allowed.
        """
        try:
            parsed = self.kind(value)
            if self.check(parsed):
                return parsed
        except (ValueError, TypeError, OverflowError):
            pass
        raise SettingError(f"{self.name} = {value!r} is not allowed: it must be {self.allowed}")


def _boolean(value: Any) -> bool:
    if isinstance(value, str):
        text = value.strip().lower()
        if text in {"1", "true", "yes", "on"}:
            return True
        if text in {"0", "false", "no", "off", ""}:
            return False
        raise ValueError(value)
    if isinstance(value, (bool, int)) and value in (0, 1):
        return bool(value)
    raise ValueError(value)


def _integer(value: Any) -> int:
    if isinstance(value, bool) or (isinstance(value, float) and not value.is_integer()):
        raise TypeError(value)
    return int(value)


def _number(value: Any) -> float:
    if isinstance(value, bool):
        raise TypeError(value)
    number = float(value)
    if not math.isfinite(number):
        raise ValueError(value)
    return number


def _text(value: Any) -> str:
    if not isinstance(value, (str, Path)):
        raise TypeError(value)
    return str(value)


def _optional(kind: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def parse(value: Any) -> Any:
        absent = value is None or (isinstance(value, str) and value.strip().lower() in {"", "none"})
        return None if absent else kind(value)

    return parse


def _choice(*choices: str) -> tuple[Callable[[Any], str], str]:
    def parse(value: Any) -> str:
        text = _text(value).strip().lower()
        if text not in choices:
            raise ValueError(value)
        return text

    return parse, "one of " + ", ".join(f'"{choice}"' for choice in choices)


def _item_key(value: Any) -> Any:
    if callable(value):
        return value
    if isinstance(value, str):
        fields = [field.strip() for field in value.split(",")]
        if not all(fields):
            raise ValueError(value)
        return fields[0] if len(fields) == 1 else fields
    fields = list(value)
    if not fields or not all(isinstance(field, str) and field for field in fields):
        raise ValueError(value)
    return fields


def _mapping(value: Any) -> dict[Any, Any]:
    if isinstance(value, str):
        value = json.loads(value)
    if not isinstance(value, Mapping):
        raise TypeError(value)
    return dict(value)


def _callable(value: Any) -> Any:
    if callable(value) or (isinstance(value, str) and value.strip()):
        return value
    raise TypeError(value)


def _tokens(value: Any) -> tuple[str, ...]:
    tokens = value.split(",") if isinstance(value, str) else list(value)
    return tuple(_text(token).strip().upper() for token in tokens if token != "")


def _declare() -> Mapping[str, Setting]:
    boolean = "True or False"
    seconds = "a number of seconds, at least 0"
    frontier, frontiers = _choice("auto", "leveldb", "redis")
    fsync, fsyncs = _choice("always", "interval", "never")
    order, orders = _choice("fifo", "lifo")
    bloom, blooms = _choice("auto", "pybloom", "rbloom")
    excess, excesses = _choice("park", "give_up")
    declared = (
        Setting(
            "HA_DIR",
            _optional(_text),
            None,
            "a path of a directory that exists or can be made, or None",
            "Where the embedded stores live. None: JOBDIR if that is set, else "
            "``.scrapy/ha/<namespace>`` in the project (outside one: below the working directory).",
        ),
        Setting(
            "HA_NAMESPACE",
            _optional(_text),
            None,
            "a name without slashes that is not . or .., or None",
            "The crawl's name. None: the spider's name. Two crawls of one spider take two names.",
            lambda v: v is None or ("/" not in v and "\\" not in v and v not in {".", ".."}),
        ),
        Setting(
            "HA_LOCK_WAIT",
            _number,
            0.0,
            seconds,
            "How long the add-on waits at the start for another process to let go of the directory, in "
            "seconds; then the start is refused.",
            lambda v: v >= 0,
        ),
        Setting(
            "HA_SCHEDULER_ENABLED",
            _boolean,
            True,
            boolean,
            "Whether the add-on puts in :class:`scrapy_ha.scheduler.HAScheduler`.",
        ),
        Setting(
            "HA_FRONTIER",
            frontier,
            "auto",
            frontiers,
            "The store of the requests. ``leveldb`` is embedded, for one worker; ``redis`` is shared by any "
            "number of workers, with scrapy-redis's connection settings. ``auto`` is ``leveldb``.",
        ),
        Setting(
            "HA_LEASE_SECONDS",
            _number,
            60.0,
            "a number of seconds, at least 1",
            "With a shared frontier: seconds after which the requests of a worker that has died go to "
            "others. A worker that is well extends its leases at a third of it.",
            lambda v: v >= 1,
        ),
        Setting(
            "HA_PREFETCH",
            _optional(_integer),
            None,
            "a whole number, at least 1, or None",
            "With a shared frontier: requests that a worker takes ahead. None: twice "
            "``CONCURRENT_REQUESTS``.",
            lambda v: v is None or v >= 1,
        ),
        Setting(
            "HA_REDIS_OUTAGE_LIMIT",
            _number,
            600.0,
            seconds,
            "Seconds without the server after which the spider is closed (``store_error``).",
            lambda v: v >= 0,
        ),
        Setting(
            "HA_FSYNC",
            fsync,
            "interval",
            fsyncs,
            "What a power cut may cost. ``always``: nothing that was acknowledged; ``interval``: "
            "what the last :setting:`HA_FSYNC_INTERVAL` seconds acknowledged; ``never``: what the "
            "operating system had not written by itself. A killed process costs nothing with any "
            "of them.",
        ),
        Setting(
            "HA_FSYNC_INTERVAL",
            _number,
            1.0,
            "a number of seconds above 0",
            'Seconds between two fsyncs with ``HA_FSYNC = "interval"``.',
            lambda v: v > 0,
        ),
        Setting(
            "HA_MAX_DELIVERIES",
            _integer,
            5,
            "a whole number, at least 1",
            "How often a page may be being worked on when its worker dies. Then it is poison, and moves to "
            "the dead state. While it is on its way, or waits for what it yielded, it is not blamed.",
            lambda v: v >= 1,
        ),
        Setting(
            "HA_MAX_IN_FLIGHT",
            _optional(_integer),
            None,
            "a whole number, at least 0, or None",
            "How many pages may be worked on at once, from the request to the last item's way through "
            "the pipelines: that many at most are fetched again after a kill. None: "
            "``CONCURRENT_REQUESTS``; 0: no limit but Scrapy's own. Raise it when pipelines are slow.",
            lambda v: v is None or v >= 0,
        ),
        Setting(
            "HA_QUEUE_ORDER",
            order,
            "fifo",
            orders,
            "Order within one slot and priority; Scrapy's own default is ``lifo``.",
        ),
        Setting(
            "HA_DUPEFILTER_ENABLED",
            _boolean,
            True,
            boolean,
            "Whether the add-on puts in :class:`scrapy_ha.dupefilter.BloomDupeFilter`, in place of Scrapy's "
            "own duplicate filter.",
        ),
        Setting(
            "HA_SEEN_CAPACITY",
            _integer,
            1_000_000,
            "a whole number, at least 1",
            "How many URLs the Bloom filter is made for: 1.35 bytes each at the default error rate, from the "
            "start. When more come it grows by itself.",
            lambda v: v >= 1,
        ),
        Setting(
            "HA_SEEN_ERROR_RATE",
            _number,
            0.01,
            "a number above 0 and below 1",
            "Share of the new URLs for which the Bloom filter may have to ask the exact store. It never "
            "decides by itself that a URL was seen.",
            lambda v: 0 < v < 1,
        ),
        Setting(
            "HA_SEEN_BLOOM",
            bloom,
            "auto",
            blooms,
            "The library that the Bloom filter comes from. ``auto``: rbloom where it is installed "
            "(``pip install scrapy-ha[rbloom]``), else pybloom-live.",
        ),
        Setting(
            "HA_SEEN_TTL",
            _optional(_number),
            None,
            "a number of seconds above 0, or None",
            "How long a URL counts as seen, in seconds. None: as long as the crawl is remembered.",
            lambda v: v is None or v > 0,
        ),
        Setting(
            "HA_SEEN_KEEP",
            _boolean,
            False,
            boolean,
            "URLs of a complete crawl count as seen in the next one too, until :setting:`HA_SEEN_TTL` is "
            "over; those that were given up do not. False: each complete crawl is followed by a fresh one.",
        ),
        Setting(
            "HA_SEEN_RESET",
            _boolean,
            False,
            boolean,
            "Forget at the start which URLs were seen. What waits is fetched all the same.",
        ),
        Setting(
            "HA_SEED_ONCE",
            _boolean,
            True,
            boolean,
            "Start requests are produced once per crawl, also over restarts. False: at every start; "
            "those that Scrapy filters are then filtered by what was seen before.",
        ),
        Setting(
            "HA_SEED_LIMIT",
            _integer,
            10_000,
            "a whole number, at least 1",
            "``start()`` is paused while this many requests wait.",
            lambda v: v >= 1,
        ),
        Setting(
            "HA_HOLD_PARENT",
            _boolean,
            True,
            boolean,
            "A page that yielded a request that cannot be stored is not done before that request "
            "is: after a crash the page is fetched again and yields it again. False: such requests "
            "are lost in a crash.",
        ),
        Setting(
            "HA_FEEDS_ENABLED",
            _boolean,
            True,
            boolean,
            "Whether the add-on makes local feeds part of what an acknowledgement waits for.",
        ),
        Setting(
            "HA_FEEDS_HOLD_LIMIT",
            _integer,
            10_000,
            "a whole number, at least 1",
            "How many items of one page are held in memory until the page is done. What a page gives "
            "beyond that is written at once, and may come twice when the process is killed before "
            "the page is done.",
            lambda v: v >= 1,
        ),
        Setting(
            "HA_CHECKPOINT_ENABLED",
            _boolean,
            True,
            boolean,
            "Whether the state of the crawl is kept by :class:`scrapy_ha.checkpoint.CheckpointExtension`, "
            "which the add-on puts in place of Scrapy's ``SpiderState``.",
        ),
        Setting(
            "HA_CHECKPOINT_INTERVAL",
            _number,
            1.0,
            "a number of seconds above 0",
            "Seconds between two looks at what changed: that much of ``spider.state`` and of the stats may "
            "be lost in a kill.",
            lambda v: v > 0,
        ),
        Setting(
            "HA_CHECKPOINT_SNAPSHOT_SECONDS",
            _number,
            300.0,
            "a number of seconds above 0",
            "Seconds after which a snapshot takes the place of the write-ahead log, if that has grown.",
            lambda v: v > 0,
        ),
        Setting(
            "HA_CHECKPOINT_RECORDS",
            _integer,
            100_000,
            "a whole number, at least 1",
            "Records in the write-ahead log after which a snapshot takes its place.",
            lambda v: v >= 1,
        ),
        Setting(
            "HA_CHECKPOINT_COOKIES",
            _boolean,
            False,
            boolean,
            "Whether the checkpoint keeps the cookies. Its files are for their owner's eyes only, as it may "
            "hold sessions.",
        ),
        Setting(
            "HA_CHECKPOINT_REQUESTS",
            _boolean,
            True,
            boolean,
            "Whether the checkpoint keeps the requests of Scrapy's own scheduler, so that a killed crawl "
            "goes on. :class:`scrapy_ha.scheduler.HAScheduler` keeps its own.",
        ),
        Setting(
            "HA_SPOOL",
            _boolean,
            False,
            boolean,
            "Keep items in the local spool also without ``MONGO_URI``.",
        ),
        Setting(
            "HA_ITEM_KEY",
            _optional(_item_key),
            None,
            "a field, several fields (a list, or text with commas), a callable or its path, or None",
            "What makes two items the same document. None: the item's whole content. A text with a dot or a "
            "colon is the path of a callable, which gets the item; an item without its key is set aside.",
        ),
        Setting(
            "HA_DLQ_LIMIT",
            _integer,
            100_000,
            "a whole number, at least 0",
            "How many requests that were given up are kept; beyond it, those given up first are forgotten. "
            "0: all are kept.",
            lambda v: v >= 0,
        ),
        Setting(
            "HA_DLQ_DAYS",
            _number,
            30.0,
            "a number of days, at least 0",
            "How long a request that was given up is kept. 0: for ever.",
            lambda v: v >= 0,
        ),
        Setting(
            "HA_DLQ_CALLBACK_ERRORS",
            _boolean,
            True,
            boolean,
            "A page whose callback or errback raised counts as given up: it is kept with the traceback, and "
            "can be replayed when the spider is mended. False: it is done.",
        ),
        Setting(
            "HA_RETRY_ENABLED",
            _boolean,
            True,
            boolean,
            "Whether the add-on puts in :class:`scrapy_ha.retry.ClassifiedRetryMiddleware`, in "
            "place of Scrapy's own retry middleware.",
        ),
        Setting(
            "HA_RETRY_BASE",
            _number,
            1.0,
            seconds,
            "Backoff before the first retry; it doubles with every further one.",
            lambda v: v >= 0,
        ),
        Setting(
            "HA_RETRY_CAP",
            _number,
            60.0,
            seconds,
            "Longest backoff between two attempts, in seconds.",
            lambda v: v >= 0,
        ),
        Setting(
            "HA_RETRY_FLOOR",
            _number,
            0.1,
            seconds,
            "Shortest wait before a retry in seconds, whatever the jitter says.",
            lambda v: v >= 0,
        ),
        Setting(
            "HA_RETRY_POLICIES",
            _mapping,
            {},
            "a dict of failure class to policy (a name, a path or a dict of numbers), or its JSON",
            "What is done about failures of a class, laid over its default. ``scrapy ha explain`` prints the "
            "outcome. A spider's attribute ``ha_retry_policies`` is laid over this, and "
            '``meta["ha_retry"]`` of a request over both.',
        ),
        Setting(
            "HA_RETRY_REMEDIES",
            _mapping,
            {},
            "a dict of failure class to a class or an async function, or its path; or its JSON",
            "What may change a request before its next attempt, by class of the failure: see "
            ":class:`scrapy_ha.retry.remedies.Remedy`. Failures of a class that has one are retried.",
        ),
        Setting(
            "HA_RETRY_REMEDY_TIMEOUT",
            _number,
            60.0,
            "a number of seconds above 0",
            "How long a remedy may take, in seconds; longer counts as its failure.",
            lambda v: v > 0,
        ),
        Setting(
            "HA_RETRY_METHODS",
            _tokens,
            ("GET", "HEAD", "OPTIONS", "TRACE", "PUT", "DELETE"),
            "a list of HTTP methods",
            "Requests with these methods are retried after any failure. Others only where the first attempt "
            "cannot have been acted upon (``dns``, ``refused``, ``tls``, ``proxy``, ``throttled``, "
            '``auth``), or with ``meta["ha_retry"] = {"idempotent": True}``.',
            all,
        ),
        Setting(
            "HA_RETRY_CLASSIFY",
            _optional(_callable),
            None,
            "a callable or its path, or None",
            "``function(request, response_or_exception)`` that names the failure class, a built-in one or "
            "one of its own with a policy in :setting:`HA_RETRY_POLICIES`; None: the package's own stands.",
        ),
        Setting(
            "HA_RETRY_AFTER_BEYOND",
            excess,
            "park",
            excesses,
            "What becomes of a request whose ``Retry-After`` is above :setting:`HA_RETRY_AFTER_CAP`. "
            "``park``: it waits until the cap; ``give_up``: it is given up.",
        ),
        Setting(
            "HA_RETRY_AFTER_CAP",
            _number,
            3600.0,
            seconds,
            "Longest ``Retry-After`` that is honoured, in seconds; a longer one is cut to this.",
            lambda v: v >= 0,
        ),
        Setting(
            "HA_RETRY_WAIT_CAP",
            _number,
            60.0,
            seconds,
            "Longest wait in seconds of a retry that came from no scheduler (``robots.txt``, media files, "
            "``engine.download_async``): it waits as one of ``CONCURRENT_REQUESTS``.",
            lambda v: v >= 0,
        ),
        Setting(
            "HA_RETRY_BUDGET",
            _number,
            0.2,
            "a number, at least 0",
            "Retries that each first attempt earns, for its slot and for the crawl. A retry for which there "
            "is none waits; it uses up no attempt.",
            lambda v: v >= 0,
        ),
        Setting(
            "HA_RETRY_BUDGET_RATE",
            _number,
            3.0,
            "a number above 0",
            "Retries per second that a slot may send besides, so that what is left at the end goes on; the "
            "whole crawl ten times that. Raise it for hosts that fail often and can bear much.",
            lambda v: v > 0,
        ),
        Setting(
            "HA_RETRY_CONCURRENCY",
            _number,
            0.5,
            "a number above 0, at most 1",
            "Share of ``CONCURRENT_REQUESTS`` that retries may take, on average over a minute.",
            lambda v: 0 < v <= 1,
        ),
        Setting(
            "HA_BREAKER_ENABLED",
            _boolean,
            True,
            boolean,
            "Whether a slot that only fails is left in peace: its requests stay where they are, and one "
            "now and then is the probe.",
        ),
        Setting(
            "HA_BREAKER_FORCE",
            _mapping,
            {},
            'a dict of download slot to "open" or "closed", or its JSON',
            "Breakers that are kept open or closed by hand, whatever happens.",
            lambda v: all(isinstance(slot, str) and state in ("open", "closed") for slot, state in v.items()),
        ),
        Setting(
            "HA_BREAKER_RATE",
            _number,
            0.5,
            "a number above 0, at most 1",
            "A breaker opens when this share of the last :setting:`HA_BREAKER_WINDOW` requests of its slot "
            "failed.",
            lambda v: 0 < v <= 1,
        ),
        Setting(
            "HA_BREAKER_WINDOW",
            _integer,
            20,
            "a whole number from 1 to 1000",
            "How many outcomes of a slot are looked at.",
            lambda v: 1 <= v <= 1000,
        ),
        Setting(
            "HA_BREAKER_MINIMUM",
            _integer,
            20,
            "a whole number, at least 1",
            "How many there must be, from the first failure on, before the share is looked at; a full "
            "window is enough.",
            lambda v: v >= 1,
        ),
        Setting(
            "HA_BREAKER_CONSECUTIVE",
            _integer,
            5,
            "a whole number, at least 1",
            "A breaker also opens after so many failures to connect in a row (``dns``, ``refused``, "
            "``connection``, ``timeout``, ``tls``, ``proxy``).",
            lambda v: v >= 1,
        ),
        Setting(
            "HA_BREAKER_COOLDOWN",
            _number,
            30.0,
            "a number of seconds above 0",
            "Seconds from the opening to the first probe, and up to a fifth more; twice as long after each "
            "probe that fails.",
            lambda v: v > 0,
        ),
        Setting(
            "HA_BREAKER_MAX_COOLDOWN",
            _number,
            900.0,
            "a number of seconds above 0",
            "Seconds between two probes at most, and up to a fifth more.",
            lambda v: v > 0,
        ),
        Setting(
            "HA_BREAKER_DEADLINE",
            _number,
            3600.0,
            seconds,
            "A probe that fails so many seconds after the slot first opened makes it dead: what waits for "
            "it is given up without being sent, until it is probed again. 0: that never happens.",
            lambda v: v >= 0,
        ),
        Setting(
            "HA_PACE_ENABLED",
            _boolean,
            True,
            boolean,
            "Whether a slot is sent requests at a lower rate after it asked for patience (``throttled``), "
            "until it has recovered.",
        ),
        Setting(
            "HA_PACE_CUT",
            _number,
            0.7,
            "a number above 0 and below 1",
            "What is left of the rate after each such answer to a request sent since the last cut.",
            lambda v: 0 < v < 1,
        ),
        Setting(
            "HA_PACE_RECOVERY",
            _number,
            30.0,
            "a number of seconds above 0",
            "Seconds in which the rate would grow from nothing to what it was at first.",
            lambda v: v > 0,
        ),
        Setting(
            "HA_PACE_MAX_DELAY",
            _number,
            60.0,
            "a number of seconds above 0",
            "Seconds between two requests of a slot at its slowest.",
            lambda v: v > 0,
        ),
        Setting(
            "HA_OUTAGE_ENABLED",
            _boolean,
            True,
            boolean,
            "Whether the crawl is paused, and probes, while the network is down: when nearly all slots "
            "that are tried fail to connect, and nobody answers. That uses up no attempts.",
        ),
        Setting(
            "HA_OUTAGE_WINDOW",
            _number,
            10.0,
            "a number of seconds above 0",
            "For how many seconds a failure is a sign.",
            lambda v: v > 0,
        ),
        Setting(
            "HA_OUTAGE_FAILURES",
            _integer,
            10,
            "a whole number, at least 1",
            "How many signs it takes.",
            lambda v: v >= 1,
        ),
        Setting(
            "HA_OUTAGE_SLOTS",
            _integer,
            5,
            "a whole number, at least 1",
            "How many slots they must come from. A slot that failed already when others still answered is "
            "none of them.",
            lambda v: v >= 1,
        ),
        Setting(
            "HA_OUTAGE_SHARE",
            _number,
            0.9,
            "a number above 0, at most 1",
            "Share of the slots that were tried in that time.",
            lambda v: 0 < v <= 1,
        ),
        Setting(
            "HA_OUTAGE_SILENCE",
            _number,
            3.0,
            seconds,
            "For how many seconds nobody may have answered.",
            lambda v: v >= 0,
        ),
        Setting(
            "HA_OUTAGE_PROBE",
            _number,
            5.0,
            "a number of seconds above 0",
            "Seconds to the first probe; twice as long to each further one.",
            lambda v: v > 0,
        ),
        Setting(
            "HA_OUTAGE_MAX_PROBE",
            _number,
            60.0,
            "a number of seconds above 0",
            "Seconds between two probes at most.",
            lambda v: v > 0,
        ),
        Setting(
            "HA_OUTAGE_DEADLINE",
            _number,
            3600.0,
            seconds,
            "After so many seconds the crawl goes on all the same, until something answers; after a tenth of "
            "that when most of the slots had never answered, but others had. 0: it waits for ever.",
            lambda v: v >= 0,
        ),
    )
    return {setting.name: setting for setting in declared}


RETRY_POLICIES = "HA_RETRY_POLICIES"
"""What is wrong inside of it is found where it is understood; the message names it all the same."""

SETTINGS: Mapping[str, Setting] = _declare()
"""All settings of the package by name."""


def read(settings: BaseSettings, name: str) -> Any:
    """The typed value of the declared setting *name*, or its default if it is unset or None.

    Raises:
        SettingError: The given value is not allowed.
    """
    declared = SETTINGS[name]
    return declared.parse(settings.get(name, declared.default))


def check(settings: BaseSettings) -> None:
    """Check every ``HA_`` setting; warn of names that do not exist.

    Raises:
        SettingError: A value is not allowed.
    """
    for name in SETTINGS:
        read(settings, name)
    for name in settings:
        if isinstance(name, str) and name.startswith("HA_") and name not in SETTINGS:
            near = difflib.get_close_matches(name, SETTINGS, n=1)
            hint = f" Did you mean {near[0]}?" if near else ""
            logger.warning("There is no setting %s in scrapy_ha; it has no effect.%s", name, hint)


def namespace(settings: BaseSettings, spider_name: str) -> str:
    """The crawl's name."""
    value: str | None = read(settings, "HA_NAMESPACE")
    return value or spider_name


def directory(settings: BaseSettings, spider_name: str) -> Path:
    """Where the embedded stores of this crawl live; not made here."""
    explicit = read(settings, "HA_DIR") or settings.get("JOBDIR")
    if explicit:
        return Path(explicit).absolute()
    from scrapy.utils.project import data_path  # noqa: PLC0415 - looks for scrapy.cfg when called

    name = namespace(settings, spider_name).replace("/", "_").replace("\\", "_")
    return Path(data_path(f"ha/{name}"))
