"""Answers 200 to everything at one port of several loopback addresses, given as arguments."""

from __future__ import annotations

import asyncio
import sys


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"\r\n\r\n")
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok")
    await writer.drain()
    writer.close()


async def serve(port: int, hosts: list[str]) -> None:
    for host in hosts:
        await asyncio.start_server(answer, host, port)
    await asyncio.Event().wait()


asyncio.run(serve(int(sys.argv[1]), sys.argv[2:]))
