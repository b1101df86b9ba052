"""The add-on: one line in a project's settings puts every part in its place."""

from __future__ import annotations

import logging
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scrapy.downloadermiddlewares.httpcompression import HttpCompressionMiddleware
from scrapy.downloadermiddlewares.retry import RetryMiddleware
from scrapy.extensions.feedexport import FeedExporter
from scrapy.extensions.spiderstate import SpiderState
from scrapy.utils.misc import load_object

from scrapy_ha import settings as declared
from scrapy_ha.errors import HAError, StoreLocked
from scrapy_ha.run import Run, run_of

if TYPE_CHECKING:
    from scrapy.crawler import Crawler
    from scrapy.settings import BaseSettings
    from typing_extensions import Self

logger = logging.getLogger(__name__)

SCHEDULER = "scrapy_ha.scheduler.HAScheduler"
DUPEFILTER = "scrapy_ha.dupefilter.BloomDupeFilter"
RETRY = "scrapy_ha.retry.ClassifiedRetryMiddleware"
DECOMPRESSION = "scrapy_ha.retry.decompression.RetryingHttpCompressionMiddleware"
CHECKPOINT = "scrapy_ha.checkpoint.CheckpointExtension"
FEEDS = "scrapy_ha.feeds.HAFeedExporter"
PIPELINE = "scrapy_ha.pipelines.MongoPipeline"

PASSING_COMMANDS = {"bench", "check", "fetch", "parse", "shell", "view"}
"""Commands of Scrapy that fetch something in passing. They must not go on with the crawl of the
spider that they borrow, nor leave a store behind."""


