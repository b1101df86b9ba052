"""The requests of Scrapy's own scheduler, kept so that a killed crawl goes on."""

from __future__ import annotations

import logging
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scrapy import Request, signals
from scrapy.dupefilters import BaseDupeFilter, RFPDupeFilter
from scrapy.exceptions import CloseSpider, DontCloseSpider
from scrapy.utils.job import job_dir
from scrapy.utils.misc import load_object

from scrapy_ha import settings as declared
from scrapy_ha import stats as names
from scrapy_ha.checkpoint.ledger import (
    DONE,
    SCHEDULED,
    SEEDED,
    Ledger,
    Scheduled,
    pack_done,
    pack_id,
    pending,
    unpack_id,
)
from scrapy_ha.duplicates import log_duplicate
from scrapy_ha.errors import BadRecord, Unserializable
from scrapy_ha.fingerprint import Fingerprints
from scrapy_ha.inflight import InFlight
from scrapy_ha.lifecycle import watch
from scrapy_ha.loop import close_spider, in_thread, sleep, spawn
from scrapy_ha.run import current_page, run_of
from scrapy_ha.seeding import Seeding
from scrapy_ha.serialize import RequestCodec
from scrapy_ha.state import get_state, is_retry_of, set_state, start_clean

if TYPE_CHECKING:
    from scrapy.crawler import Crawler

    from scrapy_ha.checkpoint.store import CheckpointStore
    from scrapy_ha.seen.store import SeenStore

logger = logging.getLogger(__name__)

BATCH = 200
"""Requests given back to the scheduler in one turn of the event loop."""
SETTLED_AT_ONCE = 5000
"""Keys forgotten in one turn: a millisecond or two."""
HOLD_LIMIT = 1000
"""Pages that wait for what cannot be stored. It bounds what is held."""
STUCK_AFTER = 15.0
"""Seconds in which the scheduler gives none of the requests that it has; the engine asks every 5 s."""
QUEUE_HEADER = 4
"""Bytes at the start of a queue's file in JOBDIR that hold no request."""
INCOMPLETE = "incomplete"
"""Why a spider is closed whose scheduler has lost requests."""


