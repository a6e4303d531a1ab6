"""One job that nobody can run or record fails alone: what runs beside it and after it does not notice."""

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import text
from sqlalchemy.orm import Session, sessionmaker

from claiming.runs import begin
from jobs.checkpoints import Output
from jobs.database import transaction
from jobs.errors import EngineError
from jobs.models import Job, JsonObject
from jobs.prompts.tokenizer import Tokenizer
from jobs.settings import Settings
from jobs.starting import Claim
from jobs.states import FinishReason, JobState
from support import claim_one, register_engine, submit_one
from worker.inference.answer import Answer
from worker.inference.desk import Desk
from worker.inference.leases import LeaseKeeper
from worker.inference.outcome import Failed, Finished, Outcome, RunEnd
from worker.inference.record import Recorder
from worker.inference.run import Run
from worker.inference.tensors.outputs import OutputFiles
from worker_support import Queue, running_worker

HOT: JsonObject = {"temperature": 1.0}


@pytest.mark.parametrize(
    ("sampling", "message"),
    [
        (HOT | {"top_k": 2**70}, "a value of the request cannot be sent to the engine"),
        (HOT | {"top_p": 2.0}, "[TensorRT-LLM][ERROR] Assertion failed: topP is 2.0 (samplingConfig.cpp)"),
    ],
)
def test_a_value_that_no_engine_takes_fails_its_job_at_once_and_alone(
    queue: Queue, feeding: Callable[..., Settings], sampling: JsonObject, message: str
) -> None:
    with running_worker(feeding(), queue.tokenizer) as worker:
        beside = queue.submit("Go on.", max_tokens=2000)
        queue.streaming(beside)
        model = worker.monitor.model
        bad = queue.ended(queue.submit("Never.", sampling=sampling))
        assert worker.monitor.model is model, "nobody doubts the engine"
        good = queue.ended(beside)
    assert (bad.state, bad.attempt, bad.num_rescues) == ("failed", 0, 0)
    assert bad.error == {"code": "engine_error", "message": message}
    assert (good.state, good.num_rescues) == ("completed", 0)


def test_a_prompt_that_cannot_be_read_fails_its_job_alone(
    queue: Queue, feeding: Callable[..., Settings]
) -> None:
    broken = queue.submit("Broken.", max_tokens=5)
    with transaction(queue.sessions) as session:
        session.execute(text("UPDATE texts SET token_ids = 'not compressed', body = 'neither'"))
    whole = [queue.submit(f"Whole {number}.", max_tokens=400) for number in range(8)]
    with running_worker(feeding(max_attempts=2), queue.tokenizer):
        assert {queue.ended(job_id).state for job_id in whole} == {"completed"}
        job = queue.ended(broken)
    assert (job.state, job.attempt, job.num_rescues) == ("failed", 2, 0)
    assert job.error is not None
    assert job.error["code"] == "internal_error"


class Unstorable(Answer):
    """An answer whose text no row can hold."""

    def output(self) -> Output:
        return Output(text="a\x00b", ids=(5, 6, 7), num_tokens=2)


def recorded(
    sessions: sessionmaker[Session], settings: Settings, tokenizer: Tokenizer, outcome: Outcome
) -> Job:
    """The job after the end of a run was recorded once, in less time than a retry takes."""
    with transaction(sessions) as session:
        register_engine(session)
        submit_one(session)
        claim: Claim = claim_one(session)
    run = begin(Run(claim, time.monotonic() + 60), Unstorable(tokenizer, max_tokens=64))
    stopping = threading.Event()
    stopping.set()  # a retry would give up
    keeper = LeaseKeeper(sessions, settings.jobs)
    desk = Desk(settings, sessions, stopping=stopping)
    desk.wake = lambda: desk.tick(None)
    with ThreadPoolExecutor(1) as threads:
        recorder = Recorder(
            desk, keeper, lambda _: None, lambda _: None, threads, stopping, OutputFiles(sessions)
        )
    end = RunEnd(outcome, engine_is_done=True)
    asyncio.run(recorder.end(run, end))
    with sessions() as session:
        return session.get_one(Job, claim.job.id)


def test_an_answer_that_cannot_be_stored_fails_its_job_at_once(
    sessions: sessionmaker[Session], feeding: Callable[..., Settings], tokenizer: Tokenizer
) -> None:
    job = recorded(sessions, feeding(), tokenizer, Finished(FinishReason.STOP))
    assert (job.state, job.error) == (
        JobState.FAILED,
        {"code": "internal_error", "message": "The answer cannot be stored."},
    )


def test_an_engine_s_words_with_nul_and_half_a_character_are_stored_without_them(
    sessions: sessionmaker[Session], feeding: Callable[..., Settings], tokenizer: Tokenizer
) -> None:
    job = recorded(sessions, feeding(), tokenizer, Failed(EngineError("no\x00 \ud800!")))
    assert job.error is not None
    assert job.state == JobState.FAILED
