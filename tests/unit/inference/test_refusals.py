"""What refusals with status 403 prove."""

import pytest

from jobs.ids import uuid7
from worker.inference.refusals import Refusals

BAD, OTHER, GOOD = uuid7(), uuid7(), uuid7()


@pytest.mark.parametrize(
    ("happens", "is_proof"),
    [
        ([], False),
        ([("refused", BAD)], False),
        ([("answered", GOOD)], False),
        ([("answered", GOOD), ("refused", BAD)], False),
        ([("refused", BAD), ("answered", GOOD)], True),
        ([("refused", BAD), ("answered", BAD), ("answered", GOOD)], False),
        ([("refused", OTHER), ("refused", BAD), ("answered", GOOD)], True),
        ([("refused", BAD), ("refused", OTHER), ("answered", GOOD)], False),
        ([("refused", BAD), ("answered", GOOD), ("refused", OTHER)], False),
    ],
)
def test_only_an_answer_to_another_job_and_no_other_refusal_since_the_last_one_is_proof(
    *, happens: list[tuple[str, object]], is_proof: bool
) -> None:
    refusals = Refusals()
    for verb, job_id in happens:
        getattr(refusals, verb)(job_id)
    assert refusals.refused(BAD) == is_proof


def test_several_forbidden_prompts_among_good_ones_do_not_hide_each_other_for_ever() -> None:
    refusals = Refusals()
    proofs = []
    for _ in range(5):
        proofs.append((refusals.refused(BAD), refusals.refused(OTHER)))
        refusals.answered(GOOD)
    assert proofs[-1] == (True, True)
    assert proofs[:3] == [(False, False)] * 3


def test_an_engine_that_answers_no_job_proves_nothing_however_often_it_refuses() -> None:
    refusals = Refusals()
    assert not any(refusals.refused(each) for _ in range(10) for each in (BAD, OTHER, GOOD))
