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


class RedisServer:
    """A server on a free port of loopback; with *keep* it has after a restart what it had before.

    Attributes:
        url: Where it listens, also after a restart.
    """

    def __init__(self, directory: Path, keep: bool = False) -> None:
        binary = shutil.which("redis-server")
        if binary is None:
            missing("the program redis-server")
        if find_spec("scrapy_redis") is None:
            missing("the package scrapy-redis")
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self._port = probe.getsockname()[1]
        self.url = f"redis://127.0.0.1:{self._port}/0"
        options = {
            "port": self._port,
            "bind": "127.0.0.1",
            "save": "",
            "appendonly": "yes" if keep else "no",
            "appendfsync": "no",
            "dir": directory,
        }
        arguments = [part for name, value in options.items() for part in (f"--{name}", str(value))]
        self._command = [str(binary), *arguments]
        self._log = directory / "redis.log"

    def start(self) -> None:
        with open(self._log, "ab") as log:
            self._process = subprocess.Popen(self._command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        _await_answer(self._process, self._port, self._log)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


@contextmanager
def running_redis(directory: Path) -> Iterator[str]:
    """Run a server that keeps nothing; its URL."""
    server = RedisServer(directory)
    server.start()
    try:
        yield server.url
    finally:
        server.kill()


def _await_answer(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline and process.poll() is None:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1) as connection:
            connection.sendall(b"PING\r\n")
            if connection.recv(64).startswith(b"+PONG"):
                return
        time.sleep(0.02)
    raise RuntimeError(f"redis-server did not start:\n{log.read_text('utf-8', 'replace')[-2000:]}")
