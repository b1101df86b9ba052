"""Timers, threads and tasks do the same on asyncio's loop and on Twisted's."""

from __future__ import annotations

import subprocess
import sys

import pytest

SCRIPT = """
from scrapy_ha.loop import Ticker, in_thread, sleep, spawn

runs = []


async def work():
    runs.append("begin")
    await in_thread(lambda: None)
    await sleep(0.05)
    runs.append("end")


async def main():
    ticker = Ticker(0.01, work)
    ticker.start()
    while len(runs) < 5:
        await sleep(0.005)
    await ticker.stop()  # in the midst of the third run
    await sleep(0.1)
    await ticker.stop()
    print(*runs)
"""

ASYNCIO = """
import asyncio
asyncio.run(main())
"""

TWISTED = """
from twisted.internet import selectreactor
selectreactor.install()
from twisted.internet import reactor
reactor.callWhenRunning(lambda: spawn(main()).addBoth(lambda result: (print(result or ""), reactor.stop())))
reactor.run()
"""


@pytest.mark.parametrize("loop", [TWISTED, ASYNCIO], ids=["twisted", "asyncio"])
def test_a_ticker_is_stopped_in_the_midst_of_a_run(loop: str) -> None:
    """That run goes on to its end, which ``stop`` waits for; no other follows."""
    if loop is ASYNCIO:
        pytest.importorskip("scrapy.utils.asyncio")
    ended = subprocess.run([sys.executable, "-c", SCRIPT + loop], capture_output=True, text=True, timeout=60)
    assert ended.stdout.split() == ["begin", "end"] * 3, ended.stderr
