"""Time that passes when a test says so."""

from __future__ import annotations


class FakeClock:
    """A :class:`~scrapy_ha.typing.Clock` that stands still until :meth:`advance` is called.

    Args:
        start: Seconds since the epoch.
    """

    def __init__(self, start: float = 1_700_000_000.0) -> None:
        self._now = start

    def time(self) -> float:
        return self._now

    def advance(self, seconds: float) -> None:
        """Let *seconds* pass.

        Raises:
            ValueError: *seconds* is negative; a Clock never runs backwards.
        """
        if seconds < 0:
            raise ValueError(f"a clock cannot advance by {seconds} seconds")
        self._now += seconds
