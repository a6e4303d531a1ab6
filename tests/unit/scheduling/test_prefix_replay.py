"""What an engine is believed to have of ended jobs, and how its reports correct that."""

from dataclasses import replace
from itertools import count
from uuid import UUID

from jobs.engines.capacity import Capacity
from jobs.scheduling.packing import Family, Reserved
from jobs.scheduling.prefixes.prefix_replay import Answered, PrefixReplay

CAPACITY = Capacity(
    max_batch_size=4, max_blocks=100, tokens_per_block=10, max_input_len=900, max_seq_len=1000
)
BLOCKS = 30  # of each document; three fit
LEASES = (UUID(int=number) for number in count(1))


def run(
    replay: PrefixReplay,
    document: int,
    *,
    expected: int = 0,
    found: int | None = None,
    answered: dict[UUID, Answered] | None = None,
) -> None:
    """A job about a document starts and ends, with others."""
    family, lease_id = Family(UUID(int=0), bytes([document])), next(LEASES)
    job = Reserved(lease_id, BLOCKS, 1, output_tokens=1, family=family, reserved_blocks=BLOCKS, has_read=True)
    replay.start(lease_id, replace(job, text_id=UUID(int=document)), reused_tokens=expected)
    replay.observe({}, capacity=CAPACITY, answered={lease_id: Answered(1, found)} | (answered or {}))


def believed(replay: PrefixReplay) -> list[int]:
    return [family.digest[0] for family in replay.ended()]


def test_the_least_recently_used_document_goes_first() -> None:
    replay = PrefixReplay()
    for document in (1, 2, 3, 1, 4):
        run(replay, document)
    assert believed(replay) == [4, 1, 3]


def test_what_was_used_before_a_document_that_is_gone_is_gone_too() -> None:
    replay = PrefixReplay()
    for document in (1, 2, 3):
        run(replay, document)
    beside = next(LEASES)
    replay.start(beside, Reserved(beside, 40, 1, output_tokens=401))  # it reserves what the others leave
    run(replay, 2, expected=290, found=280, answered={beside: Answered(1)})
    assert believed(replay) == [2, 3]


def test_a_cache_that_holds_less_than_the_pool_is_noticed_until_it_holds_more() -> None:
    replay = PrefixReplay()
    for document in (1, 2, 3):
        run(replay, document)
    run(replay, 2, expected=290, found=0)
    assert believed(replay) == [2], "of two documents only one fits"
    run(replay, 3, found=0)
    assert believed(replay) == [3]
    for _ in range(8):
        run(replay, 1, found=290)
        run(replay, 2, found=290)
    assert len(believed(replay)) > 1


def test_an_engine_that_reports_nothing_is_believed_to_have_what_ran() -> None:
    replay = PrefixReplay()
    for document in (1, 2, 3, 1):
        run(replay, document, expected=290 if document in believed(replay) else 0)
    assert believed(replay) == [1, 3, 2]


def test_a_follower_postpones_a_job_by_what_it_generated_once_it_has_ended() -> None:
    replay, head = PrefixReplay(), UUID(int=7)
    answered, cancelled = next(LEASES), next(LEASES)
    for lease_id in (answered, cancelled):
        replay.postpone(head, 512.0)
        job = Reserved(lease_id, 30, 1, output_tokens=3000)
        replay.start(lease_id, job, postpones=head, likely_tokens=2048)
    assert replay.postponed == {head: 1024.0}
    replay.observe({}, capacity=CAPACITY, answered={answered: Answered(48)})
    assert replay.postponed == {head: 524.0}, "what the other one took is not known"
    replay.recall({head: 1024.0, UUID(int=8): 3.0})
    assert replay.postponed == {head: 524.0, UUID(int=8): 3.0}
