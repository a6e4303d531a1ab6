"""The hosts of the drill: they reach each other by relays until a link is cut, and once it is repaired."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread

import pytest

from bench.drill.hosts import isolated, why_not
from bench.drill.relay import relaying
from support import eventually

ROOT = Path(__file__).resolve().parents[3]
# In a network of its own: a server on the loopback of one host, its relay, and a caller on another host.
WALK = """
import socket, threading
from bench.drill.hosts import Network
from bench.drill.relay import relaying

network = Network()
network.build(["a", "b"])
a, b = network.hosts["a"], network.hosts["b"]
server = a.call(lambda: socket.create_server(("127.0.0.1", 0)))
port = server.getsockname()[1]

def serve():
    while True:
        connected, _ = server.accept()
        connected.sendall(connected.recv(9).upper())
        connected.close()

threading.Thread(target=serve, daemon=True).start()

def ask(address, timeout):
    def tried():
        try:
            with socket.create_connection((address, port), timeout=timeout) as connected:
                connected.sendall(b"hello")
                return connected.recv(9).decode()
        except OSError as error:
            return type(error).__name__
    return b.call(tried)

with relaying(("127.0.0.1", port), port=port, host=a.address, enter=a.enter):
    print(ask(a.address, 60), ask("127.0.0.1", 60))
    network.cut("a")
    print(ask(a.address, 0.2))
    network.mend("a")
    print(ask(a.address, 60))
"""


def test_a_cut_link_parts_two_hosts_until_it_is_mended() -> None:
    if reason := why_not():
        pytest.skip(f"this user can make no network namespaces here: {reason}")
    command = [*isolated(is_root=os.geteuid() == 0), sys.executable, "-P", "-c", WALK]
    done = subprocess.run(
        command,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=False,
        capture_output=True,
        text=True,
        timeout=150,
    )
    assert done.returncode == 0, done.stderr
    first, parted, repaired = done.stdout.splitlines()
    assert first == "HELLO ConnectionRefusedError", "each host has a loopback of its own"
    assert parted in {"TimeoutError", "OSError"}
    assert repaired == "HELLO"


@contextmanager
def answering(word: bytes) -> Iterator[tuple[str, int]]:
    """A server that answers every connection with this word once the caller has said something."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            while True:
                try:
                    connected, _ = server.accept()
                except OSError:
                    return
                with connected:
                    if connected.recv(9):
                        connected.sendall(word)

        Thread(target=serve, daemon=True).start()
        yield server.getsockname()
        server.shutdown(socket.SHUT_RDWR)


def test_a_relay_moves_new_connections_and_leaves_those_that_are_open() -> None:
    with answering(b"old") as old, answering(b"new") as new, relaying(old) as relay:
        address = ("127.0.0.1", relay.port)
        with socket.create_connection(address, timeout=60) as kept:
            eventually(lambda: relay.num_open.get(old) == 1)
            relay.target = new
            with socket.create_connection(address, timeout=60) as moved:
                moved.sendall(b"who?")
                assert moved.recv(9) == b"new"
            kept.sendall(b"who?")
            assert kept.recv(9) == b"old"
        eventually(lambda: not relay.num_open[old] and not relay.num_open[new])
