"""One exchange ends within 15.5 seconds, at the default deadline, whatever the other side does."""

import asyncio
import gzip
import socket
import ssl
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path

from hostile.servers import Conduct, forever, half_closing, make_certificate, serving, serving_as, silent
from jobs.settings import WebhookSettings
from webhook_support import awaited
from worker.webhooks import exchange
from worker.webhooks.exchange import ExchangeResult

# What takes all the time it can get, and what would give more bytes than anybody wants.
SLOW: dict[str, Conduct] = {
    "silence": silent,
    "a status line byte by byte": forever(b"O", first=b"HTTP/1.1 200 ", pause=0.05),
    "headers one by one": forever(b"X-Drip: 1\r\n", first=b"HTTP/1.1 200 OK\r\n", pause=0.05),
    "hints one by one": forever(b"HTTP/1.1 103 Early Hints\r\n\r\n", pause=0.1),
    "a body byte by byte": forever(
        b".", first=b"HTTP/1.1 200 OK\r\nContent-Length: 99999\r\n\r\n", pause=0.05
    ),
    "chunks one by one": forever(
        b"1\r\nx\r\n", first=b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", pause=0.05
    ),
}
LARGE: dict[str, Conduct] = {
    "an endless body": forever(b"x" * 65536, first=b"HTTP/1.1 200 OK\r\n\r\n"),
    "an endless header": forever(b"x" * 65536, first=b"HTTP/1.1 200 OK\r\nX-Long: "),
    "endless hints": forever(b"HTTP/1.1 103 Early Hints\r\n\r\n"),
    "a bomb": forever(
        gzip.compress(b"\x00" * 10_000_000), first=b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\n\r\n"
    ),
    "half a connection": half_closing,
}


def drip_handshake(connected: socket.socket) -> None:
    connected.recv(65536)
    forever(b"\x02", first=b"\x16\x03\x03\x40\x00", pause=0.05)(connected)


async def ask(urls: list[str], tls: ssl.SSLContext) -> list[ExchangeResult]:
    """All of them at once."""
    deadline = timedelta(seconds=WebhookSettings().deadline_seconds)
    asked = (
        exchange.post(
            url,
            b"{}",
            {},
            allowed_hosts=["hook.test"],
            deadline=deadline,
            resolve=lambda *_: ["127.0.0.1"],
            tls=tls,
        )
        for url in urls
    )
    return await asyncio.gather(*asked)


def test_every_exchange_ends_in_time_and_with_few_bytes_at_the_default_deadline(tmp_path: Path) -> None:
    assert WebhookSettings().deadline_seconds == 15
    certificate = make_certificate(tmp_path)
    names: list[str] = []
    urls: list[str] = []
    with ExitStack() as stack:
        for scheme, tls in (("http", None), ("https", serving_as(certificate))):
            for name, conduct in (SLOW | LARGE).items():
                server = stack.enter_context(serving(conduct, tls=tls))
                names.append(f"{name} over {scheme}")
                urls.append(f"{scheme}://hook.test:{server.port}/")
        server = stack.enter_context(serving(drip_handshake, reads=False))
        names.append("a handshake byte by byte")
        urls.append(f"https://hook.test:{server.port}/")
        answers = awaited(ask)(urls, ssl.create_default_context(cafile=str(certificate)))
    told = dict(zip(names, answers, strict=True))
    late = {name: answer for name, answer in told.items() if answer.latency > timedelta(seconds=15.5)}
    assert late == {}
    assert max(answer.num_bytes for answer in answers) <= 64_000
    took_all = {name for name, answer in told.items() if answer.latency >= timedelta(seconds=15)}
    slow = {f"{name} over {scheme}" for name in SLOW for scheme in ("http", "https")}
    assert slow | {"a handshake byte by byte"} <= took_all