class Addon:
    """``ADDONS = {"scrapy_ha.Addon": 500}``

    Everything is set at add-on priority: what the project sets itself stays, and components that
    it enabled by hand stay where it put them. Each part has a switch of its own.

    Raises:
        SettingError: An ``HA_`` setting has a value that is not allowed.
    """

    def __init__(self, spider_name: str, run: Run) -> None:
        self._spider_name = spider_name
        self._run = run

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        return cls(getattr(crawler.spidercls, "name", None) or crawler.spidercls.__name__, run_of(crawler))

    def update_settings(self, settings: BaseSettings) -> None:
        command = _command()
        if command in PASSING_COMMANDS:
            logger.info("scrapy_ha: off, as `scrapy %s` is no crawl to be kept", command)
            return
        declared.check(settings)
        self._run.settings_checked = True
        parts = [
            self._scheduler(settings),
            self._dupefilter(settings),
            self._retry(settings),
            self._feeds(settings),
            self._checkpoint(settings),
            self._pipeline(settings),
        ]
        store = ""
        if "scheduler on" in parts:
            directory = declared.directory(settings, self._spider_name)
            self._check_frontier(
                directory,
                declared.namespace(settings, self._spider_name),
                declared.read(settings, "HA_LOCK_WAIT"),
            )
            store = f"; requests are kept in LevelDB in {directory}"
        logger.info("scrapy_ha: %s%s", ", ".join(parts), store)

    def _scheduler(self, settings: BaseSettings) -> str:
        if not declared.read(settings, "HA_SCHEDULER_ENABLED"):
            return "scheduler off"
        if settings.getpriority("SCHEDULER"):
            kept = load_object(settings["SCHEDULER"])
            return (
                "scheduler on"
                if kept is load_object(SCHEDULER)
                else f"scheduler off (yours: {kept.__name__})"
            )
        shared = declared.read(settings, "HA_FRONTIER") == "redis"
        if not shared and (settings.get("REDIS_URL") or settings.get("REDIS_HOST")):
            logger.warning(
                "REDIS_URL or REDIS_HOST is set, but requests are kept in the embedded store, and each "
                'worker crawls for itself: HA_FRONTIER = "redis" makes them one crawl'
            )
        settings.set("SCHEDULER", SCHEDULER, "addon")
        return "scheduler on"

    def _check_frontier(self, directory: Path, crawl: str, wait: float) -> None:
        """Refuse a directory that is damaged, none of ours, or still in use after *wait* seconds.

        The scheduler does so as well, but only when the spider is open: then Scrapy before 2.19 exits
        with status 0, and its extensions complain of a spider that never opened.
        """
        try:
            from scrapy_ha.frontier._layout import KIND  # noqa: PLC0415 - needs plyvel
            from scrapy_ha.leveldb.directory import Directory  # noqa: PLC0415 - needs plyvel

            frontier = Directory(directory / "frontier", KIND, crawl)
            deadline = time.monotonic() + wait
            while True:
                try:
                    return frontier.check()
                except StoreLocked as locked:
                    if time.monotonic() >= deadline:
                        raise
                    logger.info(
                        "Waiting up to %g s more (HA_LOCK_WAIT): %s", deadline - time.monotonic(), locked
                    )
                time.sleep(min(1.0, max(deadline - time.monotonic(), 0.0)))  # nothing runs here yet
        except HAError as error:
            logger.error("%s", error)
            raise

    def _dupefilter(self, settings: BaseSettings) -> str:
        if not declared.read(settings, "HA_DUPEFILTER_ENABLED"):
            return "duplicate filter off"
        if settings.getpriority("DUPEFILTER_CLASS"):
            kept = load_object(settings["DUPEFILTER_CLASS"])
            if kept is not load_object(DUPEFILTER):
                return f"duplicate filter off (yours: {kept.__name__})"
        else:
            settings.set("DUPEFILTER_CLASS", DUPEFILTER, "addon")
        return "duplicate filter on"

    def _retry(self, settings: BaseSettings) -> str:
        if not declared.read(settings, "HA_RETRY_ENABLED") or not settings.getbool("RETRY_ENABLED"):
            return "retry off"
        taken = _take_place(settings, "DOWNLOADER_MIDDLEWARES", RetryMiddleware, RETRY, 550)
        if taken == "on":
            _take_place(settings, "DOWNLOADER_MIDDLEWARES", HttpCompressionMiddleware, DECOMPRESSION, 590)
        return f"retry {taken}"

    def _feeds(self, settings: BaseSettings) -> str:
        if not declared.read(settings, "HA_FEEDS_ENABLED"):
            return "feeds off"
        return "feeds " + _take_place(settings, "EXTENSIONS", FeedExporter, FEEDS, 0)

    def _checkpoint(self, settings: BaseSettings) -> str:
        if not declared.read(settings, "HA_CHECKPOINT_ENABLED"):
            return "checkpoint off"
        return "checkpoint " + _take_place(settings, "EXTENSIONS", SpiderState, CHECKPOINT, 0)

    def _pipeline(self, settings: BaseSettings) -> str:
        wanted = settings.get("MONGO_URI") or declared.read(settings, "HA_SPOOL")
        placed = {load_object(key): value for key, value in settings.getdict("ITEM_PIPELINES").items()}
        if load_object(PIPELINE) in placed:
            return "item pipeline " + ("off" if placed[load_object(PIPELINE)] is None else "on")
        if not wanted:
            return "item pipeline off"
        settings.setdefault_in_component_priority_dict("ITEM_PIPELINES", load_object(PIPELINE), 900)
        return "item pipeline on"


def _command() -> str | None:
    """The command of Scrapy's that this process runs; ``None`` when it runs none."""
    program = Path(sys.argv[0])
    if program.stem != "scrapy" and program.parts[-2:] != ("scrapy", "__main__.py"):
        return None
    return next((argument for argument in sys.argv[1:] if not argument.startswith("-")), None)


def _take_place(settings: BaseSettings, name: str, stock: type, path: str, order: int) -> str:
    """Put the component at *path* into the setting *name*, in place of Scrapy's *stock* one.

    Nothing is done where the project switched it off, or enabled a subclass of *stock* of its own.

    Returns:
        What to say of it: "on", or "off" with the reason.
    """
    own = load_object(path)
    placed = {load_object(key): value for key, value in settings.getdict(name).items()}
    for cls, value in placed.items():
        if isinstance(cls, type) and issubclass(cls, stock) and cls not in (stock, own) and value is not None:
            return f"off (yours: {cls.__name__})"
    if own in placed and placed[own] is None:
        return "off"
    if placed.get(stock) is not None:
        settings.replace_in_component_priority_dict(name, stock, own)
    else:
        settings.setdefault_in_component_priority_dict(name, own, order)
    # As it stands in the *_BASE setting: Scrapy 2.13 does not see that a class is the same.
    in_base: Any = f"{stock.__module__}.{stock.__qualname__}"
    settings.setdefault_in_component_priority_dict(name, in_base, None)
    return "on"
