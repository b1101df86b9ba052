"""The add-on puts the parts in, and keeps what the project set itself."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
from scrapy import Spider
from scrapy.crawler import Crawler
from scrapy.downloadermiddlewares.httpcompression import HttpCompressionMiddleware
from scrapy.downloadermiddlewares.retry import RetryMiddleware
from scrapy.extensions.feedexport import FeedExporter
from scrapy.settings import Settings
from scrapy.utils.conf import build_component_list
from scrapy.utils.misc import load_object

from scrapy_ha import Addon
from scrapy_ha.addon import CHECKPOINT, DECOMPRESSION, FEEDS, PIPELINE, RETRY, SCHEDULER
from scrapy_ha.errors import SettingError

STOCK_RETRY = "scrapy.downloadermiddlewares.retry.RetryMiddleware"
STOCK_FEEDS = "scrapy.extensions.feedexport.FeedExporter"


class ProjectRetry(RetryMiddleware):
    """A project's own retry middleware."""


class ProjectFeeds(FeedExporter):
    """A project's own feed exporter."""


class SomeSpider(Spider):
    name = "some"


def apply(**project: Any) -> Settings:
    settings = Settings(project, priority="project")
    Addon.from_crawler(Crawler(SomeSpider)).update_settings(settings)
    return settings


def components(settings: Settings, name: str) -> list[type]:
    merged = getattr(settings, "get_component_priority_dict_with_base", settings.getwithbase)
    return [load_object(path) for path in build_component_list(merged(name))]


def test_all_parts_are_put_in() -> None:
    """Scheduler, retry in the place of Scrapy's, feeds in the place of Scrapy's."""
    settings = apply()
    assert settings["SCHEDULER"] == SCHEDULER
    middlewares = components(settings, "DOWNLOADER_MIDDLEWARES")
    assert RetryMiddleware not in middlewares
    assert load_object(RETRY) in middlewares
    extensions = components(settings, "EXTENSIONS")
    assert FeedExporter not in extensions
    assert load_object(FEEDS) in extensions


def test_retry_takes_the_place_of_the_stock_one() -> None:
    """With the one that decompresses; the order is as before."""
    places = {RetryMiddleware: load_object(RETRY), HttpCompressionMiddleware: load_object(DECOMPRESSION)}
    before = components(Settings(), "DOWNLOADER_MIDDLEWARES")
    after = components(apply(), "DOWNLOADER_MIDDLEWARES")
    assert [places.get(cls, cls) for cls in before] == after


@pytest.mark.parametrize("value", [False, "False", "0"])
@pytest.mark.parametrize(
    ("switch", "setting", "path"),
    [
        ("HA_RETRY_ENABLED", "DOWNLOADER_MIDDLEWARES", RETRY),
        ("HA_FEEDS_ENABLED", "EXTENSIONS", FEEDS),
        ("HA_CHECKPOINT_ENABLED", "EXTENSIONS", CHECKPOINT),
    ],
)
def test_each_part_has_a_switch(switch: str, setting: str, path: str, value: Any) -> None:
    """A part that is off leaves Scrapy's own where it was, also when the switch is text."""
    settings = apply(**{switch: value})
    assert load_object(path) not in components(settings, setting)
    others = {"HA_FEEDS_ENABLED": False, "HA_CHECKPOINT_ENABLED": False} if setting == "EXTENSIONS" else {}
    settings = apply(**{**others, switch: value})
    assert components(settings, setting) == components(Settings(), setting)


def test_scheduler_switch() -> None:
    assert apply(HA_SCHEDULER_ENABLED="no")["SCHEDULER"] == Settings()["SCHEDULER"]


def test_scheduler_of_the_project_stays() -> None:
    chosen = "scrapy.core.scheduler.Scheduler"
    assert apply(SCHEDULER=chosen)["SCHEDULER"] == chosen


@pytest.mark.parametrize("stock", [STOCK_RETRY, RetryMiddleware])
def test_stock_retry_that_the_project_moved_is_replaced_there(stock: Any) -> None:
    settings = apply(DOWNLOADER_MIDDLEWARES={stock: 543})
    assert settings.getdict("DOWNLOADER_MIDDLEWARES")[load_object(RETRY)] == 543
    assert RetryMiddleware not in components(settings, "DOWNLOADER_MIDDLEWARES")


