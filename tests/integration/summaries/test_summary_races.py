"""Trees under several hands at once, and under processes that die at whatever statement."""

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from datetime import timedelta
from uuid import UUID

import pytest
from sqlalchemy import Connection, Engine, event, func, select, text
from sqlalchemy.orm import Session, sessionmaker

import ending
from jobs import documents, summaries, turns
from jobs.errors import ConflictError
from jobs.models import DEFAULT_TENANT, Job, Summary, WebhookEvent
from jobs.models.turn import PLANNING
from jobs.starting import Claim
from jobs.states import FinishReason, JobState
from jobs.summaries import tree
from summary_support import (
    SMALL,
    claim_next,
    complete,
    create,
    nodes_of,
    plan_all,
    plan_next,
    planned,
    prepare_all,
    ready_document,
    run_to_end,
    text_of,
)
from support import (
    PATIENCE,
    eventually,
    num_open_transactions,
    num_waiting_for_locks,
    output_of,
    register_engine,
)

Background = Callable[..., Future[object]]


class KilledError(SystemExit):
    """The process is gone."""


def test_of_two_children_that_end_in_the_same_instant_the_second_frees_their_parent(
    sessions: sessionmaker[Session],
) -> None:
    first, second, parent_id = _two_last_children(sessions)
    with sessions() as one:
        complete(one, first)  # not committed yet
        assert not _can_complete(sessions, second)
        assert _state(sessions, parent_id) == "blocked"
        one.commit()
    _complete(sessions, second)
    assert _state(sessions, parent_id) == "preparing"


def test_when_the_first_of_two_children_dies_the_second_frees_nothing(
    sessions: sessionmaker[Session],
) -> None:
    first, second, parent_id = _two_last_children(sessions)
    with sessions() as one:
        complete(one, first)
        assert not _can_complete(sessions, second)
        one.rollback()
    _complete(sessions, second)
    assert _state(sessions, parent_id) == "blocked"
    _complete(sessions, first)
    assert _state(sessions, parent_id) == "preparing"


def test_cancelling_while_a_child_ends_waits_for_nobody_in_a_circle(
    sessions: sessionmaker[Session], background: Background
) -> None:
    first, second, parent_id = _two_last_children(sessions)
    _complete(sessions, first)
    with sessions() as one:
        complete(one, second)  # frees the parent, not committed yet
        cancelling = background(_cancel, sessions)
        eventually(lambda: num_waiting_for_locks(sessions))
        one.commit()
    cancelling.result(timeout=PATIENCE)
    assert _state(sessions, parent_id) == "cancelled"
    with sessions() as session:
        summary = session.scalars(select(Summary)).one()
        assert summary.state == "cancelled"


def test_a_root_that_completes_first_wins_against_a_cancel(
    sessions: sessionmaker[Session], background: Background
) -> None:
    root = _running_root(sessions)
    with sessions() as one:
        complete(one, root, "the whole")
        cancelling = background(_cancel, sessions)
        eventually(lambda: num_waiting_for_locks(sessions))
        one.commit()
    cancelling.result(timeout=PATIENCE)
    assert _ended(sessions) == ("completed", ["summary.completed"])


def test_a_root_whose_cancel_was_asked_for_first_ends_one_way_only(sessions: sessionmaker[Session]) -> None:
    root = _running_root(sessions)
    _cancel(sessions)
    with sessions.begin() as session:
        assert ending.release(session, root.lease) == JobState.CANCELLED
    assert _ended(sessions) == ("cancelled", ["summary.cancelled"])


def test_a_summary_that_is_cancelled_while_it_is_planned_gets_no_jobs(
    sessions: sessionmaker[Session], monkeypatch: pytest.MonkeyPatch
) -> None:
    with sessions.begin() as session:
        register_engine(session, capacity=SMALL)
        create(session, ready_document(session, text_of(2000)))
    cut = tree.cut

    def cancel_meanwhile(*given: object, **named: object) -> object:
        _cancel(sessions)
        return cut(*given, **named)  # type: ignore[arg-type]  # passed on as they came

    monkeypatch.setattr(tree, "cut", cancel_meanwhile)
    taken = plan_next(sessions)
    assert taken is not None
    assert taken.result is None
    assert _ended(sessions) == ("cancelled", ["summary.cancelled"])
    with sessions() as session:
        assert session.scalar(select(func.count()).select_from(Job)) == 0


def test_two_workers_plan_two_summaries(sessions: sessionmaker[Session]) -> None:
    with sessions.begin() as session:
        register_engine(session, capacity=SMALL)
        documents_ = [ready_document(session, text_of(500, name=f"d{place}x")) for place in range(2)]
        create(session, *documents_)

    with sessions.begin() as session:
        first = turns.claim(session, PLANNING, lease=timedelta(seconds=30))
    assert first is not None
    second = plan_next(sessions)
    assert second is not None
    assert second.result is not None
    assert second.result.id != first.row_id
    assert plan_next(sessions) is None, "the first one's worker is at it"


def test_a_document_cannot_go_while_a_summary_of_it_is_being_created(
    sessions: sessionmaker[Session], background: Background
) -> None:
    with sessions.begin() as session:
        document = ready_document(session, text_of(100))

    def remove() -> None:
        with sessions.begin() as session:
            documents.remove(
                session, document.id, tenant_id=DEFAULT_TENANT, guards=[summaries.guard_document]
            )

    with sessions() as one:
        create(one, document)
        removing = background(remove)
        eventually(lambda: num_waiting_for_locks(sessions))
        one.commit()
    with pytest.raises(ConflictError):
        removing.result(timeout=PATIENCE)


