"""A worker sends requests before their jobs are claimed: they are taken over, or stopped."""

from collections.abc import Callable

import pytest
from sqlalchemy import select

from jobs.database import transaction
from jobs.models import Job
from jobs.settings import Settings
from support import eventually
from worker.metrics.process import ProcessMetrics
from worker_support import ENGINE, Queue, running_worker

NUM_SLOTS = 4


def counted(metrics: ProcessMetrics, outcome: str) -> float:
    labels = {"engine": ENGINE, "outcome": outcome}
    return metrics.registry.get_sample_value("longbatch_head_starts_total", labels) or 0


@pytest.mark.parametrize("sampling", [{}, {"temperature": 0.8, "seed": 7}])
def test_answers_are_the_same_with_head_starts_and_without(
    queue: Queue, feeding: Callable[..., Settings], sampling: dict[str, object]
) -> None:
    answers = []
    for head_starts in (True, False):
        metrics = ProcessMetrics()
        texts = [f"Number {number}. [[tokens={150 + 20 * (number % 5)}]]" for number in range(20)]
        asked = [queue.submit(text, max_tokens=300, sampling=sampling) for text in texts]
        with running_worker(feeding(head_starts=head_starts), queue.tokenizer, metrics=metrics):
            jobs = [queue.ended(each) for each in asked]
        assert {(job.state, job.attempt, job.num_rescues) for job in jobs} == {("completed", 0, 0)}
        answers.append([queue.result_ids(each) for each in asked])
        assert (counted(metrics, "taken") > 0) is head_starts
        assert queue.reservations() == []
    assert answers[0] == answers[1]


def test_a_request_whose_job_cannot_be_claimed_is_stopped_and_leaves_nothing(
    queue: Queue, feeding: Callable[..., Settings]
) -> None:
    metrics = ProcessMetrics()
    running = [
        queue.submit(f"{number}. [[tokens={1200 + 100 * number}]]", max_tokens=2000)
        for number in range(NUM_SLOTS)
    ]
    with running_worker(feeding(), queue.tokenizer, metrics=metrics):
        for each in running:
            queue.streaming(each)
        waiting = queue.submit("The last. [[tokens=100]]", max_tokens=200)
        with transaction(queue.sessions) as holding:
            holding.scalars(select(Job).where(Job.id == waiting).with_for_update()).one()
            eventually(lambda: counted(metrics, "stopped"))
            for each in running:
                queue.ended(each)
            eventually(lambda: queue.reservations() == [])
            assert queue.job(waiting).state == "queued"
        job = queue.ended(waiting)
    assert (job.state, job.completion_tokens, job.attempt) == ("completed", 100, 0)
    assert queue.reservations() == []
