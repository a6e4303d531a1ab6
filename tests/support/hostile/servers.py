"""Servers whose other end reads a request and then does what a test says, with real sockets."""

import select
import shutil
import socket
import ssl
import struct
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from support import PATIENCE

# What a server does with a connection on which it has read the request.
Conduct = Callable[[socket.socket], None]


@dataclass
class Server:
    """A listener on loopback that counts connections and keeps the requests it read."""

    port: int
    requests: list[bytes] = field(default_factory=list)
    num_connections: int = 0

    @property
    def url(self) -> str:
        return f"http://hook.test:{self.port}/hook?x=1"


@contextmanager
def serving(
    conduct: Conduct, *, host: str = "127.0.0.1", tls: ssl.SSLContext | None = None, reads: bool = True
) -> Iterator[Server]:
    """A server that first reads each request, unless told not to, and then does as `conduct` says."""
    try:
        listener = socket.create_server((host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError:
        pytest.skip(f"this machine has no {host}")
    server = Server(listener.getsockname()[1])

    def serve() -> None:
        while True:
            try:
                accepted, _ = listener.accept()
            except OSError:
                return
            server.num_connections += 1
            with suppress(OSError), accepted:
                accepted.settimeout(20)  # longer than any deadline
                connected = tls.wrap_socket(accepted, server_side=True) if tls else accepted
                with connected:
                    if reads:
                        server.requests.append(read_request(connected))
                    conduct(connected)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(timeout=PATIENCE)
        assert not thread.is_alive()


def read_request(connected: socket.socket) -> bytes:
    """A whole request, or the beginning of a large one."""
    request = b""
    while b"\r\n\r\n" not in request and (received := connected.recv(65536)):
        request += received
    length = next(
        (int(line[15:]) for line in request.split(b"\r\n") if line.startswith(b"Content-Length:")), 0
    )
    end = request.index(b"\r\n\r\n") + 4 + min(length, 65536)
    while len(request) < end and (received := connected.recv(65536)):
        request += received
    return request


def silent(connected: socket.socket) -> None:
    connected.recv(1)


def answering(*parts: bytes) -> Conduct:
    return lambda connected: connected.sendall(b"".join(parts))


def forever(part: bytes, *, first: bytes = b"", pause: float = 0) -> Conduct:
    """Sends `first` and then the part again and again until the other side closes."""

    def conduct(connected: socket.socket) -> None:
        connected.sendall(first)
        while True:
            connected.sendall(part)
            # The pause is over early when the other side closes or resets.
            select.select([connected], [], [], pause)

    return conduct


def resetting(connected: socket.socket) -> None:
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def half_closing(connected: socket.socket) -> None:
    """Says that nothing more will come, and goes on listening."""
    connected.shutdown(socket.SHUT_WR)
    connected.recv(1)


def make_certificate(directory: Path) -> Path:
    """A self-signed certificate of hook.test, its key in the same file."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("this machine has no openssl")
    file = directory / "hook.test.pem"
    request = ["req", "-x509", "-nodes", "-days", "2", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]
    names = ["-subj", "/CN=hook.test", "-addext", "subjectAltName=DNS:hook.test"]
    made = subprocess.run(
        [openssl, *request, *names, "-keyout", "-", "-out", "-"], check=True, capture_output=True, timeout=30
    )
    file.write_bytes(made.stdout)
    return file


def serving_as(certificate: Path) -> ssl.SSLContext:
    """What a server of this certificate wraps its connections in."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    return context
