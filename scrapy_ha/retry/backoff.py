"""How long to wait before the next attempt: every wait is drawn evenly from an interval.

Source: Marc Brooker, «Exponential Backoff And Jitter», AWS Architecture Blog (2015), with two
deviations. Jitter is taken after the cap: taken before it, all late retries would meet at the cap.
And nothing is shorter than a floor, because full jitter alone would send some retries at once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from random import Random

BACKOFFS = ("fixed", "linear", "exponential", "steps")
JITTERS = ("none", "full", "equal", "decorrelated")

RETRY_AFTER_JITTER = 30.0
"""Seconds at most that a long ``Retry-After`` is spread over."""


def grown(kind: str, n: int, base: float, factor: float, steps: Sequence[float] = ()) -> float:
    """Seconds before retry number *n*, which counts from 1, with neither cap nor jitter; may be infinite.

    ``fixed``: *base*; ``linear``: ``base * n``; ``exponential``: ``base * factor ** (n - 1)``;
    ``steps``: those, and the last of them from then on.
    """
    n = max(n, 1)
    if kind == "fixed":
        return base
    if kind == "steps":
        return steps[min(n, len(steps)) - 1]
    try:
        return base * n if kind == "linear" else base * factor ** (n - 1) if base else 0.0
    except OverflowError:
        return math.inf


def interval(jitter: str, delay: float, cap: float, floor: float) -> tuple[float, float]:
    """Shortest and longest wait that *jitter* makes of *delay*; both within [0, *cap*].

    ``none``: *delay* itself; ``full``: from *floor* on; ``equal``: from half of it on.
    *cap* goes before *floor*, and *floor* before the rest.
    """
    end = min(delay, cap)
    start = {"none": end, "equal": end / 2}.get(jitter, 0.0)
    floor = min(floor, cap)
    return max(start, floor), max(end, floor)


def decorrelated(
    previous: float, base: float, factor: float, cap: float, floor: float
) -> tuple[float, float]:
    """Shortest and longest wait after a wait of *previous* seconds (0: there was none); within [0, *cap*].

    From *base* to *factor* times what the last wait was: the plan of each request goes its own
    way, and needs the last wait to go on after a restart.
    """
    end = min(max(previous, base) * factor, cap)
    floor = min(floor, cap)
    return max(min(base, end), floor), max(end, floor)


def draw(between: tuple[float, float], random: Random) -> float:
    """A number of the closed interval, each as likely as the others."""
    low, high = between
    return min(high, low + (high - low) * random.random())  # rounding may pass the end


def after(seconds: float, base: float, cap: float, floor: float, random: Random) -> float:
    """Seconds to wait when the server asked for *seconds*, at least 0.

    ``min(cap, max(floor, s + U(0, max(base, min(s / 10, 30)))))`` with ``s = min(seconds, cap)``:
    jitter only upwards, so never earlier than asked, apart from *cap*, and never above that.
    """
    asked = min(seconds, cap)
    spread = max(base, min(asked / 10, RETRY_AFTER_JITTER))
    return min(cap, max(floor, asked + draw((0.0, spread), random)))
