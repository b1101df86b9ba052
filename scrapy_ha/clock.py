"""The time that everything stored refers to."""

from __future__ import annotations

import time


class SystemClock:
    """Seconds since the epoch that never run backwards while the process lives.

    The wall clock is read once, when the object is made; from then on the monotonic clock
    counts. So an administrator or NTP who sets the clock back delays nothing that waits.

    Args:
        not_before: A time that is known to have passed, such as the latest one found in a
            store. A wall clock that shows less is taken to have been set back, and the count
            starts from here, so that stored due times keep their distance.
    """

    def __init__(self, not_before: float = 0.0) -> None:
        self._offset = max(time.time(), not_before) - time.monotonic()

    def time(self) -> float:
        return self._offset + time.monotonic()
