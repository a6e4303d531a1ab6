import pytest

from jobs.states import ACTIVE, TERMINAL, TRANSITIONS, JobState, sources


def test_no_move_leaves_an_ended_job() -> None:
    assert {*TERMINAL} == {JobState.COMPLETED, JobState.FAILED, JobState.CANCELLED, JobState.EXPIRED}


def test_every_state_but_the_first_is_reached_by_some_move() -> None:
    reached = {target for _, target in TRANSITIONS.values()}
    assert set(JobState) - reached == {JobState.BLOCKED}


@pytest.mark.parametrize("state", sorted(ACTIVE))
def test_every_active_state_can_be_cancelled_and_can_expire(state: str) -> None:
    assert state in sources("cancel")
    assert state in sources("expire")
