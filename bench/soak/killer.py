"""Faults at random: processes killed, frozen, stopped and restarted, Redis emptied."""

import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from random import Random
from typing import Final

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from cli.stack.errors import StackError
from cli.stack.ready import API, INFERENCE_WORKER, POSTGRES, REDIS, SERVICE_WORKER, TRITON
from cli.stack.stack import Stack
from jobs.errors import LongbatchError

_OURS: Final = (API, INFERENCE_WORKER, SERVICE_WORKER)
_RECOVERY: Final = timedelta(seconds=90)


class Killer:
    """Does one fault after another, and waits until the process that it hit answers again."""

    def __init__(self, stack: Stack, *, seed: int, mean_s: float, freeze_s: float) -> None:
        """Prepare the faults.

        Args:
            stack: to hit.
            seed: of the draws.
            mean_s: between two faults.
            freeze_s: a frozen worker wakes after this long; longer than its lease.
        """
        self._stack = stack
        self._random = Random(f"{seed} faults")  # noqa: S311  # repeatable
        self._mean_s, self._freeze_s = mean_s, freeze_s
        self.done = Counter[str]()
        self.log: list[tuple[float, str]] = []

    def run(self, over: threading.Event, say: Callable[[str], None]) -> None:
        """Do faults until `over` is set."""
        faults: dict[str, tuple[int, Callable[[], None]]] = {
            **{f"kill {name}": (3, lambda name=name: self._kill(name)) for name in _OURS},  # type: ignore[misc]
            **{f"kill {name}": (2, lambda name=name: self._kill(name)) for name in (TRITON, REDIS, POSTGRES)},  # type: ignore[misc]
            **{f"freeze {name}": (1, lambda name=name: self._freeze(name)) for name in _OURS[1:]},  # type: ignore[misc]
            **{f"stop {name}": (1, lambda name=name: self._stop(name)) for name in _OURS[1:]},  # type: ignore[misc]
            f"restart {POSTGRES}": (1, lambda: self._restart(POSTGRES)),
            f"restart {REDIS}": (1, lambda: self._restart(REDIS)),
            "empty redis": (2, self._empty),
        }
        names = sorted(faults)
        weights = [faults[name][0] for name in names]
        while not over.wait(self._random.expovariate(1 / self._mean_s)):
            (name,) = self._random.choices(names, weights)
            self.log.append((time.time(), name))
            say(name)
            faults[name][1]()
            self.done[name] += 1

    def _kill(self, name: str) -> None:
        before = self._stack.pids[name]
        self._stack.send(name, signal.SIGKILL)
        self._recover(name, before)

    def _stop(self, name: str) -> None:
        before = self._stack.pids[name]
        self._stack.send(name, signal.SIGTERM)
        self._recover(name, before)

    def _freeze(self, name: str) -> None:
        self._stack.send(name, signal.SIGSTOP)
        time.sleep(self._freeze_s)
        self._stack.send(name, signal.SIGCONT)

    def _restart(self, name: str) -> None:
        self._stack.hold(name)
        self._stack.resume(name)

    def _empty(self) -> None:
        url = self._stack.urls.broker_url or ""
        with redis.Redis.from_url(url, socket_timeout=5, retry=Retry(NoBackoff(), 0)) as client:
            client.flushall()

    def _recover(self, name: str, before: int | None) -> None:
        """Wait for the next process and its first answer.

        Raises:
            StackError: it does not come back.
        """
        deadline = time.monotonic() + _RECOVERY.total_seconds()
        while self._stack.pids[name] == before or not self._stack.answers(name):
            if time.monotonic() > deadline:
                raise StackError(f"{name} did not come back.")
            time.sleep(0.2)


def attempt(killer: Killer, over: threading.Event, say: Callable[[str], None], faults: list[str]) -> None:
    """Run the killer in a thread; a process that stays away is a fault of the run."""
    try:
        killer.run(over, say)
    except (LongbatchError, redis.RedisError) as error:
        faults.append(f"the killer stopped: {error}")
