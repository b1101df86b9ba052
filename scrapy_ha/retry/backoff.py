"""How long to wait before the next attempt.

Source: Marc Brooker, «Exponential Backoff And Jitter», AWS Architecture Blog (2015), full jitter::

    sleep = random_between(0, min(cap, base * 2 ** attempt))

with two deviations: the first retry has exponent 0, and nothing is shorter than a floor, because
full jitter alone would send some retries at once. Jitter is taken after the cap: taken before
it, all late retries would meet at the cap.
"""

from __future__ import annotations

import math
from random import Random


def full_jitter(attempt: int, base: float, cap: float, floor: float, random: Random) -> float:
    """Seconds before retry number *attempt*, which counts from 1.

    ``U(floor, max(floor, min(cap, base * 2 ** (attempt - 1))))``, *floor* being cut to *cap*. So
    the result is within [0, cap] for every attempt however high.

    Args:
        base: Upper end before the first retry, at least 0.
        cap: Longest wait, at least 0; it goes before *floor*.
        floor: Shortest wait, at least 0.
    """
    floor = min(floor, cap)
    return _between(floor, max(floor, min(cap, _doubled(base, attempt - 1))), random)


def after(seconds: float, base: float, cap: float, floor: float, random: Random) -> float:
    """Seconds to wait when the server asked for *seconds*, at least 0.

    ``min(cap, max(floor, s + U(0, max(base, s / 10))))`` with ``s = min(seconds, cap)``: jitter
    only upwards, so never earlier than asked, apart from *cap*, and never above that.
    """
    asked = min(seconds, cap)
    return min(cap, max(floor, asked + _between(0.0, max(base, asked / 10), random)))


def _doubled(base: float, times: int) -> float:
    try:
        return math.ldexp(base, max(times, 0))
    except OverflowError:
        return math.inf


def _between(low: float, high: float, random: Random) -> float:
    return min(high, low + (high - low) * random.random())  # rounding may pass the end