def test_own_retry_of_the_project_stays_alone() -> None:
    """Two retry middlewares would retry twice."""
    settings = apply(DOWNLOADER_MIDDLEWARES={ProjectRetry: 550, STOCK_RETRY: None})
    middlewares = components(settings, "DOWNLOADER_MIDDLEWARES")
    assert ProjectRetry in middlewares
    assert load_object(RETRY) not in middlewares


def test_own_feed_exporter_of_the_project_stays_alone() -> None:
    settings = apply(EXTENSIONS={ProjectFeeds: 0, STOCK_FEEDS: None})
    assert load_object(FEEDS) not in components(settings, "EXTENSIONS")


@pytest.mark.parametrize(
    ("setting", "path", "stock"),
    [("DOWNLOADER_MIDDLEWARES", RETRY, RetryMiddleware), ("EXTENSIONS", FEEDS, FeedExporter)],
)
def test_part_switched_off_by_hand_leaves_the_stock_one(setting: str, path: str, stock: type) -> None:
    settings = apply(**{setting: {path: None}})
    assert stock in components(settings, setting)
    assert load_object(path) not in components(settings, setting)


def test_components_enabled_by_hand_stay_where_they_are() -> None:
    settings = apply(
        DOWNLOADER_MIDDLEWARES={RETRY: 345},
        EXTENSIONS={FEEDS: 7},
        HA_SPOOL=True,
        ITEM_PIPELINES={PIPELINE: 1},
    )
    assert settings.getdict("DOWNLOADER_MIDDLEWARES")[RETRY] == 345
    assert components(settings, "DOWNLOADER_MIDDLEWARES").count(load_object(RETRY)) == 1
    assert settings.getdict("EXTENSIONS")[FEEDS] == 7
    assert components(settings, "ITEM_PIPELINES") == [load_object(PIPELINE)]


@pytest.mark.parametrize(
    ("project", "there"),
    [
        ({}, False),
        ({"HA_SPOOL": "true"}, True),
        ({"MONGO_URI": "mongodb://127.0.0.1"}, True),
        ({"HA_SPOOL": "0"}, False),
    ],
)
def test_pipeline_only_when_asked_for(project: dict[str, Any], there: bool) -> None:
    assert (load_object(PIPELINE) in components(apply(**project), "ITEM_PIPELINES")) is there


@pytest.mark.parametrize("program", ["/env/bin/scrapy", "/env/lib/scrapy/__main__.py"])
@pytest.mark.parametrize("command", ["shell", "fetch", "parse", "view", "check"])
def test_commands_that_are_no_crawl_leave_the_store_alone(
    monkeypatch: pytest.MonkeyPatch, program: str, command: str
) -> None:
    """A shell with a crawl's spider does not take up that crawl."""
    monkeypatch.setattr("sys.argv", [program, command, "--spider=some", "http://a.test/"])
    assert apply()["SCHEDULER"] == Settings()["SCHEDULER"]
    monkeypatch.setattr("sys.argv", [program, "crawl", "some"])
    assert apply()["SCHEDULER"] == SCHEDULER


def test_retries_switched_off_in_scrapy_stay_off() -> None:
    settings = apply(RETRY_ENABLED=False)
    assert components(settings, "DOWNLOADER_MIDDLEWARES") == components(Settings(), "DOWNLOADER_MIDDLEWARES")


def test_bad_value_fails_at_start() -> None:
    with pytest.raises(SettingError, match=r"HA_FSYNC = 'sometimes'.*always"):
        apply(HA_FSYNC="sometimes")


def test_one_line_says_what_is_on_and_where(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="scrapy_ha.addon"):
        apply(HA_DIR="some/where", HA_RETRY_ENABLED=False)
    (line,) = [record.getMessage() for record in caplog.records]
    assert line == (
        "scrapy_ha: scheduler on, duplicate filter on, retry off, feeds on, checkpoint on, "
        f"item pipeline off; requests are kept in LevelDB in {Path('some/where').absolute()}"
    )
