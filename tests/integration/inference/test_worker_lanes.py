"""Somebody waits for an answer while four long jobs fill the engine, and reads it as it comes."""

from collections.abc import Callable
from contextlib import closing
from functools import partial
from typing import Any
from uuid import UUID

from cli.stack.servers.valkey import EmbeddedValkey
from jobs import doorbell, live_output
from jobs.live_output import Delta
from jobs.scheduling.packing import PackingPolicy
from jobs.settings import Settings
from jobs.states import Lane
from support import eventually
from worker_support import Queue, running_worker

LONG = "A long story, number {}. [[tokens=3000]]"


def test_an_interactive_job_is_answered_while_four_long_ones_run_and_all_complete(
    queue: Queue, feeding: Callable[..., Settings]
) -> None:
    with running_worker(feeding(), queue.tokenizer):
        undisturbed = queue.submit(LONG.format(0), max_tokens=4000)
        queue.ended(undisturbed)
        long = [queue.submit(LONG.format(number), max_tokens=4000) for number in range(4)]
        for each in long:
            queue.when(each, lambda job: job.completion_tokens > PackingPolicy().preempt_after)
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
    assert queue.result_ids(long[0]) == queue.result_ids(undisturbed)
    assert queue.reservations() == []


def pieces_of(valkey: EmbeddedValkey, job_id: UUID) -> list[Delta]:
    with closing(doorbell.connect(valkey.url, socket_timeout=5)) as broker:
        entries: Any = broker.xrange(live_output.stream_key(job_id))
        return [live_output.decode(fields) for _, fields in entries]


def test_the_published_deltas_add_up_to_the_result(
    queue: Queue, feeding: Callable[..., Settings], valkey: EmbeddedValkey
) -> None:
    with running_worker(feeding(), queue.tokenizer):
        told = [
            queue.submit("Say something. [[tokens=300]]", max_tokens=400, lane=Lane.INTERACTIVE),
            queue.submit(
                "日本語 and 🙂. [[tokens=300]]",
                max_tokens=400,
                sampling={"stop": ["every word"]},
                lane=Lane.INTERACTIVE,
            ),
        ]
        for each in told:
            queue.ended(each)
        deltas = [eventually(partial(_when_whole, valkey, each)) for each in told]
    for job_id, found in zip(told, deltas, strict=True):
        result = queue.result(job_id)
        assert result is not None
        assert "".join(delta.text for delta in found) == result.output
        assert [delta.at for delta in found] == [
            sum(len(delta.text) for delta in found[:place]) for place in range(len(found))
        ]
    assert len(deltas[0]) > 10
    assert deltas[0][-1].num_tokens == 300


def _when_whole(valkey: EmbeddedValkey, job_id: UUID) -> list[Delta]:
    found = pieces_of(valkey, job_id)
    return found if found and found[-1].is_last else []
