"""Names of the stats that several modules or tools know; ``docs/reference/stats.rst`` explains all."""

from __future__ import annotations

RETRY_AFTER = "ha/retry/retry_after"
"""Retries whose time the server set with ``Retry-After``."""


def retried(cls: str) -> str:
    """Retries after a failure of class *cls*."""
    return f"ha/retry/{cls}"


def gave_up(cls: str) -> str:
    """Requests given up whose last failure was of class *cls*."""
    return f"ha/retry/gave_up/{cls}"


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
