"""A website on loopback, in a process of its own, that costs next to nothing to serve.

Every answer is built beforehand, and the server does no more than find its bytes: the crawler
is the bound. Page *n*, ``/p/<n>``, links to pages ``2n + 1`` and ``2n + 2``, so that all are
reached, and to others drawn at random: most links lead to pages that are known already.

Prints its port, and ends when its standard input does.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys

SENTENCE = "The crawl goes on from where it was, and no page of it is lost or read twice. "
HEADER = b"HTTP/1.1 200 OK\r\nContent-Type: text/html; charset=utf-8\r\nContent-Length: %d\r\n\r\n"
NOT_FOUND = b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"


def answers(pages: int, links: int, size: int) -> dict[bytes, bytes]:
    """Request target to whole response, for *pages* pages of *size* bytes with *links* links each."""
    draw = random.Random(pages * 1000 + links)
    paragraphs = (f"<p>{n}. {SENTENCE * 3}</p>\n" for n in range(size // 250 + 1))
    filler = "".join(paragraphs).encode()
    site = {}
    for n in range(pages):
        own = [child for child in (2 * n + 1, 2 * n + 2) if child < pages][:links]
        targets = own + draw.choices(range(pages), k=links - len(own))
        anchors = "\n".join(f'<a href="/p/{to}" class="link">Page {to}</a>' for to in targets)
        head = f"<!DOCTYPE html><html><head><title>Page {n}</title></head><body>\n{anchors}\n".encode()
        tail = b"</body></html>\n"
        body = head + filler[: max(0, size - len(head) - len(tail))] + tail
        site[f"/p/{n}".encode()] = HEADER % len(body) + body
    return site


class Server(asyncio.Protocol):
    """One connection, kept alive; answers requests without a body, in order."""

    transport: asyncio.Transport

    def __init__(self, site: dict[bytes, bytes]) -> None:
        self._site = site
        self._received = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        *requests, self._received = (self._received + data).split(b"\r\n\r\n")
        for request in requests:
            self.transport.write(self._site.get(request.split(b" ", 2)[1], NOT_FOUND))


async def serve(site: dict[bytes, bytes], hosts: int) -> None:
    """Serve at 127.0.0.1 and the addresses behind it, all at one port."""
    loop = asyncio.get_running_loop()
    port = 0
    for n in range(1, hosts + 1):
        server = await loop.create_server(lambda: Server(site), f"127.0.0.{n}", port, backlog=512)
        port = server.sockets[0].getsockname()[1]
    print(port, flush=True)
    await loop.run_in_executor(None, sys.stdin.read)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pages", type=int, default=2000)
    parser.add_argument("--links", type=int, default=100)
    parser.add_argument("--size", type=int, default=20_000, help="bytes a page")
    parser.add_argument("--hosts", type=int, default=1, help="addresses to serve at, from 127.0.0.1 on")
    given = parser.parse_args()
    asyncio.run(serve(answers(given.pages, given.links, given.size), given.hosts))
