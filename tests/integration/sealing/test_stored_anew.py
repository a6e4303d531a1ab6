"""Content under a key that is gone does not spoil equal requests that come later: they bring it again."""

from datetime import timedelta
from uuid import UUID

import pytest
from sqlalchemy import select, type_coerce
from sqlalchemy.orm import Session, sessionmaker
from sqlalchemy.types import LargeBinary

import ending
from jobs.database import transaction
from jobs.models import DEFAULT_TENANT, Job, PromptText
from jobs.prompts import store
from jobs.sealing.content import key_name
from jobs.sharing import Sharing
from jobs.states import FinishReason
from jobs.submission.job_specs import JobSpec
from jobs.tenants import isolation
from sealed.sealers import OPENS, SEALS, Connect
from support import claim_one, output_of, prepare_all, register_engine, spec, submit_one

Sessions = sessionmaker[Session]

ASKED = "What was asked before?"
OURS = key_name(SEALS.seal_bytes(b"", ""))


def submitted(sessions: Sessions, given: JobSpec) -> UUID:
    with transaction(sessions) as session:
        isolation.enter(session, [DEFAULT_TENANT])  # as the API
        return submit_one(session, given).id


def states(sessions: Sessions) -> list[str]:
    with sessions() as session:
        return list(session.scalars(select(Job.state).order_by(Job.id)))


@pytest.mark.parametrize("num_tokens", [None, 100])
def test_a_prompt_that_comes_again_can_be_read_again(
    sealed: Sessions, otherwise: Sessions, num_tokens: int | None
) -> None:
    given = spec(num_tokens, prompt=ASKED)
    for sessions in (otherwise, sealed):
        submitted(sessions, given)
    prepare_all(sealed)
    assert states(sealed) == ["queued", "queued"]
    with sealed() as session:
        assert store.load(session, session.scalars(select(PromptText.id)).one()).canonical == ASKED


def test_a_prompt_that_can_be_read_stays_as_it_is(connect: Connect, sealed: Sessions) -> None:
    stored: list[bytes] = []
    for each in (sealed, connect(OPENS)):
        submitted(each, spec(prompt=ASKED))
        with each() as session:
            stored += session.scalars(select(type_coerce(PromptText.body, LargeBinary)))
    assert stored[0] == stored[1]
    assert key_name(stored[0]) == OURS


@pytest.mark.parametrize(("under", "state"), [("sealed", "completed"), ("otherwise", "queued")])
def test_a_result_that_cannot_be_read_answers_no_equal_request(
    sealed: Sessions, otherwise: Sessions, under: str, state: str
) -> None:
    given = spec(prompt=ASKED, sharing=Sharing(timedelta(hours=1)))
    with transaction(sealed) as session:
        register_engine(session)
    submitted(sealed, given)
    with transaction({"sealed": sealed, "otherwise": otherwise}[under]) as session:
        lease = claim_one(session).lease
        assert ending.complete(session, lease, output_of("said"), FinishReason.STOP)
    submitted(sealed, given)
    assert states(sealed) == ["completed", state]
