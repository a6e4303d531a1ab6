"""Summaries are planned in turns: no document, however long it takes to cut, keeps others waiting."""

from dataclasses import replace
from datetime import timedelta

import numpy as np
import numpy.typing as npt
import pytest
from sqlalchemy import Engine, QueuePool, func, select, update
from sqlalchemy.orm import Session, sessionmaker

from document_support import LEASE, claim_one, upload
from jobs import database, documents, turns
from jobs.database import transaction
from jobs.documents import extraction
from jobs.models import DEFAULT_TENANT, Job, Summary
from jobs.models.document import Document
from jobs.models.turn import PLANNING, TenantTurn
from jobs.settings import DatabaseSettings, LimitSettings
from jobs.states.document import DocumentErrorCode, DocumentState
from jobs.summaries.planning import Planning, PlanningTools
from summary_support import SMALL, Words, create, plan_next, ready_document, text_of
from support import register_engine, runner_of


def states(sessions: sessionmaker[Session]) -> list[str]:
    with sessions() as session:
        return list(session.scalars(select(Summary.state).order_by(Summary.id)))


class ConnectionWatch(Words):
    """Notes how many connections are in use while it counts."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.in_use: set[int] = set()

    def count_text(self, text: str) -> int:
        pool = self._engine.pool
        assert isinstance(pool, QueuePool)
        self.in_use.add(pool.checkedout())
        return super().count_text(text)


def test_no_transaction_is_open_while_a_document_is_cut(
    sessions: sessionmaker[Session], database_settings: DatabaseSettings
) -> None:
    with transaction(sessions) as session:
        register_engine(session, capacity=SMALL)
        document = ready_document(session, text_of(400))
        document.fingerprint = "another tokenizer"
        create(session, document)
    engine = database.make_engine(database_settings, pool_size=2)
    counter = ConnectionWatch(engine)
    work = Planning(PlanningTools(counter, SMALL, LimitSettings()))
    runner = runner_of(database.make_sessions(engine))
    assert len(runner.run_some(work, limit=5)) == 1
    engine.dispose()
    assert (counter.in_use, states(sessions)) == ({0}, ["running"])


def test_a_summary_whose_planning_loses_three_workers_fails_alone(sessions: sessionmaker[Session]) -> None:
    with transaction(sessions) as session:
        register_engine(session, capacity=SMALL)
        create(session, ready_document(session, text_of(400)))
        create(session, ready_document(session, text_of(100)))
    for attempt in (1, 2, 3):
        with transaction(sessions) as session:
            turn = turns.claim(session, PLANNING, lease=LEASE)  # and its worker is killed
            assert turn is not None
            assert turn.attempt == attempt
            lost = update(Summary).where(Summary.id == turn.row_id)
            session.execute(lost.values(lease_expires_at=func.clock_timestamp()))
    while plan_next(sessions):
        pass
    assert states(sessions) == ["failed", "running"]
    with sessions() as session:
        error = session.scalars(select(Summary.error).where(Summary.state == "failed")).one()
    assert error is not None
    assert error["code"] == "planning_failed"


@pytest.mark.parametrize("end", ["fail", "delete"])
def test_the_end_of_its_last_document_wakes_a_summary(sessions: sessionmaker[Session], end: str) -> None:
    with transaction(sessions) as session:
        register_engine(session, capacity=SMALL)
        waited_for, _ = upload(session)
        create(session, waited_for)
    assert plan_next(sessions) is not None
    assert plan_next(sessions) is None, "put off"
    with transaction(sessions) as session:
        assert session.scalars(select(Summary.num_plannings)).all() == [0]
        if end == "delete":
            documents.remove(session, waited_for.id, tenant_id=DEFAULT_TENANT)
        else:
            error = extraction.error_of(DocumentErrorCode.CORRUPT, "no")
            assert extraction.fail_extraction(
                session, claim_one(session).turn, error, lifetime=timedelta(days=1)
            )
    assert plan_next(sessions) is not None
    assert states(sessions) == ["failed"]


def test_a_summary_that_nobody_wakes_is_looked_at_all_the_same(sessions: sessionmaker[Session]) -> None:
    with transaction(sessions) as session:
        register_engine(session, capacity=SMALL)
        document = ready_document(session, text_of(100))
        document.state, document.finalized_at, document.file_id = DocumentState.EXTRACTING, None, document.id
        create(session, document)
    assert plan_next(sessions) is not None
    with transaction(sessions) as session:
        session.execute(
            update(Document).values(state="ready", finalized_at=func.clock_timestamp(), file_id=None)
        )
        session.execute(update(Summary).values(plan_after=func.clock_timestamp()))
    assert plan_next(sessions) is not None
    assert states(sessions) == ["running"]


class Reading(Words):
    """Notes how often it looks at a text."""

    num_texts = 0

    def count_text(self, text: str) -> int:
        self.num_texts += 1
        return super().count_text(text)

    def token_starts(self, text: str) -> npt.NDArray[np.int32]:
        self.num_texts += 1
        return super().token_starts(text)


def look_again(sessions: sessionmaker[Session], work: Planning) -> None:
    with transaction(sessions) as session:
        session.execute(update(TenantTurn).values(paused_until=None))
    assert runner_of(sessions).run_next(work)


def room_for_one_tree_and_a_half(sessions: sessionmaker[Session]) -> LimitSettings:
    """One summary of 1,200 words runs in it."""
    with transaction(sessions) as session:
        register_engine(session, capacity=SMALL)
        create(session, ready_document(session, text_of(1200)))
    assert plan_next(sessions) is not None
    with sessions() as session:
        tree = session.scalars(select(func.sum(Job.reserved_tokens)).where(Job.finalized_at.is_(None))).one()
    return LimitSettings(max_enqueued_tokens=tree * 3 // 2)


@pytest.mark.parametrize("fingerprint", [Words.fingerprint, "another tokenizer"])
def test_no_document_is_read_again_while_the_quota_is_full(
    sessions: sessionmaker[Session], fingerprint: str
) -> None:
    counter = Reading()
    work = Planning(PlanningTools(counter, SMALL, room_for_one_tree_and_a_half(sessions)))
    with transaction(sessions) as session:
        document = ready_document(session, text_of(1201))
        document.fingerprint = fingerprint
        create(session, document)
    look_again(sessions, work)
    num_read = counter.num_texts
    assert num_read > 0
    for _ in range(3):
        look_again(sessions, work)
    assert (states(sessions), counter.num_texts) == (["running", "preparing"], num_read)
    with transaction(sessions) as session:
        session.execute(update(Job).values(reserved_tokens=0))
    look_again(sessions, work)
    assert states(sessions) == ["running", "running"], "room is seen at the next look"


def test_a_full_quota_is_measured_anew_when_the_engines_change(sessions: sessionmaker[Session]) -> None:
    counter = Reading()
    work = Planning(PlanningTools(counter, SMALL, room_for_one_tree_and_a_half(sessions)))
    with transaction(sessions) as session:
        create(session, ready_document(session, text_of(1201)))
    look_again(sessions, work)
    num_read = counter.num_texts
    with transaction(sessions) as session:
        register_engine(session, capacity=replace(SMALL, max_blocks=48))
    look_again(sessions, work)
    assert counter.num_texts > num_read
