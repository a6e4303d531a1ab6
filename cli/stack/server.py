"""The stack's interface to a server: how to start it and whether it answers."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Protocol

from cli.stack.locks import DirectoryLock
from cli.stack.processes import ChildProcess, Launch, wait_for_child


class StackServer(Protocol):
    """A server that can be launched repeatedly under one name and one address."""

    @property
    def name(self) -> str:
        """Name of the server, its log and its process id."""

    def launch(self) -> Launch:
        """Prepare its files and return how to start it.

        Raises:
            LongbatchError: it cannot be started; the message says why.
        """

    def is_ready(self) -> bool:
        """Return True if it answers."""

    def release(self) -> None:
        """Release what it held, after it has ended."""


class EmbeddedServer(StackServer, Protocol):
    """A server that can also run by itself, without supervision, for tests."""

    directory: Path
    start_timeout: timedelta
    _lock: DirectoryLock | None = None
    _child: ChildProcess | None = None

    @property
    def url(self) -> str:
        """Address for clients; valid for the object's whole life."""

    @property
    def pid(self) -> int | None:
        """Process id; None before `start`."""
        return self._child.pid if self._child else None

    def start(self) -> str:
        """Start it, wait until it answers, and return its URL.

        The calling thread must live as long as the server.

        Raises:
            LongbatchError: it did not start; the message has the end of its log.
        """
        self._child = ChildProcess(self.launch(), self.directory / f"{self.name}.log")
        wait_for_child(self._child, self.is_ready, name=self.name, timeout=self.start_timeout)
        return self.url

    def stop(self) -> None:
        """Stop it and release its directory."""
        if self._child is not None:
            self._child.stop()
        self.release()

    def kill(self) -> None:
        """Kill it without a chance to clean up."""
        if self._child is not None:
            self._child.kill()

    def release(self) -> None:
        """Release its directory."""
        if self._lock is not None:
            self._lock.release()

    def _hold(self, directory: Path) -> None:
        """Lock this directory until `release`."""
        self._lock = self._lock or DirectoryLock(directory)
        self._lock.acquire()


@dataclass(frozen=True)
class Program:
    """A process of our own, always launched the same way."""

    name: str
    argv: tuple[str, ...]
    env: Mapping[str, str] = field(repr=False)
    directory: Path
    grace: timedelta
    answers: Callable[[], bool]

    def launch(self) -> Launch:
        """Return how to start it."""
        return Launch(argv=self.argv, env=self.env, directory=self.directory, grace=self.grace)

    def is_ready(self) -> bool:
        """Return True if it answers."""
        return self.answers()

    def release(self) -> None:
        """Do nothing: it holds nothing."""
