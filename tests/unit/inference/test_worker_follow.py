"""Following a stream: what ends it, whatever else happens."""

import asyncio
import threading
from typing import Any

import pytest

from claiming.runs import begin, stray_run
from jobs.errors import EngineLostError, StreamTimeoutError
from jobs.prompts.thinking import ThinkingTags
from jobs.prompts.tokenizer import Tokenizer
from jobs.states import FinishReason, StopReason
from jobs.transitions import LeaseLost
from worker.engine.deadlines import Deadlines
from worker.engine.deltas import TokenDelta
from worker.engine.engine import StreamEnd
from worker.inference import follow as following
from worker.inference.answer import Answer
from worker.inference.outcome import Failed, Finished, RunEnd, Stopped
from worker.inference.run import Run, StopAsked

PATIENT = Deadlines(first_token=60, between_tokens=60, total=60)
PACE: Any = {"lease_seconds": 60, "snapshot_seconds": 5}
HASTY = Deadlines(first_token=0.05, between_tokens=0.05, total=60)


@pytest.fixture
def answer(tokenizer: Tokenizer) -> Answer:
    return Answer(tokenizer, max_tokens=3)


def follow(given: Run, answer: Answer, deadlines: Deadlines, **pace: object) -> RunEnd:
    return asyncio.run(following.follow(begin(given, answer), deadlines, **{**PACE, **pace}))


def wait_for_end(given: Run, *, seconds: float) -> bool:
    return asyncio.run(following.wait_for_end(given, seconds=seconds))


def running(*events: TokenDelta | StreamEnd | StopAsked, seconds: float = 60) -> Run:
    made = stray_run(seconds=seconds)
    for event in events:
        made.inbox.put(event)
    return made


def test_a_final_response_without_tokens_is_an_end_token(answer: Answer) -> None:
    given = running(TokenDelta([1000]), StreamEnd(None, confirmed=True))
    assert follow(given, answer, PATIENT) == RunEnd(Finished(FinishReason.STOP), engine_is_done=True)


def test_an_engine_that_ends_where_we_do_is_waited_for(answer: Answer, tokenizer: Tokenizer) -> None:
    ending = TokenDelta([1000, tokenizer.end_id]), StreamEnd(None, confirmed=True)
    whole = RunEnd(Finished(FinishReason.STOP), engine_is_done=True)
    assert follow(running(*ending), answer, PATIENT, ends_itself=True) == whole
    other = Answer(tokenizer, max_tokens=3)
    assert follow(running(*ending), other, PATIENT) == RunEnd(Finished(FinishReason.STOP))


def test_an_engine_is_not_waited_for_at_a_stop_string_that_it_was_not_told(tokenizer: Tokenizer) -> None:
    answer = Answer(tokenizer, max_tokens=50, stops=["enough"])
    answer.split_thinking(ThinkingTags("<think>", "</think>", {}), is_open=False)
    given = running(
        TokenDelta(tokenizer.encode_text("That is enough").tolist()),
        TokenDelta(tokenizer.encode_text(", but it goes on.").tolist()),
        StreamEnd(None, confirmed=True),
    )
    at_once = RunEnd(Finished(FinishReason.STOP))
    assert follow(given, answer, PATIENT, **PACE, ends_itself=True) == at_once


def test_as_many_tokens_as_were_asked_for_are_a_length(answer: Answer) -> None:
    given = running(TokenDelta([1000, 1001, 1002]), StreamEnd(None, confirmed=True))
    assert follow(given, answer, PATIENT) == RunEnd(Finished(FinishReason.LENGTH), engine_is_done=True)


def test_an_error_behind_the_last_token_changes_nothing(answer: Answer) -> None:
    given = running(TokenDelta([1000, 1001, 1002]), StreamEnd(EngineLostError(), confirmed=False))
    assert follow(given, answer, PATIENT) == RunEnd(Finished(FinishReason.LENGTH))


def test_an_error_before_it_fails_the_run(answer: Answer) -> None:
    error = EngineLostError()
    given = running(TokenDelta([1000]), StreamEnd(error, confirmed=False))
    assert follow(given, answer, PATIENT) == RunEnd(Failed(error))


@pytest.mark.parametrize("events", [[], [TokenDelta([1000])]])
def test_silence_past_a_deadline_fails_the_run(answer: Answer, events: list[TokenDelta]) -> None:
    end = follow(running(*events), answer, HASTY)
    assert isinstance(end.outcome, Failed)
    assert isinstance(end.outcome.error, StreamTimeoutError)
    assert not end.engine_is_done


def test_a_request_to_stop_ends_it_with_its_reason(answer: Answer) -> None:
    given = running(TokenDelta([1000]), StopAsked(StopReason.CANCEL), TokenDelta([1001]))
    assert follow(given, answer, PATIENT) == RunEnd(Stopped(StopReason.CANCEL))
    assert answer.num_tokens == 1


def test_a_lost_lease_ends_it(answer: Answer) -> None:
    assert follow(running(StopAsked(None)), answer, PATIENT) == RunEnd(LeaseLost())


def test_a_backlog_of_tokens_does_not_carry_it_past_its_lease(answer: Answer) -> None:
    given = running(TokenDelta([1000]), TokenDelta([1001]), StreamEnd(None, confirmed=True), seconds=-1)
    assert follow(given, answer, PATIENT) == RunEnd(LeaseLost())
    assert answer.num_tokens == 0


def test_an_event_from_another_thread_wakes_the_run_that_waits(answer: Answer) -> None:
    given = running()

    async def meanwhile() -> RunEnd:
        run = asyncio.create_task(following.follow(begin(given, answer), PATIENT, **PACE))
        await asyncio.to_thread(given.inbox.put, TokenDelta([1000]))
        await asyncio.to_thread(given.inbox.put, StopAsked(StopReason.CANCEL))
        return await run

    assert asyncio.run(meanwhile()) == RunEnd(Stopped(StopReason.CANCEL))
    assert answer.num_tokens == 1


def test_a_thousand_runs_share_one_thread(tokenizer: Tokenizer) -> None:
    given = [running() for _ in range(1000)]

    async def feed() -> None:
        for each in given:
            each.inbox.put(TokenDelta([1000]))
            each.inbox.put(StreamEnd(None, confirmed=True))

    async def all_of_them() -> list[RunEnd]:
        before = threading.active_count()
        runs = [
            asyncio.create_task(
                following.follow(begin(each, Answer(tokenizer, max_tokens=3)), PATIENT, **PACE)
            )
            for each in given
        ]
        await asyncio.create_task(feed())  # which begins when all of them wait
        ends = await asyncio.gather(*runs)
        assert threading.active_count() == before
        return ends

    assert asyncio.run(all_of_them()) == [RunEnd(Finished(FinishReason.STOP), engine_is_done=True)] * 1000


def test_waiting_for_the_end_drops_what_else_comes() -> None:
    assert wait_for_end(running(TokenDelta([1]), StopAsked(None), StreamEnd(None, confirmed=True)), seconds=5)
    assert not wait_for_end(running(TokenDelta([1])), seconds=0.01)
