"""A thread that does one thing again and again, whatever goes wrong."""

import threading
from collections.abc import Callable
from typing import Final

from jobs import telemetry

_MAX_BACKOFF_SECONDS: Final = 5.0


class Loop:
    """Calls `run_once` every `interval` seconds and whenever it is woken.

    A failure is logged and slows it down, up to five seconds; it never ends it.
    """

    def __init__(
        self, name: str, run_once: Callable[[], object], *, interval: float, daemon: bool = False
    ) -> None:
        """Args: daemon: the process may end without it."""
        self._name = name
        self._run_once = run_once
        self._interval = interval
        self._woken = threading.Event()
        self._stopping = threading.Event()
        self._num_failures = 0
        self._thread = threading.Thread(target=self._run, name=name, daemon=daemon)

    def start(self) -> None:
        """It runs, for the first time at once."""
        self._thread.start()

    def wake(self) -> None:
        """It runs again soon."""
        self._woken.set()

    @property
    def is_stopping(self) -> bool:
        """Whether it has been told to end."""
        return self._stopping.is_set()

    def begin_stop(self) -> None:
        """It ends after its present round; returns at once."""
        self._stopping.set()
        self._woken.set()

    def join(self, timeout: float | None = None) -> bool:
        """Whether it has ended, waiting up to `timeout` seconds for that; one that never began has."""
        if self._thread.ident is not None:
            self._thread.join(timeout)
        return not self._thread.is_alive()

    def stop(self) -> None:
        """It has ended."""
        self.begin_stop()
        self.join()

    def _run(self) -> None:
        while not self._stopping.is_set():
            self._woken.clear()
            self._round()
            if not self._stopping.is_set():
                self._rest()

    def _round(self) -> None:
        try:
            self._run_once()
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as error:  # noqa: BLE001  # the thread's entry point; a panic in Rust is no Exception
            self._num_failures += 1
            # Not the error's text: a driver's message can quote values.
            telemetry.logger().warning(
                telemetry.LOOP_FAILED,
                loop=self._name,
                error=type(error).__name__,
                num_failures=self._num_failures,
                exc_info=self._num_failures == 1,
            )
        else:
            self._num_failures = 0

    def _rest(self) -> None:
        if self._num_failures:
            backoff = min(_MAX_BACKOFF_SECONDS, 0.25 * 2 ** min(self._num_failures, 6))
            self._stopping.wait(max(self._interval, backoff))
        else:
            self._woken.wait(self._interval)
