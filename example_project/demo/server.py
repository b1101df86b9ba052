"""A small HTTP server in a process of its own, which keeps a log of every request.

The server knows what was really asked and really sent, whatever the crawler says: its log is
the oracle of the demo and of the functional tests. A script defines a site and calls
:func:`serve`; :class:`Site` starts such a script and reads its log.
"""

from __future__ import annotations

import asyncio
import http
import socket
import struct
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple, TextIO
from urllib.parse import parse_qsl, urlencode, urlsplit


@dataclass(frozen=True)
class Asked:
    """One request, as it came in."""

    method: str
    host: str
    """Without the port."""
    path: str
    query: str
    headers: Mapping[str, str]
    """By name in lower case."""
    body: bytes
    attempt: int
    """How many times this page was asked for, this time included."""


@dataclass(frozen=True)
class Answer:
    body: bytes = b""
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    delay: float = 0.0
    """Seconds before anything is sent."""
    sent: Literal["whole", "cut", "reset"] = "whole"
    """``cut``: half of the body, then the end of the connection; ``reset``: nothing but a TCP reset."""


Pages = Callable[[Asked], "Answer | bytes | None"] | Mapping[str, bytes]
"""What the site answers, by path or by request; nothing means 404."""

Front = Callable[[Asked, Answer], Answer]
"""Stands before the site and may spoil its answers."""


class Event(NamedTuple):
    """A line of the log."""

    time: float
    """Epoch seconds."""
    what: str
    """``asked``; or how that ended: the status, ``cut``, ``reset``, or ``gone`` when the client had left."""
    attempt: int
    page: str
    """Host, path and sorted query: the same for every spelling of the URL."""


def serve(
    pages: Pages,
    front: Front | None = None,
    log: Path | None = None,
    delay: float = 0.0,
    hosts: Sequence[str] = ("127.0.0.1",),
) -> None:
    """Serve *pages* until standard input ends, so that the server never outlives who started it.

    The first line on standard output is the port, which is the same on all *hosts*.

    Args:
        delay: Seconds before each answer, in addition to its own.
    """
    with open(log, "a", buffering=1, encoding="utf-8") if log else nullcontext() as file:
        asyncio.run(_Server(pages, front, file, delay).run(hosts))


class _Server:
    def __init__(self, pages: Pages, front: Front | None, log: TextIO | None, delay: float) -> None:
        self.pages = pages
        self.front = front
        self.log = log
        self.delay = delay
        self.attempts: Counter[str] = Counter()

    async def run(self, hosts: Sequence[str]) -> None:
        sockets = _listen(hosts)
        servers = [await asyncio.start_server(self.talk, sock=sock) for sock in sockets]
        print(sockets[0].getsockname()[1], flush=True)
        await asyncio.to_thread(sys.stdin.buffer.read)
        for server in servers:
            server.close()

    async def talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the requests of one connection."""
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            while await self.exchange(reader, writer):
                pass
        writer.close()

    async def exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Answer one request; whether the connection can go on."""
        first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").splitlines()
        method, target, _ = first.split(" ")
        fields = (line.partition(":") for line in lines)
        headers = {name.lower(): value.strip() for name, _, value in fields}
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        url = urlsplit(target)
        host = headers.get("host", "").partition(":")[0]
        page = _page(host, url.path, url.query)
        self.attempts[page] += 1
        asked = Asked(method, host, url.path, url.query, headers, body, self.attempts[page])
        self.note("asked", asked, page)

        answer = self.answer(asked)
        if wait := answer.delay + self.delay:
            await asyncio.sleep(wait)
        if reader.at_eof() or writer.is_closing():
            self.note("gone", asked, page)
            return False
        if answer.sent == "reset":
            # With a linger time of 0 the kernel sends RST instead of FIN.
            linger = struct.pack("ii", 1, 0)
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            writer.transport.abort()
            self.note("reset", asked, page)
            return False
        content = b"" if method == "HEAD" else answer.body
        writer.write(_head(answer) + (content[: len(content) // 2] if answer.sent == "cut" else content))
        try:
            await writer.drain()
        except ConnectionError:
            self.note("gone", asked, page)
            raise
        self.note("cut" if answer.sent == "cut" else str(answer.status), asked, page)
        return answer.sent == "whole"

    def answer(self, asked: Asked) -> Answer:
        found = self.pages(asked) if callable(self.pages) else self.pages.get(asked.path)
        if found is None:
            found = Answer(b"not found", 404)
        elif isinstance(found, bytes):
            found = Answer(found)
        return self.front(asked, found) if self.front else found

    def note(self, what: str, asked: Asked, page: str) -> None:
        if self.log:
            self.log.write(f"{time.time():.6f}\t{what}\t{asked.attempt}\t{page}\n")


def _listen(hosts: Sequence[str]) -> list[socket.socket]:
    """One listening socket per address, all on one free port."""
    first = socket.create_server((hosts[0], 0), backlog=512)
    port = first.getsockname()[1]
    return [first, *(socket.create_server((host, port), backlog=512) for host in hosts[1:])]


def _page(host: str, path: str, query: str) -> str:
    parameters = urlencode(sorted(parse_qsl(query, keep_blank_values=True)))
    return f"{host}{path}?{parameters}" if parameters else host + path


def _head(answer: Answer) -> bytes:
    headers = {
        "Content-Type": "text/html; charset=utf-8",
        "Content-Length": str(len(answer.body)),
        **answer.headers,
    }
    if answer.sent != "whole":
        headers["Connection"] = "close"
    lines = [f"{name}: {value}\r\n" for name, value in headers.items()]
    status = http.HTTPStatus(answer.status)
    return f"HTTP/1.1 {status.value} {status.phrase}\r\n{''.join(lines)}\r\n".encode("latin-1")


class Site:
    """A running server process, and what its log says."""

    def __init__(self, process: subprocess.Popen[bytes], port: int, log: Path) -> None:
        self.process = process
        self.port = port
        self._log = log
        self._read = 0
        self._events: list[Event] = []

    @property
    def url(self) -> str:
        """The site's root, without a slash at the end."""
        return f"http://127.0.0.1:{self.port}"

    def events(self) -> list[Event]:
        """The log so far."""
        with open(self._log, "rb") as file:
            file.seek(self._read)
            new = file.read()
        whole = new[: new.rfind(b"\n") + 1]
        self._read += len(whole)
        for line in whole.decode().splitlines():
            when, what, attempt, page = line.split("\t")
            self._events.append(Event(float(when), what, int(attempt), page))
        return self._events

    def served(self) -> Counter[str]:
        """How many times each page was sent as a whole with status 200, by its path and query."""
        return Counter("/" + event.page.partition("/")[2] for event in self.events() if event.what == "200")


@contextmanager
def running(script: Path, *arguments: str, log: Path) -> Iterator[Site]:
    """Run *script*, which calls :func:`serve`, in a process of its own.

    Raises:
        RuntimeError: It did not start; its own words are on standard error.
    """
    process = subprocess.Popen(
        [sys.executable, str(script), *arguments, "--log", str(log)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,  # Ctrl-C is for the one who started it
    )
    try:
        assert process.stdout is not None
        port = process.stdout.readline()
        if not port:
            raise RuntimeError(f"{script.name} did not start: exit status {process.wait()}")
        yield Site(process, int(port), log)
    finally:
        process.kill()
        process.communicate()
