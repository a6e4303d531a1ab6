"""A claimed job that gets no thread returns to the queue."""

from collections.abc import Callable

from jobs.settings import Settings
from worker_support import Queue, running_worker


def test_a_claimed_job_that_gets_no_thread_goes_back_to_the_queue(
    queue: Queue, feeding: Callable[..., Settings]
) -> None:
    with running_worker(feeding(claim_poll_seconds=5.0), queue.tokenizer) as worker:
        worker.dispatcher._slots.shutdown()
        job_id = queue.submit("Nobody has a thread for this.")
        worker.dispatcher.loop.wake()
        queue.when(job_id, lambda job: job.started_at is not None and job.state == "queued")
        assert queue.reservations() == []
        assert worker.keeper.running() == []
