"""Reading and checking the ``HA_`` settings."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scrapy.settings import Settings

from scrapy_ha.errors import HAError, SettingError
from scrapy_ha.settings import SETTINGS, check, directory, namespace, read

NUMBERS = [name for name, setting in SETTINGS.items() if isinstance(setting.default, float)]
WHOLE = [name for name, setting in SETTINGS.items() if type(setting.default) is int]
SWITCHES = [name for name, setting in SETTINGS.items() if isinstance(setting.default, bool)]
CHOICES = [name for name, setting in SETTINGS.items() if setting.allowed.startswith("one of")]


@pytest.mark.parametrize("name", SETTINGS)
def test_default(name: str) -> None:
    """Without a value the declared default is read; None is no value, as elsewhere in Scrapy."""
    assert read(Settings(), name) == SETTINGS[name].default
    assert read(Settings({name: None}), name) == SETTINGS[name].default


@pytest.mark.parametrize("name", SWITCHES)
@pytest.mark.parametrize(
    ("given", "meant"),
    [(True, True), (1, True), ("1", True), ("True", True), ("true", True), ("yes", True), ("on", True)]
    + [(False, False), (0, False), ("0", False), ("False", False), ("no", False), ("off", False)]
    + [("", False)],
)
def test_switches_as_text(name: str, given: object, meant: bool) -> None:
    """``-s HA_SPOOL=false`` is not a true string."""
    assert read(Settings({name: given}), name) is meant


@given(name=st.sampled_from(NUMBERS), value=st.floats(0.001, 1e9))
def test_numbers_as_text(name: str, value: float) -> None:
    """The text form of a number means the number."""
    assume(SETTINGS[name].check(value))
    assert read(Settings({name: str(value)}), name) == read(Settings({name: value}), name) == value


@given(name=st.sampled_from(WHOLE), value=st.integers(1, 10**6))
def test_whole_numbers_as_text(name: str, value: int) -> None:
    """So does that of a whole number; a float without a fraction is one."""
    assume(SETTINGS[name].check(value))
    forms: list[object] = [value, str(value), f" {value} ", float(value)]
    parsed = [read(Settings({name: form}), name) for form in forms]
    assert parsed == [value] * 4
    assert {type(each) for each in parsed} == {int}


@pytest.mark.parametrize("name", CHOICES)
def test_choices_in_any_case(name: str) -> None:
    """A choice is read without regard to case and blanks around it."""
    default = SETTINGS[name].default
    assert read(Settings({name: f" {default.upper()} "}), name) == default


@pytest.mark.parametrize("text", ["", "None", "none", " "])
@pytest.mark.parametrize("name", [name for name, setting in SETTINGS.items() if setting.default is None])
def test_none_as_text(name: str, text: str) -> None:
    """What may be None may be so as text."""
    assert read(Settings({name: text}), name) is None


@pytest.mark.parametrize(
    ("value", "meant"),
    [("url", "url"), ("site, sku", ["site", "sku"]), (["site", "sku"], ["site", "sku"]), (("a",), ["a"])],
)
def test_item_key(value: object, meant: object) -> None:
    """One field or several, as a list or as text with commas."""
    assert read(Settings({"HA_ITEM_KEY": value}), "HA_ITEM_KEY") == meant


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *[(name, value) for name in SWITCHES for value in ("perhaps", "None", 2, 0.5, [], object)],
        *[
            (name, value)
            for name in NUMBERS
            for value in (-1, "-0.5", "nan", "inf", True, "1s", "None", 10**400)
        ],
        *[
            (name, value)
            for name in WHOLE
            for value in (-1, 0, "1.5", 1.5, True, "", "None", float("inf"), [])
            if value != 0 or "at least 0" not in SETTINGS[name].allowed
        ],
        *[(name, value) for name in CHOICES for value in ("nothing-like-it", "None", 3, b"auto", "")],
        ("HA_ITEM_KEY", []),
        ("HA_ITEM_KEY", "url,,sku"),
        ("HA_ITEM_KEY", ["url", ""]),
        ("HA_ITEM_KEY", 5),
        ("HA_NAMESPACE", "a/b"),
        ("HA_NAMESPACE", ".."),
        ("HA_NAMESPACE", 5),
        ("HA_DIR", 5),
        ("HA_RETRY_CONCURRENCY", 1.01),
        ("HA_RETRY_CONCURRENCY", 0),
        ("HA_BREAKER_RATE", 1.01),
        ("HA_BREAKER_WINDOW", 1001),
        ("HA_PACE_CUT", 1),
        ("HA_OUTAGE_SHARE", 0),
    ],
)
def test_bad_value(name: str, value: object) -> None:
    """It is refused in one line that names setting, value and what is allowed."""
    with pytest.raises(SettingError) as refused:
        read(Settings({name: value}), name)
    message = str(refused.value)
    assert message == f"{name} = {value!r} is not allowed: it must be {SETTINGS[name].allowed}"
    assert "\n" not in message
    assert isinstance(refused.value, HAError)
    assert isinstance(refused.value, ValueError)


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary() | st.just(10**400),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=5,
)


@given(name=st.sampled_from(sorted(SETTINGS)), value=ANYTHING)
def test_any_value_is_read_or_refused(name: str, value: Any) -> None:
    """No value ends in another error than the one that explains it, and reading is stable."""
    try:
        parsed = SETTINGS[name].parse(value)
    except SettingError as refused:
        assert name in str(refused)
    else:
        assert SETTINGS[name].parse(parsed) == parsed


def test_check_reads_everything() -> None:
    """One bad value anywhere fails the check."""
    check(Settings({"HA_RETRY_BASE": "2"}))
    with pytest.raises(SettingError, match="HA_RETRY_BASE = -2"):
        check(Settings({"HA_RETRY_BASE": -2}))


def test_misspelt_name(caplog: pytest.LogCaptureFixture) -> None:
    """It is reported with the nearest right name; the others pass in silence."""
    with caplog.at_level(logging.WARNING):
        check(Settings({"HA_FSYNK": "always", "HA_FSYNC": "never", "HASH": 1}))
    assert [record.getMessage() for record in caplog.records] == [
        "There is no setting HA_FSYNK in scrapy_ha; it has no effect. Did you mean HA_FSYNC?"
    ]


def test_unknown_name_like_no_other(caplog: pytest.LogCaptureFixture) -> None:
    """Without a near name there is no guess."""
    with caplog.at_level(logging.WARNING):
        check(Settings({"HA_XYZZY_QUUX_12345": 1}))
    assert [record.getMessage() for record in caplog.records] == [
        "There is no setting HA_XYZZY_QUUX_12345 in scrapy_ha; it has no effect."
    ]


def test_namespace() -> None:
    """The spider's name, unless the crawl has its own."""
    assert namespace(Settings(), "books") == "books"
    assert namespace(Settings({"HA_NAMESPACE": "books-2"}), "books") == "books-2"


def test_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``HA_DIR``, else ``JOBDIR``, else one of the crawl's own; looking does not make it."""
    monkeypatch.chdir(tmp_path)
    both = {"HA_DIR": str(tmp_path / "ha"), "JOBDIR": str(tmp_path / "job")}
    assert directory(Settings(both), "books") == tmp_path / "ha"
    assert directory(Settings({"JOBDIR": both["JOBDIR"]}), "books") == tmp_path / "job"
    default = directory(Settings(), "books")
    assert default.parts[-3:] == (".scrapy", "ha", "books")
    assert directory(Settings({"HA_NAMESPACE": "other"}), "books") == default.with_name("other")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["a/b", "..\\x", "../../etc"])
def test_directory_of_a_spider_with_an_odd_name(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A spider's name cannot lead out of the directory."""
    monkeypatch.chdir(tmp_path)
    assert directory(Settings(), name).parent == directory(Settings(), "books").parent
