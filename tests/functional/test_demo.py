"""``make demo`` holds what it promises, and says so when it does not."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from functional.site import ROOT

DEMO = ROOT / "example_project" / "demo" / "run.py"


def run(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the demo, with *directory* for its temporary files."""
    command = [sys.executable, str(DEMO), *arguments]
    environment = {**os.environ, "TMPDIR": str(directory)}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=170)


@pytest.mark.timeout(180)
def test_a_kill_on_the_way_costs_nothing(tmp_path: Path) -> None:
    """With other faults than those that the demo shows by default."""
    demo = run(tmp_path, "--kills", "1", "--seed", "2")
    assert demo.returncode == 0, demo.stdout + demo.stderr
    figures = {line[2:22].strip(): line[22:].split() for line in demo.stdout.splitlines() if line[:2] == "  "}
    assert int(figures["pages on the site"][0]) > 500
    assert figures["items stored"][0] == figures["pages fetched"][0] == figures["pages on the site"][0]
    assert figures["pages lost"] == ["0"]
    assert figures["kills"] == ["1"]
    assert list(tmp_path.iterdir()) == []


def test_an_unfinished_crawl_fails(tmp_path: Path) -> None:
    demo = run(tmp_path, "--timeout", "3")
    assert demo.returncode == 1
    assert "did not hold" in demo.stdout
    (logs,) = tmp_path.iterdir()
    assert f"Logs are in {logs}" in demo.stdout
