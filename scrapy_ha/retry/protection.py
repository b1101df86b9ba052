"""The Guard in a crawl: its numbers, its clock, its memory, and its say over the downloader."""

from __future__ import annotations

import logging
import math
from collections.abc import Collection
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from scrapy import signals
from scrapy.exceptions import DontCloseSpider

from scrapy_ha import settings as declared
from scrapy_ha import stats as names
from scrapy_ha.loop import Ticker, Timer, call_later
from scrapy_ha.retry.breaker import BreakerRules
from scrapy_ha.retry.budget import BudgetRules
from scrapy_ha.retry.decide import heeds_retry_after
from scrapy_ha.retry.guard import UNTOLD, Guard
from scrapy_ha.retry.outage import OutageRules
from scrapy_ha.retry.pace import PaceRules
from scrapy_ha.retry.retry_after import parse_http_date, parse_retry_after
from scrapy_ha.run import run_of
from scrapy_ha.slot import SlotNames
from scrapy_ha.state import get_state, set_state

if TYPE_CHECKING:
    from scrapy import Request, Spider
    from scrapy.crawler import Crawler
    from scrapy.http import Response
    from scrapy.settings import BaseSettings

logger = logging.getLogger(__name__)

SAVE_EVERY = 1.0
"""Seconds between two writes of what changed; holds are written at once."""
ANNOUNCED = {
    "opened": (logging.WARNING, "%s fails: its requests wait, and one is tried in %.0f s"),
    "closed": (logging.INFO, "%s answers again"),
    "dead": (logging.WARNING, "%s has failed for HA_BREAKER_DEADLINE: what waits for it is given up"),
    "slowed": (logging.INFO, "%s asks for patience: it is sent requests at a lower rate"),
    "outage": (
        logging.WARNING,
        "The network seems to be down: the crawl pauses, and tries one request now and then",
    ),
    "outage_over": (
        logging.INFO,
        "The crawl goes on: something answered, or nothing has for too long to go on waiting",
    ),
}
SAID_AT_MOST = 1000
"""Lines of each kind; further ones are only counted."""


@dataclass(slots=True)
class Sent:
    """A request that is on its way."""

    slot: str
    at: float
    """Epoch seconds."""
    heard: bool = False
    """A response came."""


