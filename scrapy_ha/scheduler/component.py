"""HAScheduler: Scrapy's side of the frontier."""

from __future__ import annotations

import contextlib
import logging
import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scrapy import Request, signals
from scrapy.core.scheduler import BaseScheduler
from scrapy.utils.misc import load_object

from scrapy_ha import settings as declared
from scrapy_ha.deadletter import BAD_RECORD, CALLBACK, REASON_LIMIT, DeadLetter
from scrapy_ha.duplicates import warn_of_identity
from scrapy_ha.errors import BadRecord, HAError, StoreFull, Unserializable
from scrapy_ha.inflight import InFlight
from scrapy_ha.lifecycle import watch
from scrapy_ha.loop import Timer, call_later, close_spider, completed, spawn
from scrapy_ha.run import current_page, run_of
from scrapy_ha.scheduler.commit import Commit, Commits
from scrapy_ha.scheduler.duplicates import Duplicates
from scrapy_ha.scheduler.identity import adopt, inherit
from scrapy_ha.scheduler.letters import letter_of
from scrapy_ha.scheduler.pages import Loads, Page
from scrapy_ha.scheduler.tally import Tally
from scrapy_ha.scheduler.unstored import Unstored, UnstoredQueue
from scrapy_ha.seeding import Seeding
from scrapy_ha.serialize import RequestCodec
from scrapy_ha.slot import SlotNames
from scrapy_ha.state import GaveUp, clean_state, get_state, set_state, with_failure
from scrapy_ha.typing import SEED, Entry, Frontier, Lease, Opened, Settlement

if TYPE_CHECKING:
    from scrapy import Spider
    from scrapy.crawler import Crawler
    from twisted.internet.defer import Deferred
    from twisted.python.failure import Failure
    from typing_extensions import Self

    from scrapy_ha.typing import Gate

logger = logging.getLogger(__name__)

FRONTIERS = {
    "auto": "scrapy_ha.frontier.leveldb.LevelDBFrontier",
    "leveldb": "scrapy_ha.frontier.leveldb.LevelDBFrontier",
}
"""Class of the frontier by ``HA_FRONTIER``; its client library is imported only when it is used."""
FLUSH_EVERY = 16
"""Pages after which counts go to the stats."""
REPORT_EVERY = 1024
"""Pages after which the stats show how the Bloom filter does."""
HOLD_LIMIT = 1000
"""Requests in memory that one page waits for, over all generations. It bounds what is held."""
DEAD_AT_ONCE = 1000
DAY = 86400.0


