"""Hosts on one machine: network namespaces at a bridge, whose links can be cut, and packets dropped.

The process that makes them must be in a network namespace of its own, with the right to make others
(`isolated` says how to get there): then nothing that it does reaches the machine's network.
"""

import ctypes
import os
import subprocess
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeVar

T = TypeVar("T")
_NEW_NETWORK: Final = 0x4000_0000  # CLONE_NEWNET
_NET: Final = "10.88.0"
HUB: Final = f"{_NET}.254"
_LIBC: Final = ctypes.CDLL(None, use_errno=True)


def isolated(*, is_root: bool) -> list[str]:
    """Return the command before one that is to run in a network of its own, and may make others."""
    user = [] if is_root else ["--user", "--map-current-user", "--keep-caps"]
    return ["unshare", *user, "--net", "--fork", "--kill-child"]


def why_not() -> str | None:
    """Say why this machine cannot be isolated; None if it can."""
    test = [*isolated(is_root=os.geteuid() == 0), "ip", "link", "add", "lb0", "type", "bridge"]
    try:
        done = subprocess.run(test, check=False, capture_output=True, text=True)
    except OSError as error:
        return str(error)
    return None if done.returncode == 0 else done.stderr.strip()


@dataclass(frozen=True)
class Host:
    """A network namespace with one link to the bridge.

    Attributes:
        address: of its end of the link.
        fd: keeps the namespace.
    """

    name: str
    address: str
    fd: int

    def enter(self) -> None:
        """Move the calling thread here, with all that it starts from now on.

        Raises:
            OSError: it may not.
        """
        _check(_LIBC.setns(self.fd, _NEW_NETWORK))

    def call(self, function: Callable[[], T]) -> T:
        """Call a function in a thread that is here, and return what it returns."""
        found: list[T] = []

        def run() -> None:
            self.enter()
            found.append(function())

        _in_thread(run)
        return found[0]

    def run(self, *command: str, given: str = "") -> None:
        """Run a command here."""
        self.call(lambda: _run(*command, given=given))


@dataclass
class Network:
    """The bridge and its hosts; they end with the process.

    Attributes:
        nft: the program that drops packets; None: there is none.
    """

    nft: Sequence[str] | None = None
    hosts: dict[str, Host] = field(default_factory=dict)

    def build(self, names: Sequence[str]) -> None:
        """Make the bridge, and a host for each name."""
        _run("ip", "link", "set", "lo", "up")
        _run("ip", "link", "add", "lb0", "type", "bridge")
        _run("ip", "addr", "add", f"{HUB}/24", "dev", "lb0")
        _run("ip", "link", "set", "lb0", "up")
        for number, name in enumerate(names, start=1):
            self._add(name, f"{_NET}.{number}")

    def _add(self, name: str, address: str) -> None:
        fd = _new_namespace()
        there = f"/proc/{os.getpid()}/fd/{fd}"
        _run("ip", "link", "add", f"v-{name}", "type", "veth", "peer", "name", "eth0", "netns", there)
        _run("ip", "link", "set", f"v-{name}", "master", "lb0", "up")
        host = self.hosts[name] = Host(name, address, fd)
        for command in ("link set lo up", f"addr add {address}/24 dev eth0", "link set eth0 up"):
            host.run("ip", *command.split())

    def cut(self, name: str) -> None:
        """Take the host's link down: nothing arrives, and nobody is told."""
        _run("ip", "link", "set", f"v-{name}", "down")

    def mend(self, name: str) -> None:
        """Take the host's link up."""
        _run("ip", "link", "set", f"v-{name}", "up")

    def lose(self, name: str, percent: int) -> None:
        """Drop so many of a hundred packets that come to the host."""
        self._rules(name, f"numgen random mod 100 < {percent} drop")

    def deafen(self, name: str, peer: str) -> None:
        """Drop all that comes to one host from another; the other way stays open."""
        self._rules(name, f"ip saddr {self.hosts[peer].address} drop")

    def hear(self, name: str) -> None:
        """Drop nothing more."""
        if self.nft is not None:
            self.hosts[name].run(*self.nft, "flush", "ruleset")

    def _rules(self, name: str, rule: str) -> None:
        if self.nft is None:
            return
        chain = f"chain c {{\ntype filter hook input priority 0\niif lo accept\n{rule}\n}}"
        self.hosts[name].run(*self.nft, "-f", "-", given=f"flush ruleset\ntable ip t {{\n{chain}\n}}\n")


def _new_namespace() -> int:
    found: list[int] = []

    def make() -> None:
        _check(_LIBC.unshare(_NEW_NETWORK))
        found.append(os.open(Path("/proc/thread-self/ns/net"), os.O_RDONLY | os.O_CLOEXEC))

    _in_thread(make)
    return found[0]


def _in_thread(function: Callable[[], None]) -> None:
    """Run a function in a thread of its own, which alone changes its namespace.

    Raises:
        Exception: what the function raised.
    """
    failed: list[BaseException] = []

    def run() -> None:
        try:
            function()
        except BaseException as error:  # noqa: BLE001  # raised again below
            failed.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if failed:
        raise failed[0]


def _check(returned: int) -> None:
    if returned != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def _run(*command: str, given: str = "") -> None:
    done = subprocess.run(command, check=False, input=given, capture_output=True, text=True)
    if done.returncode != 0:
        raise OSError(f"{' '.join(command)}: {done.stderr.strip()}")
