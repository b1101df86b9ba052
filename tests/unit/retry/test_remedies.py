"""Remedies: one refresh for all that wait, and a failing one fails nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any

import pytest
from scrapy import Request, Spider
from scrapy.crawler import Crawler
from scrapy.http import Response
from scrapy.statscollectors import MemoryStatsCollector
from typing_extensions import Self

from scrapy_ha.errors import SettingError
from scrapy_ha.retry.remedies import Remedies
from scrapy_ha.testing import FakeClock

URL = "http://a.test/"


def on_a_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run the coroutine function *test*; Scrapy 2.13 knows asyncio only under a reactor."""

    @wraps(test)
    def run(**fixtures: Any) -> None:
        pytest.importorskip("scrapy.utils.asyncio")
        asyncio.run(test(**fixtures))

    return run


class Login:
    """Each refresh takes a round of the loop and gives the next token."""

    def __init__(self, failing: int = 0) -> None:
        self.refreshes = 0
        self.failing = failing

    async def refresh(self, request: Request, failure: Response | Exception) -> str:
        self.refreshes += 1
        await asyncio.sleep(0)
        if self.refreshes <= self.failing:
            raise ValueError("wrong password")
        return f"token {self.refreshes}"

    def apply(self, request: Request, value: Any) -> Request:
        changed = request.copy()
        changed.headers["Authorization"] = value
        return changed


class Bench:
    def __init__(self, remedy: Any, timeout: float = 60.0) -> None:
        self.crawler: Any = Crawler(Spider)
        self.crawler.stats = MemoryStatsCollector(self.crawler)
        self.clock = FakeClock()
        self.remedies = Remedies(self.crawler, {"auth": remedy}, timeout, self.clock)

    def cure(
        self, slot: str = "a.test", sent: float = 0.0, url: str = URL
    ) -> Coroutine[Any, Any, Request | None]:
        return self.remedies.cure("auth", Request(url), Response(url, status=401), slot, sent)

    def stat(self, name: str) -> int:
        return int(self.crawler.stats.get_value(name, 0))


def tokens(changed: list[Request | None]) -> list[str | None]:
    return [one and str(one.headers[b"Authorization"], "ascii") for one in changed]


@on_a_loop
async def test_one_refresh_serves_all_that_wait() -> None:
    login = Login()
    bench = Bench(login)
    changed = await asyncio.gather(*[bench.cure() for _ in range(50)])
    assert tokens(changed) == ["token 1"] * 50
    assert login.refreshes == 1
    assert bench.stat("ha/retry/remedied/auth") == 50


@on_a_loop
async def test_what_was_sent_before_the_refresh_uses_its_value() -> None:
    """A request that was on its way with the old credentials is no reason to get new ones again."""
    login = Login()
    bench = Bench(login)
    sent = bench.clock.time()
    bench.clock.advance(1)
    assert tokens([await bench.cure(sent=sent)]) == ["token 1"]
    assert tokens([await bench.cure(sent=sent)]) == ["token 1"]
    assert tokens([await bench.cure(sent=bench.clock.time() + 1)]) == ["token 2"]


@on_a_loop
async def test_every_slot_has_its_own() -> None:
    login = Login()
    bench = Bench(login)
    await asyncio.gather(bench.cure("a.test"), bench.cure("b.test"))
    assert login.refreshes == 2


@on_a_loop
async def test_a_failing_remedy_fails_for_all_that_wait_and_is_tried_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    login = Login(failing=1)
    bench = Bench(login)
    assert await asyncio.gather(*[bench.cure() for _ in range(3)]) == [None] * 3
    assert "wrong password" in caplog.text
    assert bench.stat("ha/retry/remedy_failed/auth") == 3
    assert tokens([await bench.cure()]) == ["token 2"]


@on_a_loop
async def test_a_remedy_that_hangs_is_ended(caplog: pytest.LogCaptureFixture) -> None:
    class Hanging(Login):
        async def refresh(self, request: Request, failure: Response | Exception) -> str:
            await asyncio.Event().wait()
            raise AssertionError

    bench = Bench(Hanging(), timeout=0.01)
    assert await asyncio.gather(bench.cure(), bench.cure()) == [None, None]
    assert "longer than 0.01 s" in caplog.text


@on_a_loop
async def test_a_function_is_called_for_each_request() -> None:
    async def other_proxy(request: Request, failure: Response | Exception) -> Request:
        return request.replace(meta={"proxy": "http://other.test"})

    changed = await Bench(other_proxy).cure()
    assert changed is not None
    assert changed.meta["proxy"] == "http://other.test"


@on_a_loop
async def test_what_returns_no_request_has_failed(caplog: pytest.LogCaptureFixture) -> None:
    async def forgetful(request: Request, failure: Response | Exception) -> None:
        return None

    assert await Bench(forgetful).cure() is None
    assert "NoneType" in caplog.text


class FromCrawler(Login):
    @classmethod
    def from_crawler(cls, crawler: Any) -> Self:
        made = cls()
        made.crawler = crawler  # type: ignore[attr-defined]
        return made


def test_a_class_is_built_like_any_component() -> None:
    bench = Bench(f"{__name__}.FromCrawler")
    assert "auth" in bench.remedies
    assert "dns" not in bench.remedies


@pytest.mark.parametrize("given", ["no.such.module", "os.path", 5, "nodot", "os.getcwd"])
def test_what_is_no_remedy_is_refused_in_one_line(given: Any) -> None:
    with pytest.raises(SettingError, match=r"HA_RETRY_REMEDIES\['auth'\]") as raised:
        Bench(given)
    assert "\n" not in str(raised.value)
