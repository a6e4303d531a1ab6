"""The same promises over other kinds of engines, each fed by a worker of its own."""

from collections.abc import Callable

import pytest

from rig.engines import Script
from rig.world import Caller, FedEngine

LARGE_WORDS = 1100


@pytest.mark.parametrize("kind", ["llama.cpp", "sglang", "triton"])
def test_every_kind_of_engine_keeps_the_promises_of_runs(
    caller: Caller, fed: Callable[[str], FedEngine], kind: str
) -> None:
    engine = fed(kind)
    held = Script(length=30, hold_at=10)
    # Cancelling frees the blocks of one for the next.
    cancelled = caller.submit(held, engine=engine, words=LARGE_WORDS, ends=("cancelled",))
    engine.scripted.holding(cancelled.mark)
    waiting = caller.submit(engine=engine, words=LARGE_WORDS)
    cancelled.cancel()
    assert waiting.ended()["state"] == "completed"
    # More than the engine holds, one of them refused.
    jobs = [caller.submit(engine=engine, words=(0, 300, 900)[number % 3]) for number in range(9)]
    caller.submit(Script(refuses_with=400), engine=engine, ends=("failed",))
    assert {each.ended()["state"] for each in jobs} == {"completed"}
    # The engine is lost, then its worker.
    jobs = [caller.submit(held, engine=engine) for _ in range(3)]
    marks = [each.mark for each in jobs]
    engine.scripted.holding(*marks)
    engine.scripted.die()
    engine.scripted.holding(*marks)
    engine.kill_worker()
    engine.scripted.release(*marks)
    engine.feed()
    assert {each.ended()["attempt"] for each in jobs} == {0}
