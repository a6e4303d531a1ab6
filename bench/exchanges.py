"""`python -m bench.exchanges`: processor time of a webhook exchange, ours against httpcore2's.

The receiver runs in a process of its own and answers at once. Both clients connect through the same vetted
connect, on the same event loop, in turns, so that other load weighs on both alike.
"""

import argparse
import asyncio
import multiprocessing
import socket
import statistics
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from datetime import timedelta
from multiprocessing.connection import Connection
from typing import Final

import httpcore2
import uvloop
from httpcore2 import AsyncHTTPConnection, AsyncNetworkBackend, AsyncNetworkStream, Origin

from jobs.webhooks import ParsedUrl, check_url
from worker.webhooks.connect import connect, resolve_host
from worker.webhooks.exchange import exchange
from worker.webhooks.protocol import MAX_RESPONSE_BYTES

_HOST: Final = "127.0.0.1"
_BODY: Final = b"x" * 600
_HEADERS: Final = {
    "Content-Type": "application/json",
    "webhook-id": "evt_1",
    "webhook-timestamp": "1700000000",
    "webhook-signature": "v1,cGVlcg==",
}
_DEADLINE: Final = timedelta(seconds=15)
_CONCURRENCY: Final = 32
_ANSWER: Final = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok"

Exchange = Callable[[], Awaitable[None]]


class _Counted(AsyncNetworkStream):
    """A stream of httpcore2's on a connected socket that counts what arrives."""

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        self.num_received = 0

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:  # noqa: ARG002, ASYNC109
        received = await asyncio.get_running_loop().sock_recv(
            self._socket, min(max_bytes, MAX_RESPONSE_BYTES)
        )
        self.num_received += len(received)
        return received

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:  # noqa: ARG002, ASYNC109
        if buffer:
            await asyncio.get_running_loop().sock_sendall(self._socket, buffer)

    async def aclose(self) -> None:
        self._socket.close()


class _Vetted(AsyncNetworkBackend):
    """A backend of httpcore2's that connects as our exchange does."""

    def __init__(self, url: ParsedUrl) -> None:
        self._url = url

    async def connect_tcp(
        self,
        host: str,  # noqa: ARG002  # that of the URL
        port: int,  # noqa: ARG002
        timeout: float | None = None,  # noqa: ARG002, ASYNC109
        local_address: str | None = None,  # noqa: ARG002
        socket_options: Iterable[httpcore2.SOCKET_OPTION] | None = None,  # noqa: ARG002
    ) -> AsyncNetworkStream:
        until = asyncio.get_running_loop().time() + _DEADLINE.total_seconds()
        return _Counted(await connect(self._url, resolve_host, until=until))


async def _ours(url: ParsedUrl) -> None:
    result = await exchange(url, _BODY, _HEADERS, deadline=_DEADLINE)
    if result.status != 200:
        raise RuntimeError(f"no answer: {result}")


async def _httpcore2(url: ParsedUrl) -> None:
    fields = {
        **_HEADERS,
        "Content-Length": str(len(_BODY)),
        "Accept-Encoding": "identity",
        "Connection": "close",
    }
    origin = Origin(url.scheme.encode(), url.host.encode(), url.port)
    async with asyncio.timeout(_DEADLINE.total_seconds()):
        async with AsyncHTTPConnection(origin, network_backend=_Vetted(url)) as connection:
            address = f"{url.scheme}://{url.authority}{url.target}"
            async with connection.stream(
                "POST", address, headers=list(fields.items()), content=_BODY
            ) as answer:
                if answer.status != 200:
                    raise RuntimeError(f"status {answer.status}")


async def _measure(exchange_once: Exchange, *, times: int) -> float:
    """Return the processor time of one exchange, in milliseconds."""

    async def repeat() -> None:
        for _ in range(times // _CONCURRENCY):
            await exchange_once()

    began = time.process_time()
    await asyncio.gather(*(repeat() for _ in range(_CONCURRENCY)))
    return (time.process_time() - began) / (times // _CONCURRENCY * _CONCURRENCY) * 1000


async def _compare(port: int, *, rounds: int, times: int) -> None:
    url = check_url(f"http://{_HOST}:{port}/hook", allowed_hosts={_HOST})
    kinds: dict[str, Exchange] = {"ours": lambda: _ours(url), "httpcore2": lambda: _httpcore2(url)}
    found: dict[str, list[float]] = {name: [] for name in kinds}
    for exchange_once in kinds.values():
        await _measure(exchange_once, times=_CONCURRENCY)
    for _ in range(rounds):
        for name, exchange_once in kinds.items():
            found[name].append(await _measure(exchange_once, times=times))
    for name, values in found.items():
        print(f"{name}: {_listed(values)} ms of processor an exchange")  # noqa: T201
    ratios = [theirs / ours for ours, theirs in zip(found["ours"], found["httpcore2"], strict=True)]
    print(f"httpcore2 over ours: {_listed(ratios)}")  # noqa: T201


def _listed(values: Sequence[float]) -> str:
    return f"{' '.join(f'{value:.2f}' for value in values)} (median {statistics.median(values):.2f})"


class _Receiver(asyncio.Protocol):
    """Answers once the whole request is there, and closes."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._received = b""

    def data_received(self, data: bytes) -> None:
        self._received += data
        if len(self._received.partition(b"\r\n\r\n")[2]) >= len(_BODY):
            self._transport.write(_ANSWER)  # type: ignore[attr-defined]  # a transport that can be written
            self._transport.close()


def _receive(ready: Connection) -> None:
    async def serve() -> None:
        server = await asyncio.get_running_loop().create_server(_Receiver, _HOST, 0)
        ready.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    uvloop.run(serve())


def main() -> None:
    """Run the comparison and print it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--times", type=int, default=1600, help="exchanges of each client in a round")
    given = parser.parse_args()
    here, there = multiprocessing.Pipe()
    receiver = multiprocessing.get_context("spawn").Process(target=_receive, args=(there,), daemon=True)
    receiver.start()
    try:
        uvloop.run(_compare(here.recv(), rounds=given.rounds, times=given.times))
    finally:
        receiver.terminate()


if __name__ == "__main__":
    main()
