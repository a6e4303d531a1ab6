from uuid import UUID

import pytest

from jobs.forecast.backlog import QueueDepth, SampledJob, WorkAhead, of
from jobs.forecast.engine_speed import reading_work
from jobs.states import Lane

ONE, OTHER = UUID(int=1), UUID(int=2)


def marks(
    numbers: list[int], *, tenant: UUID = ONE, lane: Lane = Lane.BATCH, weight: float = 1, tokens: int = 100
) -> list[SampledJob]:
    return [SampledJob(lane, tenant, 0, UUID(int=number), number, tokens, weight) for number in numbers]


def ahead(depth: QueueDepth, number: int, *, lane: Lane = Lane.BATCH, rank: int = 0) -> WorkAhead:
    return depth.ahead(UUID(int=number), lane=lane, tenant_id=ONE, rank=rank)


def test_a_known_job_has_as_many_before_it_as_there_are() -> None:
    depth = of(marks([1, 2, 3, 4]))
    assert [ahead(depth, number).num_jobs for number in (1, 2, 4)] == [0, 1, 3]
    assert ahead(depth, 4).reading == pytest.approx(3 * reading_work(100))


def test_between_marks_the_id_says_how_far() -> None:
    depth = of(marks([1, 257, 513]))
    assert ahead(depth, 257).num_jobs == 256
    assert ahead(depth, 385).num_jobs == pytest.approx(384, abs=1)


def test_a_job_that_came_since_is_last() -> None:
    assert ahead(of(marks([1, 2, 3])), 99).num_jobs == 3


def test_a_higher_priority_goes_first() -> None:
    assert ahead(of(marks([1, 2, 3])), 99, rank=1).num_jobs == 0


def test_tenants_take_turns_by_their_weights() -> None:
    other = marks(list(range(1, 101)), tenant=OTHER, weight=3)
    depth = of([*marks(list(range(1, 101))), *other])
    assert ahead(depth, 11).num_jobs == 10 + 30
    assert ahead(depth, 91).num_jobs == 90 + 100
    few = of([*marks(list(range(1, 101))), *marks([1, 2], tenant=OTHER)])
    assert ahead(few, 91).num_jobs == 90 + 2


def test_the_interactive_lane_is_ahead_of_the_batch_lane_alone() -> None:
    depth = of([*marks([1, 2]), *marks([1, 2, 3], lane=Lane.INTERACTIVE, tenant=OTHER)])
    assert ahead(depth, 2).num_jobs == 1 + 3
    assert ahead(depth, 9, lane=Lane.INTERACTIVE).num_jobs == 0


def test_an_empty_queue_has_nothing_ahead() -> None:
    assert ahead(of([]), 1).num_jobs == 0
