"""Logs never raise, and a part of a process that fails ends the process as SIGTERM does."""

import subprocess
import sys
from pathlib import Path

import pytest

from support import PATIENCE

REPOSITORY = Path(__file__).resolve().parents[3]


def run(code: str, *, stdout: str | None = None) -> subprocess.CompletedProcess[str]:
    """A Python process of its own, which may end itself."""
    command = [sys.executable, "-c", code]
    if stdout is None:
        return subprocess.run(
            command, check=False, capture_output=True, text=True, cwd=REPOSITORY, timeout=PATIENCE
        )
    with Path(stdout).open("w") as target:
        return subprocess.run(
            command,
            check=False,
            stdout=target,
            stderr=subprocess.PIPE,
            text=True,
            cwd=REPOSITORY,
            timeout=PATIENCE,
        )


FAILING_LOOP = """
import os, threading
from jobs import telemetry
from worker.loop import Loop
telemetry.configure()
rounds = threading.Semaphore(0)
def fail():
    rounds.release()
    raise OSError("no space")
loop = Loop("test", fail, interval=0.01)
loop.start()
os._exit(0 if all(rounds.acquire(timeout=10) for _ in range(3)) else 3)
"""


def test_a_failing_loop_goes_on_when_its_log_cannot_be_written() -> None:
    assert run(FAILING_LOOP, stdout="/dev/full").returncode == 0


@pytest.mark.parametrize("fields", ["value=object()", "exc_info=True, value={1: {2}}"])
def test_logging_never_raises_whatever_it_is_given(fields: str) -> None:
    code = f"""
from jobs import telemetry
telemetry.configure()
telemetry.logger().error("loop.failed", {fields})
"""
    assert run(code).returncode == 0
    assert run(code, stdout="/dev/full").returncode in (0, 120)  # 120: Python's own flush at exit failed


def test_lines_that_are_lost_are_counted_with_their_events() -> None:
    code = """
import sys
from prometheus_client import CollectorRegistry, generate_latest
from jobs import telemetry
registry = CollectorRegistry()
events = telemetry.EventCounter(registry)
telemetry.configure(on_event=events.count)
telemetry.logger().info(telemetry.LOOP_FAILED)
sys.stderr.write(generate_latest(registry).decode())
"""
    found = run(code, stdout="/dev/full").stderr
    assert "longbatch_log_lines_lost_total 1.0" in found
    assert 'longbatch_events_total{event="loop.failed"} 1.0' in found


ENDING = """
import signal, sys, threading
from jobs import liveness, telemetry
from worker.loop import Loop
telemetry.configure()
def stop(number, frame):
    loop.stop()
    sys.exit(liveness.exit_code())
signal.signal(signal.SIGTERM, stop)
def leave():
    raise SystemExit
loop = Loop("dispatcher", leave, interval=0.01)
loop.start()
threading.Event().wait(10)
"""


def test_a_loop_that_cannot_go_on_shuts_its_process_down_with_code_1() -> None:
    ended = run(ENDING)
    assert ended.returncode == 1
    assert '"event": "process.ending"' in ended.stdout
    assert ended.stdout.count("process.ending") == 1
    assert "SystemExit" in ended.stdout


def test_a_shutdown_that_hangs_is_cut_short() -> None:
    code = ENDING.replace("loop.stop()", "threading.Event().wait()").replace(
        "telemetry.configure()", "telemetry.configure(); liveness._HARD_EXIT_SECONDS = 0.5"
    )
    assert run(code).returncode == 1


def test_a_thread_that_fails_ends_its_process() -> None:
    code = """
import signal, sys, threading
from jobs import liveness
signal.signal(signal.SIGTERM, lambda *_: sys.exit(liveness.exit_code()))
threading.Thread(target=liveness.guarded("senders", lambda: 1 / 0)).start()
threading.Event().wait(10)
"""
    assert run(code).returncode == 1
