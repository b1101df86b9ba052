"""The demo's website: the rendered documentation behind a front that fails now and then.

What fails, how, and how often is drawn from a seed and the page's path, so it is the same in
every run. A page fails at most twice, which is what ``RETRY_TIMES`` allows by default.
"""

from __future__ import annotations

import argparse
import random
from dataclasses import replace
from pathlib import Path

from pages import load
from server import Answer, Asked, Front, serve

SHARE = 0.15
"""Part of the pages that have a fault."""
WEIGHTS = {"unavailable": 4, "throttled": 0.3, "reset": 2, "cut": 2, "slow": 3}


def faults(seed: int) -> Front:
    def front(asked: Asked, answer: Answer) -> Answer:
        draw = random.Random(f"{seed} {asked.path}")
        if draw.random() >= SHARE or asked.attempt > draw.randint(1, 2):
            return answer
        match draw.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]:
            case "unavailable":
                return Answer(b"try again later", 503)
            case "throttled":
                return Answer(b"not so fast", 429, {"Retry-After": "1"})
            case "reset":
                return replace(answer, sent="reset")
            case "cut":
                return replace(answer, sent="cut")
            case _:
                return replace(answer, delay=draw.uniform(0.5, 2.0))

    return front


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--log", type=Path, required=True)
    parser.add_argument("--seed", type=int, required=True)
    given = parser.parse_args()
    serve(load(given.directory), faults(given.seed), given.log)
