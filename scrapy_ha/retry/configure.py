"""From a project's settings to what decides over its failures."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random
from typing import TYPE_CHECKING, Any, TypeVar

from scrapy.utils.misc import load_object

from scrapy_ha import settings as declared
from scrapy_ha.errors import SettingError
from scrapy_ha.retry.decide import Decider, Lists
from scrapy_ha.retry.policies import Numbers, Policies

if TYPE_CHECKING:
    from scrapy.settings import BaseSettings

SPIDER_ATTRIBUTE = "ha_retry_policies"

T = TypeVar("T")

Classify = Callable[[Any, Any], "str | None"]


def decider_of(
    settings: BaseSettings,
    spider: Any = None,
    random: Random | None = None,
    count: Callable[[str], None] = lambda kind: None,
) -> Decider:
    """What decides in the crawl of *spider*, a spider or its class; ``None``: of any spider without policies.

    Raises:
        SettingError: A setting or the spider's attribute has a value that is not allowed.
    """
    own = getattr(spider, SPIDER_ATTRIBUTE, None) or {}
    if not isinstance(own, Mapping):
        raise SettingError(f"{SPIDER_ATTRIBUTE} of the spider must be a dict of failure class to policy")
    cap: float = declared.read(settings, "HA_RETRY_AFTER_CAP")
    policies = Policies(
        Numbers(
            retry_times=_scrapys(settings, "RETRY_TIMES", settings.getint),
            own_times=_is_own(settings, "RETRY_TIMES"),
            base=declared.read(settings, "HA_RETRY_BASE"),
            cap=declared.read(settings, "HA_RETRY_CAP"),
            floor=declared.read(settings, "HA_RETRY_FLOOR"),
            retry_after_cap=cap,
        ),
        [
            (declared.RETRY_POLICIES, declared.read(settings, declared.RETRY_POLICIES)),
            (f"spider's {SPIDER_ATTRIBUTE}", own),
        ],
        own_classes=declared.read(settings, "HA_RETRY_CLASSIFY") is not None,
    )
    lists = Lists(
        http_codes=_scrapys(
            settings, "RETRY_HTTP_CODES", lambda name: frozenset(map(int, settings.getlist(name)))
        ),
        exceptions=_scrapys(
            settings,
            "RETRY_EXCEPTIONS",
            lambda name: tuple(
                load_object(one) if isinstance(one, str) else one for one in settings.getlist(name)
            ),
        ),
        methods=declared.read(settings, "HA_RETRY_METHODS"),
        own_codes=_is_own(settings, "RETRY_HTTP_CODES"),
        own_exceptions=_is_own(settings, "RETRY_EXCEPTIONS"),
        retry_after_cap=cap,
        park=declared.read(settings, "HA_RETRY_AFTER_BEYOND") == "park",
    )
    return Decider(policies, lists, random, count)


def classify_of(settings: BaseSettings) -> Classify | None:
    """The user's function that names failure classes, for :func:`~scrapy_ha.retry.decide.reclassify`.

    Raises:
        SettingError: It cannot be loaded, or cannot be called.
    """
    given = declared.read(settings, "HA_RETRY_CLASSIFY")
    if given is None or callable(given):
        return given  # type: ignore[no-any-return]
    try:
        found = load_object(given.strip())
    except Exception as error:  # importing runs the user's code
        raise SettingError(f"HA_RETRY_CLASSIFY = {given!r} cannot be loaded: {error!r}") from error
    if not callable(found):
        raise SettingError(f"HA_RETRY_CLASSIFY = {given!r} is not allowed: it must be the path of a callable")
    return found  # type: ignore[no-any-return]


def _scrapys(settings: BaseSettings, name: str, read: Callable[[str], T]) -> T:
    """One of Scrapy's own settings. Raises ``SettingError`` for what is none."""
    try:
        return read(name)
    except (ValueError, TypeError, NameError, ImportError) as error:
        raise SettingError(f"{name} = {settings.get(name)!r} is not possible: {error}") from None


def _is_own(settings: BaseSettings, name: str) -> bool:
    """Whether the project itself set it, in any way; not Scrapy's default."""
    return (settings.getpriority(name) or 0) > 0
