"""Loops go on whatever happens in a round, and end when they are told to."""

import threading

from jobs import liveness, telemetry
from support import PATIENCE, eventually
from worker.loop import Loop


def test_a_failing_round_does_not_end_the_loop() -> None:
    rounds: list[int] = []
    came_back = threading.Event()

    def fail_once() -> None:
        rounds.append(1)
        if len(rounds) == 1:
            raise RuntimeError
        came_back.set()

    loop = Loop("test", fail_once, interval=0.01)
    loop.start()
    assert came_back.wait(5)
    loop.stop()


class Panic(BaseException):
    """As a panic in Rust reaches Python."""


def test_a_panic_does_not_end_the_loop() -> None:
    panics = threading.Semaphore(0)

    def panic() -> None:
        panics.release()
        raise Panic

    loop = Loop("test", panic, interval=0.01)
    loop.start()
    assert panics.acquire(timeout=PATIENCE)
    assert panics.acquire(timeout=PATIENCE)
    loop.stop()


def test_the_log_of_an_error_names_its_types_and_places_but_not_its_text() -> None:
    try:
        try:
            int("secret".upper())
        except ValueError as error:
            raise RuntimeError("secret".upper()) from error
    except RuntimeError as error:
        shown = telemetry.describe_error((type(error), error, error.__traceback__))
    assert "builtins.ValueError" in shown
    assert "builtins.RuntimeError" in shown
    assert "test_worker_loops.py" in shown
    assert "SECRET" not in shown


def test_a_wake_cuts_the_interval_short() -> None:
    rounds = threading.Semaphore(0)
    loop = Loop("test", rounds.release, interval=3600)
    loop.start()
    assert rounds.acquire(timeout=PATIENCE)
    loop.wake()
    assert rounds.acquire(timeout=PATIENCE)
    loop.stop()


def test_a_wake_cuts_the_rest_after_a_failure_short() -> None:
    rounds = threading.Semaphore(0)

    def fail() -> None:
        rounds.release()
        raise RuntimeError

    loop = Loop("test", fail, interval=3600)
    loop.start()
    for _ in range(3):
        assert rounds.acquire(timeout=PATIENCE)
        loop.wake()
    loop.stop()


def test_a_round_can_ask_for_the_next_one_before_its_interval_is_over() -> None:
    rounds = threading.Semaphore(0)

    def round_() -> None:
        rounds.release()
        loop.wake_within(0.001)

    loop = Loop("test", round_, interval=3600)
    loop.start()
    for _ in range(3):
        assert rounds.acquire(timeout=PATIENCE)
    loop.stop()


def test_a_wake_during_a_round_is_not_lost() -> None:
    entered, go_on, second = threading.Event(), threading.Event(), threading.Event()

    def round_() -> None:
        if entered.is_set():
            second.set()
            return
        entered.set()
        go_on.wait(5)

    loop = Loop("test", round_, interval=3600)
    loop.start()
    assert entered.wait(5)
    loop.wake()
    go_on.set()
    assert second.wait(5)
    loop.stop()


def test_a_thousand_wakes_during_a_round_start_one_more() -> None:
    entered, go_on, rounds = threading.Event(), threading.Event(), threading.Semaphore(0)

    def round_() -> None:
        entered.set()
        go_on.wait(PATIENCE)
        rounds.release()

    loop = Loop("test", round_, interval=3600)
    loop.start()
    assert entered.wait(PATIENCE)
    for _ in range(1000):
        loop.wake()
    go_on.set()
    assert rounds.acquire(timeout=PATIENCE)
    assert rounds.acquire(timeout=PATIENCE)
    assert not rounds.acquire(timeout=0.1)
    loop.stop()


def test_a_round_that_has_answered_a_wake_is_not_repeated() -> None:
    first, second = threading.Event(), threading.Event()

    def round_() -> None:
        if first.is_set():
            second.set()
            return
        loop.wake()
        loop.answer_wakes()
        first.set()

    loop = Loop("test", round_, interval=3600)
    loop.start()
    assert first.wait(PATIENCE)
    assert not second.wait(0.1)
    loop.wake()
    assert second.wait(PATIENCE)
    loop.stop()


def test_a_loop_that_never_began_can_be_stopped() -> None:
    Loop("test", lambda: None, interval=1).stop()


def test_a_loop_that_cannot_go_on_ends_its_process_and_serves_until_then() -> None:
    ended, rounds = threading.Semaphore(0), threading.Semaphore(0)

    def leave() -> None:
        rounds.release()
        raise SystemExit

    loop = Loop("test", leave, interval=0.01, end_process=lambda _name, _error: ended.release())
    loop.start()
    assert ended.acquire(timeout=PATIENCE)
    assert rounds.acquire(timeout=PATIENCE)
    assert rounds.acquire(timeout=PATIENCE)
    loop.stop()


def test_a_loop_whose_round_hangs_is_late() -> None:
    entered, go_on = threading.Event(), threading.Event()

    def hang() -> None:
        entered.set()
        go_on.wait(PATIENCE)

    loop = Loop("test", hang, interval=3600, longest_step=0.01)
    assert not loop.is_late
    loop.start()
    assert entered.wait(PATIENCE)
    eventually(lambda: loop.is_late)
    go_on.set()
    eventually(lambda: not loop.is_late)
    loop.stop()


def test_a_long_round_that_gets_something_done_is_not_late() -> None:
    entered, step, stepped, go_on = (threading.Event() for _ in range(4))

    def work() -> None:
        entered.set()
        step.wait(PATIENCE)
        liveness.progressed()
        stepped.set()
        go_on.wait(PATIENCE)

    loop = Loop("test", work, interval=3600, longest_step=0.5)
    loop.start()
    assert entered.wait(PATIENCE)
    eventually(lambda: loop.is_late)
    step.set()
    assert stepped.wait(PATIENCE)
    assert not loop.is_late
    go_on.set()
    loop.stop()