@pytest.mark.parametrize("step", ["plan", "free", "end", "cancel", "prepare"])
def test_a_process_that_dies_at_any_statement_leaves_the_tree_whole(
    step: str, sessions: sessionmaker[Session], engine: Engine
) -> None:
    act = _STEPS[step](sessions)
    before = _snapshot(sessions)
    num_statements = 0
    while True:
        try:
            with _killed_after(engine, num_statements), sessions.begin() as session:
                act(session)
            break
        except KilledError:
            eventually(lambda: num_open_transactions(sessions) == 0)  # Postgres has seen it die
            assert _snapshot(sessions) == before
            num_statements += 1
    assert num_statements > 2
    assert _snapshot(sessions) != before
    with sessions.begin() as session:
        plan_all(session)
        for summary_id, tenant_id in summaries.find_stopping(session):
            summaries.stop_jobs(session, summary_id, tenant_id=tenant_id)
        run_to_end(session)
    expected = "cancelled" if step == "cancel" else "completed"
    assert _ended(sessions) == (expected, [f"summary.{expected}"])


def _to_plan(sessions: sessionmaker[Session]) -> Callable[[Session], object]:
    with sessions.begin() as session:
        register_engine(session, capacity=SMALL)
        create(session, ready_document(session, text_of(2000)))
    return plan_next


def _to_free(sessions: sessionmaker[Session]) -> Callable[[Session], object]:
    first, second, _ = _two_last_children(sessions)
    _complete(sessions, first)
    return lambda session: complete(session, second)


def _to_end(sessions: sessionmaker[Session]) -> Callable[[Session], object]:
    root = _running_root(sessions)
    return lambda session: complete(session, root)


def _to_cancel(sessions: sessionmaker[Session]) -> Callable[[Session], object]:
    with sessions.begin() as session:
        summary = planned(session)
    return lambda session: summaries.cancel(session, summary.id, tenant_id=DEFAULT_TENANT)


def _to_prepare(sessions: sessionmaker[Session]) -> Callable[[Session], object]:
    first, second, _ = _two_last_children(sessions)
    _complete(sessions, first)
    _complete(sessions, second)
    return prepare_all


_STEPS: dict[str, Callable[[sessionmaker[Session]], Callable[[Session], object]]] = {
    "plan": _to_plan,
    "free": _to_free,
    "end": _to_end,
    "cancel": _to_cancel,
    "prepare": _to_prepare,
}


@contextmanager
def _killed_after(engine: Engine, num_statements: int) -> Iterator[None]:
    """The process dies after so many statements."""
    left = num_statements

    def count(*_: object) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise KilledError

    event.listen(engine, "after_cursor_execute", count)
    try:
        yield
    finally:
        event.remove(engine, "after_cursor_execute", count)


def _snapshot(sessions: sessionmaker[Session]) -> list[object]:
    tables = ("jobs", "summaries", "summary_nodes", "webhook_events", "results", "texts", "usage_entries")
    with sessions() as session:
        connection: Connection = session.connection()
        return [
            connection.scalar(text(f"SELECT md5(string_agg(t::text, '|' ORDER BY t::text)) FROM {table} t"))  # noqa: S608  # ours
            for table in tables
        ]


def _two_last_children(sessions: sessionmaker[Session]) -> tuple[Claim, Claim, UUID]:
    """Two running jobs, the only ones that their parent still waits for."""
    with sessions.begin() as session:
        summary = planned(session)
        prepare_all(session)
        tree = nodes_of(session, summary)
        parent, parent_job = next((node, job) for node, job in tree if node.level == 1)
        num_children = sum(node.parent == parent.number for node, _ in tree)
        for _ in range(num_children - 2):
            claimed = claim_next(session)
            assert claimed is not None
            complete(session, claimed)
        first, second = claim_next(session), claim_next(session)
        assert first is not None
        assert second is not None
        return first, second, parent_job.id


def _running_root(sessions: sessionmaker[Session]) -> Claim:
    with sessions.begin() as session:
        summary = planned(session)
        while True:
            prepare_all(session)
            claimed = claim_next(session)
            assert claimed is not None
            if claimed.job.id == summary.root_job_id:
                return claimed
            complete(session, claimed)


def _complete(sessions: sessionmaker[Session], claimed: Claim) -> None:
    with sessions.begin() as session:
        complete(session, claimed)


def _can_complete(sessions: sessionmaker[Session], claimed: Claim) -> bool:
    with sessions.begin() as session:
        output = output_of("a summary")
        return ending.complete(session, claimed.lease, output, FinishReason.STOP) is not None


def _cancel(sessions: sessionmaker[Session]) -> None:
    """As the API does: two transactions."""
    with sessions.begin() as session:
        (summary_id,) = session.scalars(select(Summary.id)).all()
        summaries.cancel(session, summary_id, tenant_id=DEFAULT_TENANT)
    with sessions.begin() as session:
        summaries.stop_jobs(session, summary_id, tenant_id=DEFAULT_TENANT)


def _ended(sessions: sessionmaker[Session]) -> tuple[str, list[str]]:
    with sessions() as session:
        summary = session.scalars(select(Summary)).one()
        told = select(WebhookEvent.type).where(WebhookEvent.summary_id == summary.id)
        return summary.state, list(session.scalars(told))


def _state(sessions: sessionmaker[Session], job_id: UUID) -> str:
    with sessions() as session:
        return session.scalars(select(Job.state).where(Job.id == job_id)).one()
