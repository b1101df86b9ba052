"""A real Redis server for the tests, in a process of its own."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path

import pytest


def missing(what: str) -> None:
    """Skip the test, or fail it where everything has to be there."""
    reason = f"needs {what}"
    if os.environ.get("CI") == "true":
        pytest.fail(reason)
    pytest.skip(reason)


@contextmanager
def running_redis(directory: Path) -> Iterator[str]:
    """Run a server that keeps nothing, on a free port of loopback; its URL."""
    binary = shutil.which("redis-server")
    if binary is None:
        missing("the program redis-server")
    if find_spec("scrapy_redis") is None:
        missing("the package scrapy-redis")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    options = {"port": port, "bind": "127.0.0.1", "save": "", "appendonly": "no", "dir": directory}
    with open(directory / "redis.log", "wb") as log:
        process = subprocess.Popen(
            [str(binary), *(part for name, value in options.items() for part in (f"--{name}", str(value)))],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
    try:
        _await_answer(process, port, directory / "redis.log")
        yield f"redis://127.0.0.1:{port}/0"
    finally:
        process.kill()
        process.wait()


def _await_answer(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline and process.poll() is None:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1) as connection:
            connection.sendall(b"PING\r\n")
            if connection.recv(64).startswith(b"+PONG"):
                return
        time.sleep(0.02)
    raise RuntimeError(f"redis-server did not start:\n{log.read_text('utf-8', 'replace')[-2000:]}")
