"""Any sequence of calls, crashes included, over every frontier, against a model."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import pytest
from hypothesis import settings
from livecopy import copy_live

from scrapy_ha.frontier.leveldb import LevelDBFrontier
from scrapy_ha.frontier.memory import MemoryFrontier, MemoryStore
from scrapy_ha.loop import completed
from scrapy_ha.testing import FrontierMachine
from scrapy_ha.testing.machine import DEAD_LIMIT, DEAD_SECONDS

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from scrapy_ha.typing import Frontier

T = TypeVar("T")

pytestmark = pytest.mark.timeout(600)  # a failure is first made as short as it can be


class EmbeddedMachine(FrontierMachine):
    """Over a store whose calls never suspend."""

    def drive(self, work: Coroutine[Any, Any, T]) -> T:
        return completed(work)


class MemoryMachine(EmbeddedMachine):
    def __init__(self) -> None:
        super().__init__()
        self.store = MemoryStore()

    def make_frontier(self, worker: str, order: str, max_deliveries: int) -> Frontier:
        return MemoryFrontier(
            self.store,
            worker=worker,
            clock=self.clock,
            max_deliveries=max_deliveries,
            order=order,
            dead_limit=DEAD_LIMIT,
            dead_seconds=DEAD_SECONDS,
        )

    def crash(self, frontier: Frontier) -> None:
        """Nothing: an object that is not used any more has no farewell."""


class SharedMemoryMachine(MemoryMachine):
    shared = True


class LevelDBMachine(EmbeddedMachine):
    def __init__(self) -> None:
        super().__init__()
        self.directory = Path(tempfile.mkdtemp())
        self.crashes = 0

    @property
    def path(self) -> Path:
        return self.directory / str(self.crashes)

    def make_frontier(self, worker: str, order: str, max_deliveries: int) -> Frontier:
        return LevelDBFrontier(
            self.path,
            clock=self.clock,
            max_deliveries=max_deliveries,
            order=order,
            dead_limit=DEAD_LIMIT,
            dead_seconds=DEAD_SECONDS,
        )

    def crash(self, frontier: Frontier) -> None:
        """The next frontier finds a copy of the files as they were, before the old one could end."""
        old = self.path
        self.crashes += 1
        copy_live(old, self.path)
        completed(frontier.close())
        shutil.rmtree(old)

    def teardown(self) -> None:
        try:
            super().teardown()
        finally:
            shutil.rmtree(self.directory, ignore_errors=True)


TestMemoryMachine = MemoryMachine.TestCase
TestSharedMemoryMachine = SharedMemoryMachine.TestCase
TestLevelDBMachine = LevelDBMachine.TestCase
TestMemoryMachine.settings = TestSharedMemoryMachine.settings = settings.get_profile("contract")
TestLevelDBMachine.settings = settings.get_profile("contract-on-disk")
