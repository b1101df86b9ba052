"""Names of the stats that several modules or tools know; ``docs/reference/stats.rst`` explains all."""

from __future__ import annotations

RETRY_AFTER = "ha/retry/retry_after"
"""Retries whose time the server set with ``Retry-After``."""

TIMED = "ha/retry/timed"
"""Retries that waited on timers, as the scheduler keeps no times."""
TIMERS_FULL = "ha/retry/timers_full"
"""Retries that waited in the downloader, as too many were on the timers."""
HANDED_OVER = "ha/retry/handed_over"
"""Retries that were on the timers when the spider closed, and went to the scheduler."""


def retried(cls: str) -> str:
    """Retries after a failure of class *cls*."""
    return f"ha/retry/{cls}"


def retry_trouble(kind: str) -> str:
    """What was met that others wrote and that is wrong: ``bad_meta``, ``bad_policy``, ``bad_classify``."""
    return f"ha/retry/trouble/{kind}"


def gave_up(cls: str) -> str:
    """Requests given up whose last failure was of class *cls*."""
    return f"ha/retry/gave_up/{cls}"


def remedied(cls: str) -> str:
    """Requests that a remedy for failures of class *cls* changed."""
    return f"ha/retry/remedied/{cls}"


def remedy_failed(cls: str) -> str:
    """Remedies for failures of class *cls* that failed."""
    return f"ha/retry/remedy_failed/{cls}"


def guarded(what: str) -> str:
    """What the guard saw: ``opened``, ``closed``, ``dead``, ``slowed``, ``outage``, ``outage_over``."""
    return f"ha/guard/{what}"


BAD_SLOT_RECORDS = "ha/guard/bad_records"
"""Stored records of slots that were none."""
NOT_COUNTED = "ha/retry/not_counted"
"""Failures that used up no attempt."""
BAD_RETRY_AFTER = "ha/retry/bad_retry_after"
"""Responses whose ``Retry-After`` was neither a number nor a date."""

SEEN_NEW = "ha/seen/new"
"""URLs of which the Bloom filter said that they are certainly new."""
SEEN_CONFIRMED = "ha/seen/confirmed"
"""URLs that it took for seen, and the exact store had."""
SEEN_FALSE_POSITIVE = "ha/seen/false_positive"
"""URLs that it took for seen, and the exact store had not."""
SEEN_PERHAPS = "ha/seen/perhaps"
"""Both together."""
SEEN_COUNT = "ha/seen/count"
"""URLs in the filter."""
SEEN_FILL = "ha/seen/fill_ratio"
"""Share of its bits that are set."""
SEEN_ERROR = "ha/seen/estimated_error"
"""Share of new URLs that it takes for seen, estimated from what it holds."""

SCHEDULER_BROKEN = "ha/scheduler/broken"
"""Times that Scrapy's scheduler, or another one, failed to hand out a request."""
CHECKPOINT_RUNS = "ha/checkpoint/runs"
"""Runs that the crawl has had, this one included."""
CHECKPOINT_SECONDS = "ha/checkpoint/seconds"
"""Seconds that they took together."""
CHECKPOINT_RECORDS = "ha/checkpoint/records"
"""Records written to the write-ahead log."""
CHECKPOINT_SNAPSHOTS = "ha/checkpoint/snapshots"
"""Snapshots made."""
CHECKPOINT_TORN = "ha/checkpoint/torn_bytes"
"""Bytes of an interrupted write that were cut off the log when it was opened."""
CHECKPOINT_DAMAGED = "ha/checkpoint/damaged_bytes"
"""Bytes of the log that were damaged when it was opened, and of what stood behind them."""
CHECKPOINT_BAD = "ha/checkpoint/bad_records"
"""Records, or states of parts, that could not be read."""
JOURNAL_RESTORED = "ha/journal/restored"
"""Requests of an interrupted run that were given to the scheduler again."""
JOURNAL_NOT_TAKEN = "ha/journal/not_taken"
"""Requests of an interrupted run that the scheduler did not take, as its queue is broken."""
JOURNAL_STALE = "ha/journal/stale"
"""Copies of requests, done or in work already, that the scheduler had kept, and that were dropped."""
JOURNAL_PENDING = "ha/journal/pending"
"""Requests left when the spider closed."""
JOURNAL_UNSTORED = "ha/journal/unserializable"
"""Requests that cannot be stored, and are in memory only."""
JOURNAL_REPEATED = "ha/journal/already_stored"
"""Unfiltered start requests not scheduled again when start() ran again after a crash."""

SPOOL_ITEMS = "ha/spool/items"
"""Items stored in the local spool."""
SPOOL_DEAD_LETTERS = "ha/spool/dead_letters"
"""Items that cannot be stored and were set aside."""
SPOOL_NOT_STORED = "ha/spool/not_stored"
"""Items dropped because the spool had failed."""
SPOOL_TORN_BYTES = "ha/spool/torn_bytes"
"""Bytes of an interrupted write that were cut when the spool was opened."""
SPOOL_DAMAGED_BYTES = "ha/spool/damaged_bytes"
"""Bytes of the last segment that were damaged when the spool was opened."""
