"""A thread that repeats one function, whatever goes wrong."""

import threading
import time
from collections.abc import Callable
from typing import Final

from jobs import liveness, telemetry

# For a loop that names no bound of its own: a transaction that meets its time limits, and some computing.
_LONGEST_STEP_SECONDS: Final = 60.0
_MAX_BACKOFF_SECONDS: Final = 5.0
# After a failure a wake-up starts the next round no sooner, so that a failing loop does not spin.
_PAUSE_SECONDS: Final = 0.1


class Loop:
    """A thread that calls `run_once` every `interval` seconds and whenever it is woken.

    A failed round is logged and slows the loop down, by up to five seconds unless it is woken. If anything
    else fails, the process shuts down; until then the loop goes on, since runs under way need it to end.

    Attributes:
        name: of the loop and its thread.
    """

    def __init__(
        self,
        name: str,
        run_once: Callable[[], object],
        *,
        interval: float,
        longest_step: float = _LONGEST_STEP_SECONDS,
        daemon: bool = False,
        end_process: Callable[[str, BaseException], object] = liveness.end_process,
    ) -> None:
        """Set up without running.

        Args:
            name: of the loop and its thread.
            run_once: does one round.
            interval: seconds from the end of one round to the next.
            longest_step: seconds in which a round commits a transaction, or ends, while all is well.
            daemon: the process may exit while the loop still runs.
            end_process: called with the name and the error when the loop cannot go on as it should.
        """
        self.name = name
        self._run_once = run_once
        self._interval = interval
        self._woken = threading.Event()
        self._stopping = threading.Event()
        self._num_failures = 0
        self._due_within: float | None = None
        self._longest_step = longest_step
        self._end_process = end_process
        self._progress = liveness.Progress()
        self._is_resting = True
        self._succeeded_at: float | None = None  # the start counts, too
        self._thread = threading.Thread(target=self._run, name=name, daemon=daemon)

    def start(self) -> None:
        """Start the thread. The first round runs at once."""
        self._thread.start()

    def wake(self) -> None:
        """Start the next round as soon as the present one ends."""
        self._woken.set()

    def answer_wakes(self) -> None:
        """Let the present round answer all wake-ups so far. Only a round may call it, before it looks."""
        self._woken.clear()

    def wake_within(self, seconds: float) -> None:
        """Start the next round after this time at the latest. Only a round may call it."""
        self._due_within = seconds if self._due_within is None else min(self._due_within, seconds)

    def begin_stop(self) -> None:
        """Ask the loop to end after its present round. Returns at once."""
        self._stopping.set()
        self._woken.set()

    def join(self, timeout: float | None = None) -> bool:
        """Wait up to `timeout` seconds for the loop to end; None waits for as long as it takes.

        Returns:
            True if the loop has ended or never started.
        """
        if self._thread.ident is not None:
            self._thread.join(timeout)
        return not self._thread.is_alive()

    def stop(self) -> None:
        """Stop the loop and wait until its present round ends."""
        self.begin_stop()
        self.join()

    @property
    def is_late(self) -> bool:
        """True if a round gets nothing done, or if none has succeeded for too long."""
        now, succeeded = time.monotonic(), self._succeeded_at
        if not self._is_resting and now - self._progress.at > self._longest_step:
            return True
        may_fail_for = self._longest_step + 3 * max(self._interval, _MAX_BACKOFF_SECONDS)
        return succeeded is not None and self._num_failures > 0 and now - succeeded > may_fail_for

    def _run(self) -> None:
        self._succeeded_at = time.monotonic()
        liveness.watch_this_thread(self._progress)
        while not self._stopping.is_set():
            try:
                self._turn()
            except BaseException as error:  # noqa: BLE001  # a dead thread in a live process is the worst end
                self._end_process(self.name, error)
                self._stopping.wait(_PAUSE_SECONDS)

    def _turn(self) -> None:
        self._woken.clear()
        self._due_within = None
        self._progress.make()
        self._is_resting = False
        self._round()
        self._is_resting = True
        if not self._stopping.is_set():
            self._rest()

    def _round(self) -> None:
        try:
            self._run_once()
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as error:  # noqa: BLE001  # the thread's entry point; a Rust panic is not an Exception
            self._num_failures += 1
            # Not the error's text: a driver's message can quote values.
            telemetry.logger().warning(
                telemetry.LOOP_FAILED,
                loop=self.name,
                error=type(error).__name__,
                num_failures=self._num_failures,
                exc_info=self._num_failures == 1,
            )
        else:
            self._num_failures = 0
            self._succeeded_at = time.monotonic()

    def _rest(self) -> None:
        seconds = self._interval
        if self._num_failures:
            seconds = max(seconds, min(_MAX_BACKOFF_SECONDS, 0.25 * 2 ** min(self._num_failures, 6)))
            if self._stopping.wait(_PAUSE_SECONDS):
                return
        if self._due_within is not None:
            seconds = min(seconds, self._due_within)
        self._woken.wait(seconds)
