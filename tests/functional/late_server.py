"""A server that comes up late, or keeps its clients waiting until it is told what to do."""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok"
RESET = b""
"""In place of a reply: the connection is reset."""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def always_ok(path: str) -> bytes:
    return OK


@contextmanager
def coming_up(
    port: int, after: float, answer: Callable[[str], bytes] = always_ok, host: str = "127.0.0.1"
) -> Iterator[list[float]]:
    """A server on *port* that begins to listen after so many seconds; the times of its requests.

    Args:
        answer: Gives the whole reply to a path, or :data:`RESET`; it may block: one thread serves each.
    """
    times: list[float] = []
    stopped = threading.Event()

    def talk(connection: socket.socket) -> None:
        with connection:
            connection.settimeout(5)
            asked = connection.recv(65536)
            times.append(time.time())
            reply = answer(asked.split(b" ")[1].decode("latin-1")) if asked.count(b" ") > 1 else RESET
            if reply == RESET:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            else:
                connection.sendall(reply)

    def serve() -> None:
        if stopped.wait(after):
            return
        with socket.socket() as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((host, port))
            listener.listen(200)
            listener.settimeout(0.1)
            while not stopped.is_set():
                try:
                    connection, _ = listener.accept()
                except TimeoutError:
                    continue
                threading.Thread(target=talk, args=(connection,), daemon=True).start()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield times
    finally:
        stopped.set()
        thread.join()
