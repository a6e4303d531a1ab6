"""What refusals prove."""

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from uuid import UUID

import pytest

from jobs.errors import EngineBusyError, EngineError, EngineForbidsError, EngineMisconfiguredError
from jobs.ids import uuid7
from worker.inference.refusals import Patience, Refusals, Verdict

BAD, OTHER, GOOD = uuid7(), uuid7(), uuid7()
PATIENCE = Patience(tries=4, span=timedelta(seconds=30))


@dataclass
class Evidence:
    """What a worker sees of its engine; ten seconds pass with each refusal."""

    error: Callable[[], EngineError] = EngineForbidsError
    refusals: Refusals = field(default_factory=lambda: Refusals(PATIENCE))
    now: float = 0.0
    num_probes: int = 0

    def refused(self, job_id: UUID) -> bool:
        return self.judge(job_id) is Verdict.PROMPT

    def judge(self, job_id: UUID) -> Verdict:
        self.now += 10
        return self.refusals.refused(job_id, self.error(), now=self.now, num_probes=self.num_probes)

    def answered(self, job_id: UUID) -> None:
        self.refusals.answered(job_id)

    def probed(self) -> None:
        self.num_probes += 1


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
    *, happens: list[tuple[str, UUID]], is_proof: bool
) -> None:
    evidence = Evidence()
    for verb, job_id in happens:
        getattr(evidence, verb)(job_id)
    assert evidence.refused(BAD) == is_proof


def test_several_forbidden_prompts_among_good_ones_do_not_hide_each_other_for_ever() -> None:
    evidence = Evidence()
    proofs = []
    for _ in range(5):
        proofs.append((evidence.refused(BAD), evidence.refused(OTHER)))
        evidence.answered(GOOD)
    assert proofs[-1] == (True, True)
    assert proofs[:3] == [(False, False)] * 3


def test_an_engine_that_answers_no_job_proves_nothing_however_often_it_refuses() -> None:
    evidence = Evidence()
    assert not any(evidence.refused(each) for _ in range(10) for each in (BAD, OTHER, GOOD))


def test_an_engine_that_answers_probes_alone_fails_no_job_of_several_however_long_it_does() -> None:
    evidence = Evidence()
    for _ in range(50):
        for each in (BAD, OTHER, GOOD):
            evidence.probed()
            assert evidence.judge(each) is Verdict.ENGINE


def test_a_403_in_an_idle_queue_is_about_the_prompt_after_answered_probes_for_a_while() -> None:
    evidence = Evidence()
    verdicts = []
    for _ in range(10):
        verdicts.append(evidence.refused(BAD))
        evidence.probed()
    # Four probes before the fifth refusal; the evidence for the next attempt begins anew.
    assert [number for number, is_proof in enumerate(verdicts, start=1) if is_proof] == [5, 9]


def test_refusals_without_a_probe_between_them_prove_nothing_and_forget_nothing() -> None:
    evidence = Evidence()
    for _ in range(20):
        assert not evidence.refused(BAD)
    for _ in range(3):
        evidence.probed()
        assert not evidence.refused(BAD)
    evidence.probed()
    assert evidence.refused(BAD)


def test_many_probes_in_a_short_time_prove_nothing() -> None:
    evidence = Evidence(refusals=Refusals(Patience(tries=4, span=timedelta(hours=1))))
    for _ in range(300):
        evidence.probed()
        assert not evidence.refused(BAD)


@pytest.mark.parametrize("error", [EngineBusyError, EngineForbidsError])
def test_a_job_that_the_engine_answers_in_between_begins_anew(error: type[EngineError]) -> None:
    evidence = Evidence(error)
    for _ in range(30):
        evidence.refused(BAD)
        evidence.probed()
        assert not evidence.refused(BAD)
        evidence.answered(BAD)


def test_a_job_put_off_each_time_while_others_are_answered_is_told_from_a_busy_engine() -> None:
    evidence = Evidence(EngineBusyError)
    verdicts = []
    for _ in range(10):
        verdicts.append(evidence.judge(BAD))
        evidence.answered(GOOD)
    waiting = [Verdict.PERHAPS_PROMPT] * 3
    assert verdicts == [Verdict.ENGINE, *waiting, Verdict.PROMPT, *waiting, Verdict.PROMPT, waiting[0]]


def test_two_prompts_put_off_among_good_ones_do_not_hide_each_other_for_ever() -> None:
    evidence = Evidence(EngineBusyError)
    proofs = []
    for _ in range(12):
        proofs.append((evidence.refused(BAD), evidence.refused(OTHER)))
        evidence.answered(GOOD)
    assert all(any(each) for each in zip(*proofs, strict=True))


def test_an_engine_that_puts_jobs_off_by_chance_costs_none_an_attempt() -> None:
    evidence = Evidence(EngineBusyError)
    for _ in range(50):
        assert not evidence.refused(BAD)
        evidence.answered(GOOD)
        assert not evidence.refused(uuid7())


def test_an_engine_that_puts_the_only_job_off_is_not_believed_to_mean_it_whatever_probes_say() -> None:
    evidence = Evidence(EngineBusyError)
    for _ in range(50):
        evidence.probed()
        assert evidence.judge(BAD) is Verdict.ENGINE


def test_a_wrong_key_is_about_the_engine_whatever_other_jobs_get() -> None:
    evidence = Evidence(EngineMisconfiguredError)
    for _ in range(50):
        evidence.answered(GOOD)
        evidence.probed()
        assert evidence.judge(BAD) is Verdict.ENGINE
