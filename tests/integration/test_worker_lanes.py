"""Somebody waits for an answer while four long jobs fill the engine."""

from collections.abc import Callable
from uuid import UUID

from jobs.packing import Rules
from jobs.settings import Settings
from jobs.states import Lane
from jobs.tokens import unpack_ids
from worker_support import Queue, running_worker

LONG = "A long story, number {}. [[tokens=3000]]"


def ids_of(queue: Queue, job_id: UUID) -> list[int]:
    result = queue.result(job_id)
    assert result is not None
    return unpack_ids(result.output_ids).tolist()


def test_an_interactive_job_is_answered_while_four_long_ones_run_and_all_complete(
    queue: Queue, feeding: Callable[..., Settings]
) -> None:
    with running_worker(feeding(), queue.tokenizer):
        undisturbed = queue.submit(LONG.format(0), max_tokens=4000)
        queue.ended(undisturbed)
        long = [queue.submit(LONG.format(number), max_tokens=4000) for number in range(4)]
        for each in long:
            queue.when(each, lambda job: job.completion_tokens > Rules().preempt_after)
        asking = queue.submit("A question. [[tokens=20]]", lane=Lane.INTERACTIVE)
        answered = queue.ended(asking)
        left = [queue.job(each) for each in long]
        ended = [queue.ended(each) for each in long]
    assert (answered.finish_reason, answered.completion_tokens) == ("stop", 20)
    assert all(job.finalized_at is None for job in left)
    assert sum(job.num_preemptions for job in ended) == 1
    assert [(job.finish_reason, job.completion_tokens, job.attempt) for job in ended] == [
        ("stop", 3000, 0)
    ] * 4
    assert ids_of(queue, long[0]) == ids_of(queue, undisturbed)
    assert queue.bookings() == []
