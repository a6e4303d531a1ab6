"""A proxy between a process and Postgres that kills the process at a chosen message.

It reads the framing of the frontend's messages: one byte of type and four of length, except at the start of
a connection, where there is only the length. Of all messages it counts those that a server acts on before it
reads more: `Sync` and `Query`. A COMMIT is one of these too.
"""

import os
import signal
import socket
import struct
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Literal

_ACTED_ON: Final = (b"S", b"Q")
_STARTUP: Final = range(3 << 16, 4 << 16)  # protocol 3

Side = Literal["before", "after"]


@dataclass
class Trap:
    """Kills a process just before or just after its n-th message has passed, counted from 1."""

    pid: int
    place: int
    side: Side
    num_seen: int = 0
    has_killed: bool = False


class Gate:
    """Forwards connections to one server, until it refuses them."""

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.port: int = self._listener.getsockname()[1]
        self._pairs: set[tuple[socket.socket, socket.socket]] = set()
        self._is_refusing = False
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        """Drop every connection, as a failover does."""
        for pair in [*self._pairs]:
            _close(pair)

    def refuse(self, *, is_refusing: bool) -> None:
        """Drop new connections too, or accept them again."""
        self._is_refusing = is_refusing
        if is_refusing:
            self.cut()

    def close(self) -> None:
        """End it with its connections."""
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            if self._is_refusing:
                client.close()
                continue
            try:
                server = socket.create_connection(self._target)
            except OSError:
                client.close()
                continue
            for each in (client, server):
                each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            pair = (client, server)
            self._pairs.add(pair)
            for work in (self._forward, self._return):
                threading.Thread(target=self._guarded, args=(work, pair), daemon=True).start()

    def _guarded(
        self,
        work: Callable[[socket.socket, socket.socket], None],
        pair: tuple[socket.socket, socket.socket],
    ) -> None:
        try:
            work(*pair)
        except (OSError, EOFError, ValueError):
            pass
        finally:
            _close(pair)
            self._pairs.discard(pair)

    def _forward(self, client: socket.socket, server: socket.socket) -> None:
        while data := client.recv(65536):
            server.sendall(data)

    def _return(self, client: socket.socket, server: socket.socket) -> None:
        while data := server.recv(65536):
            client.sendall(data)


class PostgresProxy(Gate):
    """A gate in front of one Postgres that reads what it forwards.

    Attributes:
        num_messages: messages that the server acts on, since the last `count`.
        delay_seconds: how long each message is on its way.
    """

    def __init__(self, host: str, port: int) -> None:
        self._lock = threading.Lock()
        self._trap: Trap | None = None
        self._flows = threading.Event()
        self._flows.set()
        self.delay_seconds = 0.0
        self.num_messages = 0
        super().__init__(host, port)

    def count(self) -> None:
        """Count messages from now on."""
        with self._lock:
            self.num_messages = 0

    def arm(self, trap: Trap) -> None:
        """Set the trap; its count begins now."""
        with self._lock:
            self._trap = trap

    def disarm(self) -> None:
        """Let all messages pass."""
        with self._lock:
            self._trap = None

    def freeze(self) -> None:
        """Hold every message back, as a network does that drops packets."""
        self._flows.clear()

    def thaw(self) -> None:
        """Forward what was held back."""
        self._flows.set()

    def close(self) -> None:
        """End it with its connections."""
        self.thaw()
        super().close()

    def _forward(self, client: socket.socket, server: socket.socket) -> None:
        stream = client.makefile("rb")
        is_starting = True
        while is_starting:
            head = _exactly(stream.read, 8)
            length, code = struct.unpack("!ii", head)
            rest = _exactly(stream.read, length - 8)
            server.sendall(head + rest)
            is_starting = code not in _STARTUP
        while True:
            head = _exactly(stream.read, 5)
            (length,) = struct.unpack("!i", head[1:])
            message = head + _exactly(stream.read, length - 4)
            if self.delay_seconds and message[:1] in _ACTED_ON:
                threading.Event().wait(self.delay_seconds)
            self._flows.wait()
            self._pass(message, server)

    def _pass(self, message: bytes, server: socket.socket) -> None:
        is_counted = message[:1] in _ACTED_ON
        with self._lock:
            self.num_messages += is_counted
            trap, kills = self._trap, False
            if trap is not None and is_counted and not trap.has_killed:
                trap.num_seen += 1
                kills = trap.num_seen == trap.place
            if trap is None or not kills:
                server.sendall(message)
                return
            if trap.side == "after":
                server.sendall(message)
            trap.has_killed = True
            with suppress(ProcessLookupError):
                os.kill(trap.pid, signal.SIGKILL)


def _exactly(read: Callable[[int], bytes], size: int) -> bytes:
    data = read(size) if size else b""
    if len(data) < size:
        raise EOFError
    return data


def _close(pair: tuple[socket.socket, socket.socket]) -> None:
    for each in pair:
        with suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)
        with suppress(OSError):
            each.close()