class Protection:
    """Registers a :class:`~scrapy_ha.retry.guard.Guard` as the gate of the crawl, and works it.

    ``Retry-After`` of any response holds its whole slot. What the guard knows is kept by the scheduler,
    if that is ours, and is there again after a restart.

    Args:
        failures: Statuses that are failures.
    """

    def __init__(self, crawler: Crawler, failures: Collection[int]) -> None:
        self._crawler = crawler
        self._failures = failures
        self._sent: WeakKeyDictionary[Request, Sent] = WeakKeyDictionary()
        self._stats: Any = crawler.stats
        self._run = run_of(crawler)
        self.guard = _guard(crawler.settings, self._run)
        self.guard.observe = self._observe
        self._cap: float = declared.read(crawler.settings, "HA_RETRY_AFTER_CAP")
        self._forced: dict[str, str] = declared.read(crawler.settings, "HA_BREAKER_FORCE")
        self._names = SlotNames(None)
        self._own_delays: dict[str, float] = {}
        """Of slots whose pace is cut, by what the downloader calls them: the delay without us."""
        self._timer: Timer | None = None
        self._timer_at = -math.inf
        """When it fires; before the spider opens no timer is set, as if there were an earlier one."""
        self._saver = Ticker(SAVE_EVERY, self._save_soon)
        self._said: dict[str, int] = {}
        self._run.gate = self.guard
        crawler.signals.connect(self._opened, signals.spider_opened)
        crawler.signals.connect(self._closed, signals.spider_closed)
        crawler.signals.connect(self._idle, signals.spider_idle)
        crawler.signals.connect(self._downloaded, signals.response_downloaded)

    def slot_of(self, request: Request) -> str:
        return self._names.of(request)

    def sent(self, request: Request, slot: str, tracked: bool) -> None:
        """*request* goes to the downloader."""
        self._sent[request] = Sent(slot, self._run.time())
        if not tracked:  # our scheduler has said so when it handed it out
            self.guard.taken(slot)
        self.guard.sent(slot, first="attempts" not in get_state(request))
        if self._own_delays or self.guard.delay_of(slot):
            self._set_pace(request, slot)

    def succeeded(self, request: Request) -> None:
        """There is a response to *request*, and it is none of a failure; it may be out of a cache."""
        sent = self._sent.pop(request, None)
        if sent is not None and sent.heard:
            self.guard.succeeded(sent.slot, sent.at)
        elif sent is not None:
            self.guard.unsent(sent.slot, sent.at)
        elif self.guard.in_outage:
            self.guard.unsent(self.slot_of(request))
        self._arm()

    def failed(self, request: Request, cls: str) -> tuple[bool, Sent]:
        """*request* failed. Whether that uses up an attempt; where and when it was sent."""
        sent = self._sent.pop(request, None)
        if sent is None:
            sent = Sent(self.slot_of(request), self._run.time())
            if cls in UNTOLD:  # it was dropped on its way to the downloader, by another middleware
                self.guard.unsent(sent.slot)
                self._arm()
                return True, sent
        again = "attempts" in get_state(request)
        counts = self.guard.failed(sent.slot, cls, sent.at, again).counts
        self._arm()
        return counts, sent

    def reserve_retry(self, slot: str) -> float:
        at = self.guard.reserve_retry(slot)
        self._arm()
        return at

    # Signals

    def _opened(self) -> None:
        engine: Any = self._crawler.engine
        self._names = SlotNames(engine.downloader)
        self.guard.restore(self._run.marks)
        if self.guard.bad_records:
            self._stats.inc_value(names.BAD_SLOT_RECORDS, self.guard.bad_records)
        for slot in self.guard.forced() - self._forced.keys():  # as an earlier run was told
            self.guard.force(slot, None)
        for slot, state in self._forced.items():
            self.guard.force(slot, state)
        self.guard.announce()
        self._timer_at = math.inf
        self._arm()
        self._saver.start()

    async def _closed(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._timer_at = -math.inf
        await self._saver.stop()

    def _idle(self) -> None:
        """Nothing is in progress, yet the gate is shut: the crawl is not over."""
        if not self.guard.is_open():
            raise DontCloseSpider

    def _downloaded(self, response: Response, request: Request, spider: Spider) -> None:
        if (sent := self._sent.get(request)) is not None:
            sent.heard = True
            if 300 <= response.status < 400 and response.status not in self._failures:
                # Another middleware follows a redirect before ours sees the response.
                del self._sent[request]
                self.guard.succeeded(sent.slot, sent.at)
            else:
                self.guard.heard(sent.slot, sent.at)
            self._arm()
        if b"Retry-After" in response.headers and heeds_retry_after(response.status):
            self._hold(response, request)
        if self._own_delays:
            self._set_pace(request, self.slot_of(request))

    def _hold(self, response: Response, request: Request) -> None:
        now = self._run.time()
        asked = asked_of(response, now)
        if asked is None:
            self._stats.inc_value(names.BAD_RETRY_AFTER)
            return
        until = now + min(asked, self._cap)
        self.guard.hold(self.slot_of(request), until)
        if 300 <= response.status < 400:  # the request that follows may go to another host
            set_state(request, {**get_state(request), "due": until})
        self._save()
        self._arm()

    # The downloader's delay

    def _set_pace(self, request: Request, slot: str) -> None:
        """Have the downloader keep to the slot's pace, or let it go back to its own.

        AutoThrottle sets the delay after every response, before this does: it goes on from ours.
        """
        engine: Any = self._crawler.engine
        name = engine.downloader.get_slot_key(request)
        known = engine.downloader.slots.get(name)
        if known is None:
            return  # it is made with the next request, and asked for again
        delay = self.guard.delay_of(slot)
        if delay:
            self._own_delays.setdefault(name, known.delay)
            known.delay = max(delay, self._own_delays[name])
        elif name in self._own_delays:
            known.delay = self._own_delays.pop(name)

    # Time and memory

    def _arm(self) -> None:
        at = self.guard.next_event()
        if at is None or at >= self._timer_at:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = at
        self._timer = call_later(max(at - self._run.time(), 0.0) + 0.001, self._fire)

    def _fire(self) -> None:
        self._timer, self._timer_at = None, math.inf
        self.guard.tick()
        self._arm()

    async def _save_soon(self) -> None:
        self._save()
        engine: Any = self._crawler.engine
        for name in self._own_delays.keys() - engine.downloader.slots.keys():
            del self._own_delays[name]  # the downloader has dropped the slot, and its delay with it

    def _save(self) -> None:
        if self._run.keep is None:
            self.guard.discard_changes()
        elif changes := self.guard.export():
            self._run.keep(changes)

    def _observe(self, what: str, slot: str | None) -> None:
        self._stats.inc_value(names.guarded(what))
        level, line = ANNOUNCED[what]
        said = self._said[what] = self._said.get(what, 0) + 1
        if said <= SAID_AT_MOST:
            values: tuple[object, ...] = () if slot is None else (slot,)
            if what == "opened" and slot is not None:
                values += (max(0.0, self.guard.free_at(slot) - self._run.time()),)
            logger.log(level, line, *values, extra={"spider": self._crawler.spider})
        if said == SAID_AT_MOST:
            logger.info("No more lines like this one; the stat %s counts them", names.guarded(what))


def asked_of(response: Response, now: float) -> float | None:
    """Seconds that the server asks to wait; ``None``: it says nothing valid, or nothing that is heeded."""
    lines = response.headers.getlist("Retry-After")
    if not lines or not heeds_retry_after(response.status):
        return None
    return parse_retry_after(lines, now, parse_http_date(response.headers.get("Date"), now))


def _guard(settings: BaseSettings, clock: Any) -> Guard:
    def read(name: str) -> Any:
        return declared.read(settings, name)

    patience = settings.getfloat("DOWNLOAD_TIMEOUT") + 20
    breaker = BreakerRules(
        rate=read("HA_BREAKER_RATE"),
        window=read("HA_BREAKER_WINDOW"),
        minimum=min(read("HA_BREAKER_MINIMUM"), read("HA_BREAKER_WINDOW")),
        consecutive=read("HA_BREAKER_CONSECUTIVE"),
        cooldown=read("HA_BREAKER_COOLDOWN"),
        max_cooldown=max(read("HA_BREAKER_MAX_COOLDOWN"), read("HA_BREAKER_COOLDOWN")),
        deadline=read("HA_BREAKER_DEADLINE"),
        patience=patience,
    )
    pace = PaceRules(
        cut=read("HA_PACE_CUT"), recovery=read("HA_PACE_RECOVERY"), max_delay=read("HA_PACE_MAX_DELAY")
    )
    outage = OutageRules(
        window=read("HA_OUTAGE_WINDOW"),
        failures=read("HA_OUTAGE_FAILURES"),
        slots=read("HA_OUTAGE_SLOTS"),
        share=read("HA_OUTAGE_SHARE"),
        silence=read("HA_OUTAGE_SILENCE"),
        probe=read("HA_OUTAGE_PROBE"),
        max_probe=max(read("HA_OUTAGE_MAX_PROBE"), read("HA_OUTAGE_PROBE")),
        deadline=read("HA_OUTAGE_DEADLINE"),
    )
    return Guard(
        clock,
        Random(),
        budget=BudgetRules(
            ratio=read("HA_RETRY_BUDGET"),
            rate=read("HA_RETRY_BUDGET_RATE"),
            connections=max(1.0, read("HA_RETRY_CONCURRENCY") * settings.getint("CONCURRENT_REQUESTS")),
            longest=patience,
        ),
        breaker=breaker if read("HA_BREAKER_ENABLED") else None,
        pace=pace if read("HA_PACE_ENABLED") else None,
        outage=outage if read("HA_OUTAGE_ENABLED") else None,
    )
