"""When an acknowledgement is written, under each fsync policy."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from scrapy import Request

from scrapy_ha.run import Run
from scrapy_ha.scheduler import commit
from scrapy_ha.scheduler.commit import Commit, Commits
from scrapy_ha.typing import Lease, Settlement


class Recorder:
    """A frontier and a Durable that note what is asked of them, in order."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.fails_at = ""

    def note(self, event: str) -> None:
        self.events.append(event)
        if event == self.fails_at:
            raise OSError(event)

    # Durable

    def settle_page(self, page: Request) -> None:
        self.note(f"write {page.url[-1]}")

    # Frontier

    async def settle(self, settlements: Any, *, seen: Any, marks: Any, seeded: bool) -> list[bool]:
        self.note("ack " + "".join(str(settlement.lease.id) for settlement in settlements))
        return [True] * len(settlements)

    async def sync(self) -> None:
        self.note("sync")


class Feed:
    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder

    def settle(self, page: Request) -> None:
        self.recorder.settle_page(page)

    def marks(self) -> dict[str, bytes]:
        return {}

    def fsync(self) -> None:
        self.recorder.note("fsync")


def page(number: int) -> Commit:
    lease = Lease(number, b"", "slot", 0, 1, number)
    return Commit([Request(f"http://a.test/{number}")], Settlement(lease))


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


@pytest.fixture
def make(recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(commit, "spawn", asyncio.ensure_future)
    monkeypatch.setattr(commit, "in_thread", asyncio.to_thread)
    failures: list[Exception] = []

    def build(policy: str) -> tuple[Commits, list[Exception]]:
        run = Run()
        run.durables.append(Feed(recorder))
        frontier: Any = recorder
        return Commits(frontier, run, policy, 1.0, failures.append), failures

    return build


@pytest.mark.parametrize("policy", ["interval", "never"])
def test_written_at_once_after_what_the_page_gave(recorder: Recorder, make: Any, policy: str) -> None:
    """It survives a killed process as soon as the page has ended (I3)."""
    commits, _ = make(policy)
    commits.commit(page(1))
    commits.commit(page(2))
    assert recorder.events == ["write 1", "ack 1", "write 2", "ack 2"]


def test_always_waits_for_the_device_and_shares_the_wait(recorder: Recorder, make: Any) -> None:
    """What a page gave is fsynced before its ack, then the ack; pages that end meanwhile share a round."""

    async def crawl() -> None:
        commits, _ = make("always")
        for number in (1, 2, 3):
            commits.commit(page(number))
            await asyncio.sleep(0)
        await commits._round

    asyncio.run(crawl())
    assert recorder.events == [
        *("write 1", "fsync", "ack 1", "sync"),
        *("write 2", "write 3", "fsync", "ack 23", "sync"),
    ]


@pytest.mark.parametrize("policy", ["always", "interval"])
@pytest.mark.parametrize("fails_at", ["write 2", "ack 2", "fsync"])
def test_after_a_failure_nothing_is_acknowledged(
    recorder: Recorder, make: Any, policy: str, fails_at: str
) -> None:
    """A later mark would cover what the failed page gave in part."""
    if policy == "interval" and fails_at == "fsync":
        fails_at = "write 1"
    recorder.fails_at = fails_at

    async def crawl() -> list[Exception]:
        commits, failures = make(policy)
        for number in (1, 2, 3):
            commits.commit(page(number))
            if commits._round is not None:
                await commits._round
        return failures

    assert len(asyncio.run(crawl())) == 1
    acknowledged = [event for event in recorder.events if event.startswith("ack") and event != fails_at]
    assert acknowledged == (["ack 1"] if "2" in fails_at else [])
