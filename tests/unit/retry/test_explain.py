"""``scrapy ha explain``: the decision table as configured, and what one failure would lead to."""

from __future__ import annotations

import argparse
from typing import Any

import pytest
from scrapy.settings import Settings

from scrapy_ha.commands._sub import UsageError
from scrapy_ha.commands.explain import ExplainCommand
from scrapy_ha.commands.ha import SUBCOMMANDS
from scrapy_ha.errors import SettingError
from scrapy_ha.retry.classify import FailureClass


def explain(capsys: pytest.CaptureFixture[str], *arguments: str, **settings: Any) -> list[str]:
    command, parser = ExplainCommand(), argparse.ArgumentParser()
    command.configure(parser)
    assert command.run(Settings(settings), parser.parse_args(arguments)) == 0
    return capsys.readouterr().out.splitlines()


def row(lines: list[str], cls: str) -> str:
    (found,) = (" ".join(line.split()) for line in lines if line.startswith(f"{cls} "))
    return found


def test_it_is_a_sub_command() -> None:
    """Of ``scrapy ha``."""
    assert SUBCOMMANDS["explain"][0] == f"{ExplainCommand.__module__}.ExplainCommand"


def test_table_of_the_defaults(capsys: pytest.CaptureFixture[str]) -> None:
    """Every class: what it is, how often, after which delays, and what says so."""
    lines = explain(capsys)
    assert all(row(lines, cls.value) for cls in FailureClass)
    assert row(lines, "dns") == "dns the name did not resolve 2 (RETRY_TIMES) 0.05, 15-30 default"
    assert (
        row(lines, "server")
        == "server 408, 500, 502, 503, 504, 522, 524 2 (RETRY_TIMES) 0.1-1, 0.1-2 default"
    )
    assert "429, 503 with Retry-After any number within 3600 s" in row(lines, "throttled")
    assert row(lines, "tls").endswith("never - default")


def test_table_as_configured(capsys: pytest.CaptureFixture[str]) -> None:
    """What is set shows, with the setting's name; so does what the project's own list names."""
    policies = {"server": {"base": 8, "jitter": "none", "retries": 9}, "auth": {"retries": 1}, "ban": "never"}
    lines = explain(
        capsys,
        HA_RETRY_POLICIES=policies,
        RETRY_HTTP_CODES=[404, 503],
        RETRY_TIMES=1,
        HA_RETRY_CLASSIFY="operator.eq",
    )
    assert row(lines, "server") == "server 503 9 8, 16, 32, 60, … HA_RETRY_POLICIES"
    assert row(lines, "auth") == "auth 401, 403, 407 1 0.1-1 HA_RETRY_POLICIES"
    assert row(lines, "client") == "client 404 1 (RETRY_TIMES) 0.1-1 default"
    assert row(lines, "ban") == "ban what HA_RETRY_CLASSIFY names so never - HA_RETRY_POLICIES"
    assert any(line.startswith("HA_RETRY_CLASSIFY is asked first") for line in lines)


@pytest.mark.parametrize(
    ("arguments", "outcome"),
    [
        (["503"], "503 Service Unavailable: class server; retried. Retries: 2 (RETRY_TIMES)"),
        (["503"], "503 with Retry-After: 120: class throttled; retried."),
        (["404"], "404 Not Found: class client; not retried and not kept, the spider gets the response."),
        (["200"], "200 OK; not retried"),
        (["799"], "799: class server; not retried"),
        (["503", "--method", "post"], "class server; given up at once, and kept as dead: POST may have been"),
        (["twisted.internet.error.ConnectionLost"], "ConnectionLost: class connection; retried."),
        (
            ["UnicodeDecodeError"],
            "builtins.UnicodeDecodeError: class decode; not retried and not kept, the errb",
        ),
        (["ssl.SSLError"], "ssl.SSLError: class tls; given up at once, and kept as dead: never retried."),
    ],
)
def test_one_failure(capsys: pytest.CaptureFixture[str], arguments: list[str], outcome: str) -> None:
    """A status or an exception, by its path or built in; also one that cannot be made without arguments."""
    assert [line for line in explain(capsys, *arguments) if outcome in line]


@pytest.mark.parametrize("failure", ["12", "5000000", "nothing", "no.such.Error", "math.pi", "int"])
def test_what_is_neither(capsys: pytest.CaptureFixture[str], failure: str) -> None:
    """One line names it."""
    with pytest.raises(UsageError, match=failure):
        explain(capsys, failure)


def test_what_the_crawl_would_refuse(capsys: pytest.CaptureFixture[str]) -> None:
    """Is refused here, in the same words."""
    with pytest.raises(SettingError, match="servr"):
        explain(capsys, HA_RETRY_POLICIES={"servr": "never"})
    with pytest.raises(UsageError, match="no spider 'nobody'"):
        explain(capsys, "--spider", "nobody")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("HA_BREAKER_RATE", 0),
        ("HA_BREAKER_FORCE", {"host": "ajar"}),
        ("RETRY_TIMES", "many"),
        ("RETRY_HTTP_CODES", "abc"),
        ("RETRY_EXCEPTIONS", ["no.such"]),
    ],
)
def test_any_setting_that_the_crawl_would_refuse(
    capsys: pytest.CaptureFixture[str], name: str, value: Any
) -> None:
    """Not only those that are shown; Scrapy's own too, in words instead of a traceback."""
    with pytest.raises(SettingError, match=name):
        explain(capsys, **{name: value})


def test_off(capsys: pytest.CaptureFixture[str]) -> None:
    """RETRY_ENABLED, in Scrapy's words."""
    assert explain(capsys, "503", RETRY_ENABLED=False) == ["RETRY_ENABLED is False: nothing is retried."]