class HAScheduler(BaseScheduler):
    """A scheduler whose requests survive the death of the process.

    A request that :meth:`enqueue_request` accepted is on disk when the method returns, and stays
    there until the engine is done with it: parsed, its children stored, its items accepted by
    the pipelines. After ``kill -9`` the same command goes on; only pages that were in flight are
    fetched again. Works with any spider, as ``SCHEDULER = "scrapy_ha.scheduler.HAScheduler"`` or
    through the add-on.

    Duplicates are known by Scrapy's request fingerprinter and kept in the frontier; a
    ``DUPEFILTER_CLASS`` of the project's own is asked as well.

    Raises:
        SettingError: A setting has a value that is not allowed.
        StoreLocked, StoreDamaged: On opening, see :class:`~scrapy_ha.frontier.leveldb.LevelDBFrontier`.
    """

    keeps_requests = True
    """So the checkpoint need not."""

    def __init__(self, crawler: Crawler) -> None:
        settings = crawler.settings
        self.crawler = crawler
        self._stats: Any = crawler.stats
        self._tally = Tally(crawler.stats)
        self._run = run_of(crawler)
        if not self._run.settings_checked:
            declared.check(settings)
        self._unstored = UnstoredQueue()
        self._duplicates = Duplicates(crawler, self._tally, self._unstored.keys)
        self._seeding = Seeding(
            declared.read(settings, "HA_SEED_ONCE"),
            declared.read(settings, "HA_SEED_LIMIT"),
            self._waiting,
            self._start_item,
            self._seeded,
        )
        self._hold_parent: bool = declared.read(settings, "HA_HOLD_PARENT")
        self._ends = 0
        self._pages: dict[Request, Page] = {}
        self._by_id: dict[int, Page] = {}
        self._unstored_kinds: set[str] = set()
        self._in_memory = 0
        # Start requests that cannot be stored belong to this: seeding is done when they are.
        self._seeds = Page(Request("about:start"), "", SEED)
        self._unstored_holds = 0
        self._loads = Loads(self._capacity)
        self._gate: Gate | None = None
        self._probed: set[str] = set()
        """Slots that are sent one request at a time, to see whether they are well."""
        self._wake_timer: Timer | None = None
        self._wake_at = math.inf
        self._failed = False
        self._opened = False

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        return cls(crawler)

    # Opening and closing

    def open(self, spider: Spider) -> Deferred[None] | None:
        settings = self.crawler.settings
        directory = declared.directory(settings, spider.name)
        options = {
            "max_deliveries": declared.read(settings, "HA_MAX_DELIVERIES"),
            "order": declared.read(settings, "HA_QUEUE_ORDER"),
            "dead_limit": declared.read(settings, "HA_DLQ_LIMIT") or None,
            "dead_seconds": declared.read(settings, "HA_DLQ_DAYS") * DAY or None,
            "seen_seconds": declared.read(settings, "HA_SEEN_TTL"),
            "keep_seen": declared.read(settings, "HA_SEEN_KEEP"),
        }
        if declared.read(settings, "HA_FRONTIER") == "redis":
            return spawn(self._open_shared(spider, directory, options))
        path = Path(directory) / "frontier"
        try:
            frontier = load_object(FRONTIERS[declared.read(settings, "HA_FRONTIER")])(
                path,
                crawl=declared.namespace(settings, spider.name),
                seen_tier=self._duplicates.lend(path),
                reset_seen=declared.read(settings, "HA_SEEN_RESET"),
                identity=self._duplicates.fingerprints.identity,
                **options,
            )
            opened = completed(frontier.open())
        except HAError as error:
            logger.error("%s", error)
            raise
        self._begin(spider, frontier, opened, directory)
        return None

    async def _open_shared(self, spider: Spider, directory: Path, options: dict[str, Any]) -> None:
        connect = load_object("scrapy_ha.scheduler.shared.connect")  # needs redis-py
        try:
            frontier = await connect(self.crawler, options, directory, self._capacity, self._fail)
            opened = await frontier.open()
        except HAError as error:
            logger.error("%s", error)
            raise
        self._begin(spider, frontier, opened, directory)

    def _begin(self, spider: Spider, frontier: Any, opened: Opened, directory: Path) -> None:
        settings = self.crawler.settings
        self._opened = True
        self._frontier: Frontier = frontier
        self._clock = self._run.clock = frontier.clock
        self._codec = RequestCodec(spider)
        self._spider_name = spider.name
        self._downloader: Any = self.crawler.engine.downloader
        self._slot_of = SlotNames(self._downloader).of
        self._lifecycle = watch(self.crawler)
        self._lifecycle.ended.append(self._ended)
        self._lifecycle.began.append(self._began)
        self._run.resumed, self._run.marks = opened.resumed, opened.marks
        self._run.tracks = lambda page: page in self._pages or page is self._seeds.request
        self._run.keeps_times = self._pages.__contains__
        self._run.bury = self._bury
        self._run.keep = self._keep
        self._gate = self._run.gate
        if self._gate is not None:
            self._gate.changed = self._gate_changed
        self._commits = Commits(
            frontier,
            self._run,
            declared.read(settings, "HA_FSYNC"),
            declared.read(settings, "HA_FSYNC_INTERVAL"),
            self._fail,
            lambda number: self._stats.inc_value("ha/dlq/expired", number),
            self._lifecycle.wake,
        )
        self._commits.start()
        self._in_flight = InFlight(settings, self._clock)
        self._duplicates.open(frontier.knows)
        self._seeding.open(opened, getattr(frontier, "seeding_turn", None))
        self._lifecycle.wrap_start(self._seeding.produce)
        self.crawler.signals.connect(self._left_downloader, signals.request_left_downloader)
        if declared.read(settings, "HA_DLQ_CALLBACK_ERRORS"):
            self.crawler.signals.connect(self._callback_raised, signals.spider_error)
        warn_of_identity(opened.former_identity, self._duplicates.fingerprints.identity)
        if not opened.resumed and declared.read(settings, "HA_SEEN_KEEP"):
            self._forget_dead()
        self._report(opened, directory)

    def _forget_dead(self) -> None:
        """Have the requests that were given up in earlier crawls new in this one."""
        after = 0
        while page := completed(self._frontier.dead(DEAD_AT_ONCE, after)):
            after = page[-1].id
            keys = []
            for dead in page:
                with contextlib.suppress(BadRecord):
                    key = self._duplicates.key_of(self._codec.decode(dead.payload))
                    if key is not None:
                        keys.append(key)
            completed(self._frontier.forget(keys))

    def _report(self, opened: Opened, directory: Path) -> None:
        counts = completed(self._frontier.counts())
        self._stats.set_value("ha/scheduler/resumed", opened.resumed)
        self._stats.set_value("ha/scheduler/reclaimed", opened.reclaimed)
        if opened.resumed:
            logger.info(
                "Resuming the crawl in %s: %d requests wait, %d of them were in flight when it was "
                "interrupted, %d are delayed, start requests %s",
                directory,
                counts.ready,
                opened.reclaimed,
                counts.delayed,
                "are complete" if self._seeding.done else "go on",
            )
        self._run.warn_of_feeds(self.crawler.settings.getdict("FEEDS"))
        for dead in opened.poison:
            self._stats.inc_value("ha/scheduler/poisoned")
            try:
                name = str(self._codec.decode(dead.payload))
            except BadRecord:
                name = f"a request of slot {dead.slot}"
            logger.error(
                "%s was being worked on at %d ends of its process and is set aside as poison",
                name,
                DeadLetter.unpack(dead.record).deliveries,
            )

    def close(self, reason: str) -> Deferred[None]:
        return spawn(self._close(reason))

    async def _close(self, reason: str) -> None:
        if not self._opened:
            return
        self._opened = False
        if self._wake_timer is not None:
            self._wake_timer.cancel()
        await self._commits.close()
        if self._unstored or self._unstored_holds:
            logger.warning(
                "%d requests that cannot be stored were still waiting; the pages that yielded them will be "
                "fetched again (reasons: %s)",
                len(self._unstored),
                ", ".join(sorted(self._unstored_kinds)),
            )
        self._tally.flush()
        try:
            counts = await self._frontier.counts()
            self._stats.set_value("ha/scheduler/pending", counts.pending)
            self._stats.set_value("ha/scheduler/dead", counts.dead)
            complete = reason == "finished" and not self._failed and self._seeding.done
            if complete and not counts.pending and not self._unstored:
                await self._frontier.finish()
                await self._commits.close()
        except HAError as error:
            logger.error("The end of the crawl could not be noted: %s", error)
        finally:
            self._duplicates.close(reason)
            await self._frontier.close()

    # What the engine calls

    def has_pending_requests(self) -> bool:
        if self._unstored or self._failed:
            return True
        counts = completed(self._frontier.counts())
        return bool(counts.ready or counts.delayed)

    def enqueue_request(self, request: Request) -> bool:
        if self._failed or not self._opened:
            self._tally.add("ha/scheduler/refused")
            return False
        key = self._duplicates.key_of(request)
        try:
            if key is not None and self._duplicates.drops(request, key):
                return False
            return self._accept(request, key)
        except HAError as error:
            self._fail(error)
            return False

    def _accept(self, request: Request, key: bytes | None) -> bool:
        """Store *request*, which is no duplicate, with the state that is its own."""
        page = current_page.get()
        parent = self._pages.get(page) if page is not None else None
        seed = self._seeding.is_seed(request)
        due, moves = 0.0, False
        if parent is not None:
            due = inherit(request, parent.request, self._run.retried)
        elif not seed:
            parent = self._by_id.get(get_state(request).get("id", 0))
            due = adopt(request, parent is not None)
            moves = due > 0 and parent is not None
        return self._store(request, key, parent, seed, due, moves)

    def next_request(self) -> Request | None:
        # The engine may call from the context of a page; what it starts now is no part of that.
        current_page.set(None)
        if self._failed or self._in_flight.is_enough(len(self._pages) + self._commits.pending):
            return None
        if self._gate is not None and not self._gate.is_open():
            return None
        try:
            request = self._next_unstored() or self._next_stored()
        except HAError as error:
            self._fail(error)
            return None
        self._seeding.make_room()
        if request is None:
            self._wake_when_due()
        else:
            self._tally.add("scheduler/dequeued")
        return request

    # Storing

    def _store(
        self, request: Request, key: bytes | None, parent: Page | None, seed: bool, due: float, moves: bool
    ) -> bool:
        """Store *request* until *due*; in the place of *parent*, the attempt that failed, if it *moves*."""
        slot = self._slot_of(request)
        try:
            payload = self._codec.encode(request)
        except Unserializable as error:
            self._keep_in_memory(request, slot, key, self._seeds if seed else parent, due, moves, error)
            return True
        if moves and parent is not None and parent.lease is not None and not parent.moved:
            parent.moved = True
            settlement = Settlement(parent.lease, payload=payload, retry_at=due, priority=request.priority)
            completed(self._frontier.settle([settlement]))
            self._commits.touch()
            self._tally.add("ha/scheduler/delayed")
            self._count_enqueued("disk")
            return True
        entry = Entry(payload, slot, key, request.priority, due)
        if key is None:
            if parent is not None and parent.lease is not None:
                entry.parent = parent.lease.id
            elif seed and self._seeding.once:
                entry.parent = SEED
            if entry.parent is not None:
                entry.ordinal = self._duplicates.fingerprints.get(request)
        (new,) = completed(self._frontier.offer((entry,)))
        self._commits.touch()
        if key is not None:
            self._duplicates.stored(key)
        if new:
            self._count_enqueued("disk")
        else:
            self._tally.add("ha/scheduler/already_stored")
        return True

    def _keep_in_memory(
        self,
        request: Request,
        slot: str,
        key: bytes | None,
        parent: Page | None,
        due: float,
        moves: bool,
        error: Unserializable,
    ) -> None:
        if error.kind not in self._unstored_kinds:
            self._unstored_kinds.add(error.kind)
            logger.warning(
                "Requests like %s cannot be stored and are kept in memory (said once per kind): %s",
                request,
                error,
            )
        if moves and parent is not None and parent.lease is None:
            parent.moved = True  # the retry takes the place of the failed one, and is held for in its stead
            key, parent = parent.key, parent.parent
        if parent is not None and self._is_holding(parent):
            parent.holds += 1
            self._unstored_holds += 1
        else:
            parent = None
        self._unstored.push(Unstored(request, slot, key, parent), due)
        self._tally.add("ha/scheduler/unserializable")
        self._count_enqueued("memory")

    def _is_holding(self, parent: Page) -> bool:
        """Whether *parent* is to wait for one more request in memory, within bounds."""
        if not self._hold_parent or parent is self._seeds:
            return self._hold_parent
        root = parent.root()
        if root is self._seeds:
            root = parent  # a start request waits for what comes of it, seeding for all of them
        root.descendants += 1
        if root.descendants <= HOLD_LIMIT:
            return True
        if root.descendants == HOLD_LIMIT + 1:
            logger.warning(
                "%s led to more than %d requests that cannot be stored; it is not held any longer, so a kill "
                "may lose what comes now: make their callbacks methods of the spider",
                root.request,
                HOLD_LIMIT,
            )
        self._tally.add("ha/scheduler/unheld")
        return False

    def _count_enqueued(self, where: str) -> None:
        self._tally.add(f"scheduler/enqueued/{where}")
        self._tally.add("scheduler/enqueued")

    # Handing out

    def _next_unstored(self) -> Request | None:
        if not self._unstored:
            return None
        entry = self._unstored.pop(self._clock.time(), self._loads.busy, self._loads.full)
        if entry is None:
            return None
        self._in_memory += 1
        page = Page(entry.request, entry.slot, -self._in_memory, parent=entry.parent, key=entry.key)
        state = get_state(entry.request)
        state["id"] = page.id
        set_state(entry.request, state)
        self._take(page)
        self._tally.add("scheduler/dequeued/memory")
        return entry.request

    def _next_stored(self) -> Request | None:
        loads = self._loads
        for _ in range(100):
            leases = completed(self._frontier.lease(1, loads.busy, loads.full, math.inf, False, self._probed))
            if not leases:
                return None
            lease = leases[0]
            try:
                request = self._codec.decode(lease.payload)
            except BadRecord as error:
                self._set_aside(lease, error)
                continue
            state = clean_state(request)
            state["id"] = lease.id
            state["deliveries"] = lease.deliveries
            set_state(request, state)
            self._take(Page(request, lease.slot, lease.id, lease))
            self._tally.add("scheduler/dequeued/disk")
            return request
        self._lifecycle.wake()
        return None

    def _take(self, page: Page) -> None:
        self._pages[page.request] = page
        self._by_id[page.id] = page
        if self._gate is not None:
            self._gate.taken(page.slot)
        self._loads.occupy(page.slot)

    def _set_aside(self, lease: Lease, error: BadRecord) -> None:
        """A stored request that is none: dead, with the reason; the crawl goes on."""
        logger.error("A stored request of slot %s cannot be read and was set aside: %s", lease.slot, error)
        self._tally.add("ha/scheduler/bad_records")
        letter = DeadLetter(
            BAD_RECORD,
            str(error),
            self._clock.time(),
            slot=lease.slot,
            spider=self._spider_name,
            deliveries=lease.deliveries,
        )
        completed(self._frontier.settle([Settlement(lease, dead=letter.pack())]))

    # Giving up

    def _bury(self, request: Request, traceback: str = "") -> bool:
        """Write down what is known of *request*, which is given up, while it goes on (:attr:`Run.bury`)."""
        page = self._pages.get(request)
        if page is None or page.moved or self._failed:
            return False
        page.record = letter_of(page, self._clock.time(), self._spider_name, traceback).pack()
        if page.lease is None:
            self._tally.add("ha/dlq/not_kept")
            return False
        try:
            kept = completed(self._frontier.bury(page.lease, page.record))
        except HAError as error:
            self._fail(error)
            return False
        self._commits.touch()
        return kept

    def _callback_raised(self, failure: Failure, response: Any) -> None:
        """A page whose callback, or errback, raised is given up; what it had yielded by then stays."""
        request = getattr(response, "request", None)
        if request not in self._pages:
            request = current_page.get()
        if request not in self._pages:
            return
        reason = f"{type(failure.value).__name__}: {failure.getErrorMessage()}"[:REASON_LIMIT]
        state = get_state(request)
        if "gave_up" not in state:
            state = with_failure(state, CALLBACK, reason, self._clock.time())
            state["gave_up"] = GaveUp(cls=CALLBACK, reason=reason)
            set_state(request, state)
        self._bury(request, failure.getTraceback())

    def _keep(self, marks: Mapping[str, bytes]) -> None:
        """Store *marks* (:attr:`Run.keep`)."""
        if self._failed or not self._opened:
            return
        try:
            completed(self._frontier.settle((), marks=marks))
        except HAError as error:
            self._fail(error)
        else:
            self._commits.touch()

    # The end of a request

    def _began(self, request: Request) -> None:
        """Its callback or errback is about to run: from now on it may be what kills the process."""
        self._expose(self._pages.get(request), True)

    def _expose(self, page: Page | None, exposed: bool) -> None:
        if page is not None and page.lease is not None and not self._failed:
            try:
                completed(self._frontier.expose((page.lease,), exposed))
            except HAError as error:
                self._fail(error)

    def _left_downloader(self, request: Request) -> None:
        page = self._pages.get(request)
        if page is not None and page.loading:
            page.loading = False
            self._loads.vacate(page.slot)

    def _ended(self, request: Request) -> None:
        """The engine is done with *request* (called by the lifecycle; must not raise)."""
        page = self._pages.pop(request, None)
        if page is None:
            return
        self._in_flight.ended()
        self._ends += 1
        if not self._pages or not self._ends % FLUSH_EVERY:
            self._tally.flush()
        if not self._ends % REPORT_EVERY:
            self._duplicates.report()
        if page.loading:
            self._loads.vacate(page.slot)
        self._by_id.pop(page.id, None)
        page.ended = True
        if page.holds or self._commits.waits_for_device:
            self._expose(page, False)  # it only waits
        try:
            self._complete(page)
        except Exception as error:
            self._fail(error)

    def _complete(self, page: Page) -> None:
        """End *page* if nothing holds it any more, and then those that it held."""
        while page.ended and not page.holds and page.parent is not None:
            parent = page.parent
            parent.holds -= 1
            self._unstored_holds -= 1
            if not page.moved:
                if parent is self._seeds:
                    self._end(page)
                else:
                    parent.adopt(page)
            page = parent
        if page.ended and not page.holds and not page.moved:
            self._end(page)

    def _end(self, page: Page) -> None:
        if page is self._seeds:
            self._seeding.done = True
            self._commits.commit(Commit([page.request], seeded=True))
            return
        family = [*page.members, page]
        keys = [member.key for member in family if member.key is not None]
        requests = [member.request for member in family]
        self._unstored.keys.difference_update(keys)
        if page.lease is None:
            self._commits.commit(Commit(requests, seen=keys))
            return
        if page.record is None and get_state(page.request).get("gave_up") is not None:
            page.record = letter_of(page, self._clock.time(), self._spider_name).pack()
        if page.record is not None:
            self._tally.add("ha/scheduler/given_up")
        self._commits.commit(Commit(requests, Settlement(page.lease, dead=page.record), keys))

    # Start requests

    def _waiting(self) -> int:
        counts = completed(self._frontier.counts())
        return counts.ready + counts.delayed + len(self._unstored)

    def _start_item(self) -> None:
        """A start item is on its way to the pipelines: it belongs to no page but to the seeds."""
        if not self._seeds.holds:
            for signal in (signals.item_scraped, signals.item_dropped, signals.item_error):
                self.crawler.signals.connect(self._item_ended, signal)
        self._seeds.holds += 1
        current_page.set(self._seeds.request)

    def _item_ended(self) -> None:
        if current_page.get() is self._seeds.request:
            self._seeds.holds -= 1
            self._complete(self._seeds)

    def _seeded(self) -> None:
        if not self._opened or self._failed:
            return  # some were refused
        self._seeds.ended = True
        try:
            self._complete(self._seeds)
        except HAError as error:
            self._fail(error)

    # Delayed requests

    def _wake_when_due(self) -> None:
        """Have the engine ask again when the next delayed request is due."""
        due = completed(self._frontier.next_due())
        at = min(math.inf if due is None else due, self._unstored.next_due)
        if at == self._wake_at or at == math.inf:
            return
        if self._wake_timer is not None:
            self._wake_timer.cancel()
        self._wake_at = at
        self._wake_timer = call_later(max(at - self._clock.time(), 0.0) + 0.001, self._wake)

    def _wake(self) -> None:
        self._wake_timer, self._wake_at = None, math.inf
        self._lifecycle.wake()

    # Slots

    def _capacity(self, slot: str) -> int | None:
        downloader = self._downloader
        known = downloader.slots.get(slot)
        if known is not None:
            capacity = int(known.concurrency)
        else:
            configured = downloader.per_slot_settings.get(slot, {}).get("concurrency")
            capacity = int(configured or downloader.ip_concurrency or downloader.domain_concurrency)
        limit = None if self._gate is None else self._gate.limit(slot)
        if capacity <= 0:  # Scrapy's way to say that there is none
            return limit
        return capacity if limit is None else min(capacity, limit)

    def _gate_changed(self, slot: str | None) -> None:
        """The gate's answers are others now, for *slot* or for all."""
        if slot is not None:
            self._loads.review(slot)
            if self._gate is not None and self._gate.limit(slot) == 1:
                self._probed.add(slot)
            else:
                self._probed.discard(slot)
        self._lifecycle.wake()

    def _fail(self, error: Exception) -> None:
        """The store, or what an acknowledgement waits for, cannot be written: stop, in order.

        What is in flight stays leased, so the next run takes it up.
        """
        if self._failed:
            return
        self._failed = True
        expected = isinstance(error, HAError)
        reason = "disk_full" if isinstance(error, StoreFull) else "store_error"
        logger.error("Closing the spider (%s): %s", reason, error, exc_info=None if expected else error)
        self._stats.set_value("ha/scheduler/failure", reason)
        close_spider(self.crawler, reason)
