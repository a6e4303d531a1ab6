"""Jobs that sample: each draws for itself, a seed repeats a draw, and each segment has a seed of its own."""

from collections.abc import Callable

import pytest

from jobs.ids import uuid7
from jobs.models import Job, JsonObject
from jobs.prompts.messages import Message
from jobs.prompts.tokenizer import ensure_default_tokenizer
from jobs.settings import Settings
from local_engine import engine_module
from worker.inference.sampling import sampling_of
from worker_support import Queue, running_worker

HOT: JsonObject = {"temperature": 1.0}
LONG = "Go on for long."
DOCUMENT = "A document to be summarized. [[tokens=40]]"


def job_of(**fields: object) -> Job:
    return Job(**({"id": uuid7(), "attempt": 0, "sampling": HOT} | fields))


def seed(job: Job, start: int = 0) -> int | None:
    return sampling_of(job, start=start, max_tokens=100).seed


def test_equal_prompts_without_a_seed_get_different_answers_and_with_one_the_same(
    queue: Queue, feeding: Callable[..., Settings]
) -> None:
    def answers(sampling: JsonObject) -> list[str]:
        job_ids = [queue.submit(DOCUMENT, max_tokens=100, sampling=sampling) for _ in range(8)]
        assert {queue.ended(job_id).state for job_id in job_ids} == {"completed"}
        results = [queue.result(job_id) for job_id in job_ids]
        return [result.output for result in results if result is not None]

    with running_worker(feeding(), queue.tokenizer):
        assert len(set(answers(HOT))) > 1
        assert len(set(answers(HOT | {"seed": 7}))) == 1
        assert len(set(answers({}))) == 1
        assert len(set(answers({"top_p": 0.9}))) == 1


def test_a_segment_after_the_first_draws_by_the_seed_that_follows_from_the_job_s(
    queue: Queue, feeding: Callable[..., Settings]
) -> None:
    with running_worker(feeding(), queue.tokenizer):
        job_id = queue.submit(LONG, max_tokens=2200, sampling=HOT | {"seed": 7})
        job = queue.streaming(job_id)
        (reserved,) = queue.reservations()
        queue.ended(job_id)
    said, cut = queue.result_ids(job_id), reserved.output_tokens
    assert 0 < cut < len(said) == 2200
    assert said[:cut] == spoken(queue, seed=7)[:cut]
    following = seed(job, cut)
    assert following not in (7, None)
    assert said[cut:] == spoken(queue, seed=following)[cut:2200]


def spoken(queue: Queue, *, seed: int | None) -> list[int]:
    """What the synthetic engine says from the beginning on to a request with this seed."""
    speech, synthetic = engine_module("speech"), engine_module("synthetic")
    prompt = queue.tokenizer.encode_messages([Message("user", LONG)])
    ask = speech.Ask(ids=prompt, max_tokens=1, seed=seed, temperature=1.0)
    speaker = synthetic.SyntheticSpeaker(ensure_default_tokenizer(), synthetic.OutputLength())
    prepared = speech.prepare(speaker, ask)
    return [prepared.token(index) for index in range(2200)]


def test_every_job_attempt_and_segment_has_a_seed_of_its_own_that_any_worker_derives() -> None:
    job = job_of()
    places = [(job, 0), (job, 64), (job_of(id=job.id, attempt=1), 0), (job_of(), 0)]
    assert len({seed(each, start) for each, start in places}) == len(places)
    again = job_of(id=job.id)
    assert [seed(again, start) for start in (0, 64)] == [seed(job, start) for start in (0, 64)]
    assert 0 <= (seed(job) or -1) < 2**63


def test_a_caller_s_seed_is_sent_as_it_is_and_its_later_segments_depend_on_it_alone() -> None:
    seven = HOT | {"seed": 7}
    one, other = job_of(sampling=seven), job_of(sampling=seven, attempt=2)
    assert seed(one) == seed(other) == 7
    eight = job_of(sampling=HOT | {"seed": 8})
    assert seed(one, 64) == seed(other, 64)
    assert len({7, seed(one, 64), seed(one, 128), seed(eight, 64)}) == 4


@pytest.mark.parametrize("sampling", [{}, {"temperature": 0}, {"temperature": 1.0, "top_k": 1}])
def test_a_greedy_job_has_no_seed_but_its_caller_s(sampling: JsonObject) -> None:
    assert seed(job_of(sampling=sampling)) is None
    assert seed(job_of(sampling=sampling | {"seed": 5}), 64) == 5