class Journal:
    """Writes down each request before the scheduler gets it, and when the engine is done with it.

    A request keeps its id (``jid`` of its :class:`~scrapy_ha.state.State`) over redirects and retries. Each
    run draws at random where its ids begin, as a queue on disk may hold requests of runs that no log knows:
    killed before their records were written, or undone by going back to an older snapshot. Its
    end is written after its children, and after everything it gave is durable (:class:`Durable`), with their
    marks in the same record. Each end is given to the operating system at once, so a killed process costs
    the pages that were in flight.

    Args:
        ledger: What the last run left.
        failed: Called with the error when something could not be written.
        lost: Damage to the log has cost requests: the crawl is not to be called finished.
    """

    def __init__(
        self,
        crawler: Crawler,
        store: CheckpointStore,
        ledger: Ledger,
        failed: Callable[[Exception], None],
        lost: bool = False,
    ) -> None:
        settings = crawler.settings
        self._crawler = crawler
        self._store = store
        self._ledger = ledger
        self._failed = failed
        self._lost = lost
        self._stats: Any = crawler.stats
        self._run = run_of(crawler)
        self._codec = RequestCodec(crawler.spider)  # type: ignore[arg-type]
        self._fingerprints = Fingerprints(crawler.request_fingerprinter)
        self._filter = load_object(settings["DUPEFILTER_CLASS"])
        self._hold_parent: bool = declared.read(settings, "HA_HOLD_PARENT")
        self._debug = settings.getbool("DUPEFILTER_DEBUG")
        self._said_duplicate = False
        self._next_id = random.getrandbits(31) << 32 | 1
        self._keys: dict[int, bytes] = {}
        """Of the requests that are not done, by id; b"": it has none."""
        self._known: set[bytes] = set()
        """Keys of those, and of the ones that are done and not in the store of what was seen."""
        self._leaving: list[bytes] = []
        """Those that are in that store by now."""
        self._working: dict[Request, int] = {}
        """What the engine has."""
        self._moved: set[int] = set()
        """Of these, the ones in whose place another request has come."""
        self._active: set[int] = set()
        """The ids of these."""
        self._held: set[int] = set()
        """What waits on timers."""
        self._given: set[int] = set()
        """What is being given to the scheduler again."""
        self._in_memory: dict[int, int] = {}
        """What cannot be stored, and the page that waits for it (0: none)."""
        self._holds: Counter[int] = Counter()
        self._ended_pages: dict[int, Request] = {}
        """Pages that ended, and wait for what cannot be stored."""
        self._kinds: Counter[str] = Counter()
        self._in_flight = InFlight(settings, self._run)
        self._restoring = False
        self._offered_again = False
        self._closes = False
        """The spider was told to close."""
        self._seed_count: Counter[bytes] = Counter()
        self._opened = False
        if path := job_dir(settings):
            _remove_empty_queues(Path(path) / "requests.queue")
        self._seen = self._open_seen()
        once = declared.read(settings, "HA_SEED_ONCE")
        self._seeding = Seeding(
            once, declared.read(settings, "HA_SEED_LIMIT"), lambda: 0, self._start_item, self._seeded
        )
        self._seeding.done = once and ledger.seeded
        self._seeds = Request("about:start")
        self._start_items = 0
        """On their way through the pipelines."""
        self._all_seeded = False
        self._run.tracks = self._tracks
        self._run.hold = self._hold
        crawler.signals.connect(self._spider_opened, signals.spider_opened)
        crawler.signals.connect(self._spider_idle, signals.spider_idle)

    @property
    def is_complete(self) -> bool:
        """Nothing is left to do."""
        return not self._keys and self._seeding.done

    def close(self, reason: str) -> None:
        self._stats.set_value(names.JOURNAL_PENDING, len(self._keys))
        if self._in_memory:
            logger.warning(
                "%d requests that cannot be stored were still waiting; the pages that yielded them will be "
                "fetched again (reasons: %s)",
                len(self._in_memory),
                ", ".join(f"{kind}: {count}" for kind, count in sorted(self._kinds.items())),
            )
        if self._seen is not None:
            self._seen.close()

    # What was seen

    def _open_seen(self) -> SeenStore | None:
        """Where the keys go that no record has any more; the duplicate filter of ours keeps its own."""
        settings = self._crawler.settings
        if hasattr(self._filter, "frontier_tier") or self._filter is BaseDupeFilter:
            return None
        store_class: type[SeenStore] = load_object("scrapy_ha.seen.store.SeenStore")  # needs LevelDB
        seen = store_class(
            self._store.path / "seen",
            identity=self._fingerprints.identity,
            capacity=declared.read(settings, "HA_SEEN_CAPACITY"),
            error_rate=declared.read(settings, "HA_SEEN_ERROR_RATE"),
            kind=declared.read(settings, "HA_SEEN_BLOOM"),
            ttl=declared.read(settings, "HA_SEEN_TTL"),
        )
        seen.open()
        afresh = self._ledger.finished and not declared.read(settings, "HA_SEEN_KEEP")
        if afresh or declared.read(settings, "HA_SEEN_RESET"):
            seen.begin_generation()
        return seen

    def settle_keys(self, keys: list[bytes]) -> None:
        """Requests with these *keys* are done, and soon no record will say so. In the snapshot's thread."""
        if self._seen is not None:
            self._seen.add_many([key for key in keys if key not in self._seen])
            self._leaving += keys

    async def settled(self) -> None:
        """The snapshot is made."""
        leaving, self._leaving = self._leaving, []
        if self._seen is None:
            return
        for start in range(0, len(leaving), SETTLED_AT_ONCE):
            self._known.difference_update(leaving[start : start + SETTLED_AT_ONCE])
            await sleep(0)
        if self._seen.tier.wants_saving:
            await in_thread(self._seen.tier.begin_save())

    def _knows(self, key: bytes) -> bool:
        return key in self._known or (self._seen is not None and key in self._seen)

    # Opening

    def _spider_opened(self) -> None:
        watching = watch(self._crawler)
        watching.offered.append(self._offered)
        watching.enqueued.append(self._enqueued)
        watching.asked.append(self._asked)
        watching.admitted.append(self._admitted)
        watching.ended.append(self._ended)
        watching.wrap_start(self._seeding.produce)
        self._run.warn_of_feeds(self._crawler.settings.getdict("FEEDS"))
        watching.notes_stuck = True
        watching.attend()
        self._opened = True
        left = self._left()
        if left:
            logger.info(
                "Resuming the crawl in %s: %d requests were pending, start requests %s",
                self._store.path,
                len(left),
                "are complete" if self._seeding.done else "go on",
            )
            self._restoring = True
            spawn(self._restore(left))

    def _left(self) -> list[tuple[int, Scheduled]]:
        """What the last run left, without what other requests that it left will yield again."""
        if self._ledger.finished:
            return []
        done: list[bytes] = []
        again = Ledger(done.extend, declared.read(self._crawler.settings, "HA_SEEN_KEEP"))
        again.read(self._store.read())
        self._known.update(done)
        ids = again.pending.keys()
        left = []
        for record in pending(self._store.read(), again):
            with suppress(BadRecord):
                id_, scheduled = unpack_id(record.key), Scheduled.unpack(record.payload)
                if not scheduled.key and scheduled.parent in ids:
                    self._write_done(id_, b"")  # its page is fetched again, and yields it again
                    continue
                left.append((id_, scheduled))
                self._keys[id_] = scheduled.key
                if scheduled.key:
                    self._known.add(scheduled.key)
        if not self._seeding.done:
            self._seed_count = again.seeds
        return left

    async def _restore(self, left: list[tuple[int, Scheduled]]) -> None:
        """Give *left* to the scheduler."""
        try:
            for number, (id_, scheduled) in enumerate(left, 1):
                if not number % BATCH:
                    await sleep(0)
                if not self._is_open():
                    return
                if id_ in self._keys and id_ not in self._active:
                    try:
                        self._restore_one(id_, scheduled)
                    except Exception as error:  # of a scheduler whose queue is broken: it stays pending
                        self._stats.inc_value(names.JOURNAL_NOT_TAKEN)
                        if self._stats.get_value(names.JOURNAL_NOT_TAKEN) == 1:
                            logger.error(
                                "The scheduler does not take a request (said once): %s", error, exc_info=error
                            )
        finally:
            self._restoring = False
            watch(self._crawler).wake()

    def _restore_one(self, id_: int, scheduled: Scheduled) -> None:
        try:
            request = self._codec.decode(scheduled.payload)
        except BadRecord as error:
            logger.error("A stored request cannot be read, and is left out: %s", error)
            self._stats.inc_value(names.CHECKPOINT_BAD)
            self._finish(id_, None)
            return
        set_state(request, {**get_state(request), "jid": id_})
        self._stats.inc_value(names.JOURNAL_RESTORED)
        self._give_back(request, id_, scheduled.key)

    def _give_back(self, request: Request, id_: int, key: bytes) -> None:
        """Have the scheduler take a request that its duplicate filter has seen, or is to see now."""
        scheduler: Any = _scheduler(self._crawler)
        self._given.add(id_)
        filtered = request.dont_filter
        if key:
            filter_ = getattr(scheduler, "df", None)
            if filter_ is not None:
                filter_.request_seen(request)
        request.dont_filter = True
        try:
            scheduler.enqueue_request(request)
        finally:
            request.dont_filter = filtered
            self._given.discard(id_)

    # The life of a request

    def _offered(self, request: Request) -> bool:
        """The scheduler is about to get *request*."""
        if self._store.log.is_open and self._opened:
            try:
                return self._take(request)
            except Exception as error:
                self._failed(error)
        return False

    def _take(self, request: Request) -> bool:
        page = current_page.get()
        id_ = get_state(request).get("jid", 0)
        if id_ in self._given or id_ in self._held:
            self._held.discard(id_)
            return True
        if page is None and id_ in self._active:
            self._move(request, id_)
            return True
        key = b"" if self._filter is BaseDupeFilter else self._fingerprints.key_of(request) or b""
        if key and self._knows(key):
            log_duplicate(request, self._crawler.spider, self._debug, self._said_duplicate)
            self._said_duplicate = True
            self._stats.inc_value("dupefilter/filtered")
            return False
        self._schedule(request, key, page)
        return get_state(request).get("jid", 0) != 0

    def _schedule(self, request: Request, key: bytes, page: Request | None) -> None:
        """Write *request*, which is new, down."""
        if page is not None and page in self._working and not is_retry_of(request, page):
            start_clean(request, page)
        parent = self._working.get(page, 0) if page is not None else 0
        seed = b""
        if self._seeding.is_seed(request) and not key and self._seeding.once:
            seed = self._fingerprints.get(request)
            if self._seed_count[seed] > 0:
                self._seed_count[seed] -= 1
                self._stats.inc_value(names.JOURNAL_REPEATED)
                set_state(request, {**get_state(request), "jid": 0})
                return
        id_ = self._next_id
        self._next_id += 1
        set_state(request, {**get_state(request), "jid": id_})
        self._keys[id_] = key
        if key:
            self._known.add(key)
        self._write(request, id_, Scheduled(b"", key, parent, seed))

    def _move(self, request: Request, id_: int) -> None:
        """*request* is a redirect or a retry of one that the engine still has."""
        self._moved.add(id_)
        self._write(request, id_, Scheduled(b"", self._keys.get(id_, b"")))

    def _write(self, request: Request, id_: int, scheduled: Scheduled) -> None:
        try:
            payload = self._codec.encode(request)
        except Unserializable as error:
            self._keep_in_memory(request, id_, scheduled.parent, error)
            return
        whole = Scheduled(payload, scheduled.key, scheduled.parent, scheduled.seed)
        self._store.append(SCHEDULED, pack_id(id_), whole.pack())

    def _keep_in_memory(self, request: Request, id_: int, parent: int, error: Unserializable) -> None:
        if not self._kinds[error.kind]:
            logger.warning(
                "Requests like %s cannot be stored and are kept in memory (said once per kind): %s",
                request,
                error,
            )
        self._kinds[error.kind] += 1
        self._stats.inc_value(names.JOURNAL_UNSTORED)
        if id_ not in self._in_memory:
            held = parent if self._hold_parent and len(self._ended_pages) < HOLD_LIMIT else 0
            self._in_memory[id_] = held
            if held:
                self._holds[held] += 1

    def _hold(self, request: Request) -> bool:
        """*request* waits on timers (:attr:`Run.hold`)."""
        try:
            id_ = get_state(request).get("jid", 0)
            page = current_page.get()
            if id_ and page is None and id_ in self._held:  # the scheduler kept it over the restart, too
                self._stats.inc_value(names.JOURNAL_STALE)
                return False
            if page is None and id_ in self._active:
                self._move(request, id_)
            elif page is not None or id_ not in self._keys:
                self._schedule(request, b"", page)
            self._held.add(get_state(request).get("jid", 0))
            self._store.flush()
        except Exception as error:
            self._failed(error)
        return True

    def _enqueued(self, request: Request, taken: bool) -> None:
        id_ = get_state(request).get("jid", 0)
        if taken or id_ not in self._keys:
            return
        scheduler: Any = _scheduler(self._crawler)
        if isinstance(getattr(scheduler, "df", None), RFPDupeFilter) and not request.dont_filter:
            # Its file outlives a kill, and may know what no journal does: what was never fetched.
            self._give_back(request, id_, b"")
            return
        self._finish(id_, None)  # dropped, by a filter of the project's own

    def _asked(self) -> bool:
        return not self._in_flight.is_enough(len(self._working))

    def _admitted(self, request: Request) -> bool:
        """The scheduler hands out *request*, which an earlier run may have put there."""
        id_ = get_state(request).get("jid", 0)
        if not id_:
            with suppress(Exception):
                self._schedule(request, self._fingerprints.key_of(request) or b"", None)
                id_ = get_state(request).get("jid", 0)
        elif id_ not in self._keys or id_ in self._active or id_ in self._held:
            self._stats.inc_value(names.JOURNAL_STALE)
            return False
        self._working[request] = id_
        self._active.add(id_)
        return True

    def _tracks(self, page: Request) -> bool:
        return page in self._working or page is self._seeds

    def _ended(self, request: Request) -> None:
        """The engine is done with *request*."""
        id_ = self._working.pop(request, None)
        if id_ is None:
            return
        self._active.discard(id_)
        self._in_flight.ended()
        if id_ in self._moved or id_ in self._held:
            self._moved.discard(id_)
        elif self._holds[id_]:
            self._ended_pages[id_] = request
        else:
            self._finish(id_, request)

    def _finish(self, id_: int, page: Request | None) -> None:
        """The request is done, and so are those that waited for it."""
        if not self._store.log.is_open:
            return
        try:
            while True:
                self._holds.pop(id_, None)
                key = self._keys.pop(id_, b"")
                marks: dict[str, bytes] = {}
                if page is not None:
                    self._run.settle(page)
                    marks = self._run.collect_marks()
                self._write_done(id_, key, marks)
                parent = self._in_memory.pop(id_, 0)
                if not parent:
                    break
                self._holds[parent] -= 1
                if self._holds[parent] or parent not in self._ended_pages:
                    break
                id_, page = parent, self._ended_pages.pop(parent)
            self._store.flush()
        except Exception as error:
            self._failed(error)

    def _write_done(self, id_: int, key: bytes, marks: dict[str, bytes] | None = None) -> None:
        self._store.append(DONE, pack_id(id_), pack_done(key, marks or {}))

    # Start requests

    def _start_item(self) -> None:
        """A start item is on its way to the pipelines: it belongs to no page but to the seeds."""
        if not self._start_items:
            for signal in (signals.item_scraped, signals.item_dropped, signals.item_error):
                self._crawler.signals.connect(self._item_ended, signal)
        self._start_items += 1
        current_page.set(self._seeds)

    def _item_ended(self) -> None:
        if current_page.get() is self._seeds:
            self._start_items -= 1
            self._end_seeding()

    def _seeded(self) -> None:
        self._all_seeded = True
        self._end_seeding()

    def _end_seeding(self) -> None:
        if self._start_items or not self._all_seeded or not self._is_open():
            return
        self._seeding.done = True
        try:
            self._run.settle(self._seeds)
            self._store.append(SEEDED, b"", b"")
            self._store.flush()
        except Exception as error:
            self._failed(error)

    # The end

    def _spider_idle(self) -> None:
        """The engine and the scheduler have nothing; if the journal has, it was lost on the way."""
        if self._restoring:
            raise DontCloseSpider
        if not self._is_open():
            return
        if self._lost and not self._keys:
            logger.error("What the damaged log held cannot be scheduled again, so the crawl is not complete")
            raise CloseSpider(INCOMPLETE)
        if len(self._keys) <= len(self._held):
            return
        if self._offered_again:
            logger.error(
                "%d requests are not done, and Scrapy's scheduler has lost them; the next run takes them up",
                len(self._keys),
            )
            raise CloseSpider(INCOMPLETE)
        self._offer_again()
        raise DontCloseSpider

    def look(self) -> None:
        """See whether the scheduler, whose queue may be broken, says that it has requests and gives none."""
        since = watch(self._crawler).stuck_since
        if since is None or time.monotonic() - since < STUCK_AFTER or self._working or self._restoring:
            return
        if not self._is_open() or self._closes:
            return
        if self.is_complete:
            self._closes = True
            logger.warning("Scrapy's scheduler says that it has requests, and gives none; all are done")
            close_spider(self._crawler, "finished")
            return
        if len(self._keys) <= len(self._held):
            return
        if self._offered_again:
            self._closes = True
            logger.error(
                "Scrapy's scheduler gives none of its requests, of which %d are not done; the next run takes "
                "them up. Remove its queue, %s/requests.queue, before that: nothing is lost with it",
                len(self._keys),
                self._crawler.settings.get("JOBDIR"),
            )
            close_spider(self._crawler, INCOMPLETE)
            return
        self._offer_again()

    def _offer_again(self) -> None:
        self._offered_again = True
        self._restoring = True
        watch(self._crawler).stuck_since = None
        logger.warning(
            "%d requests are not done and nobody has them: they are scheduled again", len(self._keys)
        )
        spawn(self._restore(list(self._read_again())))

    def _read_again(self) -> Iterator[tuple[int, Scheduled]]:
        self._store.flush()
        ledger = Ledger()
        ledger.read(self._store.read())
        for record in pending(self._store.read(), ledger):
            id_ = unpack_id(record.key)
            if id_ in self._keys and id_ not in self._held:
                yield id_, Scheduled.unpack(record.payload)

    def _is_open(self) -> bool:
        return self._store.log.is_open and self._opened


def _remove_empty_queues(path: Path) -> None:
    """Remove files without content, which a kill leaves: Scrapy's queues do not start with them."""
    for file in path.rglob("*") if path.is_dir() else ():
        if file.is_file() and file.stat().st_size < QUEUE_HEADER and file.suffix != ".json":
            file.unlink()


def _scheduler(crawler: Crawler) -> Any:
    return watch(crawler).scheduler
