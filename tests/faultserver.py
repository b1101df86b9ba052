"""A server on loopback that misbehaves on purpose, with raw sockets in threads.

Every fault has a port of its own, so it can set in before a request is read. There is also a
site whose pages answer from a list of replies, and which notes when each was asked for.
"""

from __future__ import annotations

import socket
import socketserver
import struct
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from typing_extensions import Self

PATIENCE = 20.0
"""Seconds after which a connection that hangs on purpose is given up."""


class FaultServer:
    """Use as a context manager.

    Attributes:
        hits: For each URL of :meth:`site`, the times (``time.monotonic``) at which it was asked for.
    """

    def __init__(self) -> None:
        self.hits: dict[str, list[float]] = defaultdict(list)
        self._servers: list[socketserver.ThreadingTCPServer] = []
        self._ports: dict[str, int] = {}
        self._stopping = threading.Event()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._stopping.set()
        for server in self._servers:
            server.shutdown()
            server.server_close()

    def url(self, fault: str, path: str = "/") -> str:
        """A URL that meets *fault*, a key of :data:`FAULTS` or one of :data:`ADDRESSES`."""
        if fault in ADDRESSES:
            return ADDRESSES[fault](path)
        if fault not in self._ports:
            self._ports[fault] = self._listen(FAULTS[fault])
        scheme = "https" if fault.startswith("tls-") else "http"
        return f"{scheme}://127.0.0.1:{self._ports[fault]}{path}"

    def site(self, pages: Mapping[str, Sequence[bytes]]) -> str:
        """Serve *pages*: path to whole replies, one for each time, the last of them for ever.

        Returns:
            The URL that the paths are appended to.
        """
        asked: dict[str, int] = defaultdict(int)
        lock = threading.Lock()

        def answer(connection: socket.socket, stopping: threading.Event) -> None:
            path = _read_request(connection).split(b" ")[1].decode("latin-1")
            with lock:
                self.hits[base + path].append(time.monotonic())
                n = asked[path]
                asked[path] += 1
            replies = pages.get(path) or [reply(404)]
            connection.sendall(replies[min(n, len(replies) - 1)])

        base = f"http://127.0.0.1:{self._listen(answer)}"
        return base

    def _listen(self, behave: Callable[[socket.socket, threading.Event], None]) -> int:
        stopping = self._stopping

        class Handler(socketserver.BaseRequestHandler):
            def handle(self) -> None:
                self.request.settimeout(PATIENCE)
                with suppress(OSError):
                    behave(self.request, stopping)

        class Server(socketserver.ThreadingTCPServer):
            allow_reuse_address = True
            daemon_threads = True
            block_on_close = False
            request_queue_size = 128

            def shutdown_request(self, request: Any) -> None:
                self.close_request(request)  # without shutdown(): it would send FIN before RST

        server = Server(("127.0.0.1", 0), Handler)
        self._servers.append(server)
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        return int(server.server_address[1])


def reply(status: int = 200, body: bytes = b"", **headers: str) -> bytes:
    """A whole reply; ``_`` in a header's name stands for ``-``."""
    lines = [f"HTTP/1.1 {status} Status", f"Content-Length: {len(body)}", "Connection: close"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + body


def _read_request(connection: socket.socket) -> bytes:
    """Read a whole request without a body."""
    received = b""
    while b"\r\n\r\n" not in received:
        chunk = connection.recv(65536)
        if not chunk:
            raise ConnectionError("the client left")
        received += chunk
    return received


def _reset(connection: socket.socket) -> None:
    """Have the connection end with RST when it is closed."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def _slam(connection: socket.socket, stopping: threading.Event) -> None:
    """Take the request, close without a word."""
    connection.recv(65536)


def _rst(connection: socket.socket, stopping: threading.Event) -> None:
    """Take the request, reset the connection."""
    connection.recv(65536)
    _reset(connection)


def _garbage(connection: socket.socket, stopping: threading.Event) -> None:
    """Answer with what is no HTTP."""
    _read_request(connection)
    connection.sendall(b"\x00\x01\x02 this is no HTTP \xff\xfe\r\n\r\n" * 8)


def _hang(connection: socket.socket, stopping: threading.Event) -> None:
    """Take the request and say nothing."""
    connection.recv(65536)
    stopping.wait(PATIENCE)


def _stall(connection: socket.socket, stopping: threading.Event) -> None:
    """Send the headers and a part of the body, then nothing."""
    _read_request(connection)
    connection.sendall(reply(body=b"x" * 1000)[:-900])
    stopping.wait(PATIENCE)


def _truncated(connection: socket.socket, stopping: threading.Event) -> None:
    """Close in the middle of a body of known length."""
    _read_request(connection)
    connection.sendall(reply(body=b"x" * 1000)[:-900])


def _truncated_chunks(connection: socket.socket, stopping: threading.Event) -> None:
    """Close before the last chunk."""
    _read_request(connection)
    connection.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n")


def _truncated_rst(connection: socket.socket, stopping: threading.Event) -> None:
    """Reset in the middle of a body."""
    _truncated(connection, stopping)
    stopping.wait(0.2)  # RST would throw away what the client has not read
    _reset(connection)


def _bad_gzip(connection: socket.socket, stopping: threading.Event) -> None:
    """Say gzip and send something else."""
    _read_request(connection)
    connection.sendall(reply(body=b"this was never compressed", Content_Encoding="gzip"))


def _plain(connection: socket.socket, stopping: threading.Event) -> None:
    """Answer in plain HTTP, whatever comes; to a TLS client that is garbage."""
    connection.recv(65536)
    connection.sendall(reply(400, b"plain HTTP here"))


def _no_tunnel(connection: socket.socket, stopping: threading.Event) -> None:
    """Be a proxy that opens no tunnel."""
    _read_request(connection)
    connection.sendall(reply(503))


FAULTS: Mapping[str, Callable[[socket.socket, threading.Event], None]] = {
    "slam": _slam,
    "rst": _rst,
    "garbage": _garbage,
    "hang": _hang,
    "stall": _stall,
    "truncated": _truncated,
    "truncated-chunks": _truncated_chunks,
    "truncated-rst": _truncated_rst,
    "bad-gzip": _bad_gzip,
    "no-tunnel": _no_tunnel,
    "tls-to-plain": _plain,
    "tls-slam": _slam,
    "tls-rst": _rst,
    "tls-hang": _hang,
}


def _closed_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


ADDRESSES: Mapping[str, Callable[[str], str]] = {
    "refused": lambda path: f"http://127.0.0.1:{_closed_port()}{path}",
    "dns": lambda path: f"http://no-such-name.invalid{path}",
    "scheme": lambda path: f"nosuch://127.0.0.1{path}",
}
"""Faults that need no server."""
