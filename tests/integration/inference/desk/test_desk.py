"""What ends together is stored together, with the claims that follow; one bad end harms no other."""

import itertools
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import replace
from uuid import UUID

import pytest
from pydantic import SecretStr
from sqlalchemy import Engine, Text, cast, column, event, func, select, text, update
from sqlalchemy.orm import Session, sessionmaker

import ending
from claiming import claims
from claiming.desks import RELEASED, SLOTS, hand_in, tick_until_done
from cli.stack.ports import free_port
from jobs import lifecycle
from jobs.checkpoints import Output
from jobs.database import database_now, make_engine, make_sessions, transaction
from jobs.ids import uuid7
from jobs.models import (
    DEFAULT_TENANT,
    Attempt,
    Job,
    Reservation,
    Result,
    Summary,
    WebhookDispatch,
    WebhookEvent,
)
from jobs.models.tenant import UsageEntry
from jobs.scheduling.output_history import Group, History
from jobs.scheduling.prediction import Peers
from jobs.settings import DatabaseSettings, Settings
from jobs.starting import Claim
from jobs.states import JobState
from jobs.webhooks import endpoints
from summary_support import create, ready_document, text_of
from support import CAPACITY, ENGINE, PATIENCE, POLICY, output_of, refusing, register_engine, submit_one
from webhook_support import add_endpoint
from worker.inference.desk import Desk
from worker.inference.outcome import NotLoaded, RunEnd

NOTHING = Output(text="", ids=(), num_tokens=0)
POISON = Output(text="a\x00b", ids=(5, 6, 7), num_tokens=2)


def test_what_ended_together_is_stored_in_one_transaction_with_the_claims_after_it(
    sessions: sessionmaker[Session], desk: Desk, running: list[Claim]
) -> None:
    stored = [hand_in(desk, each) for each in running]
    claimed = desk.tick(POLICY).claims
    assert [each.result(timeout=0).state for each in stored] == [JobState.COMPLETED] * SLOTS
    assert len(claimed) == 2
    with sessions() as session:
        tables = (Job, Result, WebhookEvent, Reservation, UsageEntry)
        writers = [set(session.scalars(select(cast(column("xmin"), Text)).select_from(t))) for t in tables]
        assert len(set().union(*writers)) == 1, writers
        assert session.scalar(select(func.count()).select_from(Result)) == SLOTS
        assert session.scalar(select(func.count()).select_from(WebhookEvent)) == SLOTS
        held = set(session.scalars(select(Reservation.job_id)))
    assert held == {each.lease.job_id for each in claimed}


def test_a_tick_takes_as_many_statements_however_many_jobs_end_and_start_in_it(
    engine: Engine, sessions: sessionmaker[Session], desk: Desk, running: list[Claim]
) -> None:
    with transaction(sessions) as session:
        submit_one(session)
    hand_in(desk, running[0])
    with executed_on(engine) as one:
        assert len(desk.tick(POLICY).claims) == 1
    for each in running[1:3]:
        hand_in(desk, each)
    with executed_on(engine) as two:
        assert len(desk.tick(POLICY).claims) == 2
    assert len(one) == len(two) <= 8, two


def test_receivers_are_told_in_three_more_however_many_jobs_end(
    engine: Engine, sessions: sessionmaker[Session], desk: Desk, running: list[Claim]
) -> None:
    add_endpoint(sessions, "https://receiver.example/endpoint")
    with transaction(sessions) as session:
        session.execute(update(Job).values(webhook_url="https://receiver.example/own"))
    for some in (running[:1], running[1:]):
        with executed_on(engine) as executed:
            stored = [hand_in(desk, each) for each in some]
            desk.tick(None)
        assert [each.result(timeout=0).may_have_deliveries for each in stored] == [True] * len(some)
        assert len(executed) == 3 + 3, executed
    with sessions() as session:
        told = select(WebhookEvent.job_id, WebhookDispatch.endpoint_id, WebhookDispatch.is_noticed)
        due = session.execute(told.join(WebhookDispatch, WebhookDispatch.event_id == WebhookEvent.id)).all()
    assert {each.job_id for each in due} == {each.lease.job_id for each in running}
    assert len(due) == len({each[:2] for each in due}) == 2 * len(running)
    assert sum(not each.is_noticed for each in due) == 2 * 2, "of each destination one in each tick"


@contextmanager
def executed_on(engine: Engine) -> Iterator[list[str]]:
    """List the statements that are executed meanwhile."""
    executed: list[str] = []

    def note(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        executed.append(statement)

    event.listen(engine, "before_cursor_execute", note)
    try:
        yield executed
    finally:
        event.remove(engine, "before_cursor_execute", note)


def test_an_answer_that_cannot_be_stored_fails_alone(desk: Desk, running: list[Claim]) -> None:
    bad, *good = running
    failed = hand_in(desk, bad, POISON)
    stored = [hand_in(desk, each) for each in good]
    tick_until_done(desk, [failed, *stored])
    assert failed.result(timeout=0).state is JobState.FAILED
    assert [each.result(timeout=0).state for each in stored] == [JobState.COMPLETED] * len(good)
    assert len(desk.tick(POLICY).claims) == 2


def test_a_run_that_lost_its_lease_stores_nothing_beside_others_that_do(
    sessions: sessionmaker[Session], desk: Desk, running: list[Claim]
) -> None:
    stale, *good = running
    stolen = uuid7()
    with transaction(sessions) as session:
        session.execute(update(Job).where(Job.id == stale.lease.job_id).values(lease_id=stolen))
    lost = hand_in(desk, stale)
    stored = [hand_in(desk, each) for each in good]
    desk.tick(None)
    assert lost.result(timeout=0).state is None
    assert [each.result(timeout=0).state for each in stored] == [JobState.COMPLETED] * len(good)
    with sessions() as session:
        assert session.get_one(Job, stale.lease.job_id).lease_id == stolen
        assert session.get(Result, stale.lease.job_id) is None


@pytest.fixture
def patient(database_settings: DatabaseSettings) -> Iterator[sessionmaker[Session]]:
    """Sessions that wait for a locked row for longer than any test does."""
    limits = dict.fromkeys(LIMITS, 10 * PATIENCE)
    engine = make_engine(database_settings.model_copy(update=limits))
    yield make_sessions(engine)
    engine.dispose()


LIMITS = ("lock_timeout_seconds", "statement_timeout_seconds", "idle_in_transaction_timeout_seconds")


def test_a_row_that_another_transaction_holds_delays_only_its_own_end(
    patient: sessionmaker[Session], feeding: Callable[..., Settings], running: list[Claim]
) -> None:
    desk = Desk(feeding(), patient, stopping=threading.Event())
    held, *good = running
    with patient() as other, other.begin():
        other.execute(select(Job.id).where(Job.id == held.lease.job_id).with_for_update())
        late = hand_in(desk, held)
        for each in good:
            stored = hand_in(desk, each)
            ticking = threading.Thread(target=desk.tick, args=[None], daemon=True)
            ticking.start()
            ticking.join(PATIENCE)
            assert not ticking.is_alive(), "the next ends wait for the row, too"
            assert stored.result(timeout=0).state is JobState.COMPLETED
        assert not late.done()
    desk.tick(None)
    assert late.result(timeout=0).state is JobState.COMPLETED


def test_a_tree_that_another_transaction_holds_delays_only_its_own_ends(
    patient: sessionmaker[Session], feeding: Callable[..., Settings], running: list[Claim]
) -> None:
    desk = Desk(feeding(), patient, stopping=threading.Event())
    (part, other_part), good = running[:2], running[2]
    with transaction(patient) as session:
        (tree,) = create(session, ready_document(session, text_of(50)))
        parts = [part.lease.job_id, other_part.lease.job_id]
        session.execute(update(Job).where(Job.id.in_(parts)).values(summary_id=tree.id))
    with patient() as other, other.begin():
        other.execute(select(Summary.id).where(Summary.id == tree.id).with_for_update())
        late = [hand_in(desk, each, tree_id=tree.id) for each in (part, other_part)]
        stored = hand_in(desk, good)
        released = hand_in(desk, running[3], end=RELEASED)
        ticking = threading.Thread(target=desk.tick, args=[None], daemon=True)
        ticking.start()
        ticking.join(PATIENCE)
        assert not ticking.is_alive(), "the ends of all others wait for one tenant's tree"
        assert stored.result(timeout=0).state is JobState.COMPLETED
        assert released.result(timeout=0).state is JobState.QUEUED
        assert not any(each.done() for each in late)
    desk.tick(None)
    desk.tick(None)
    assert [each.result(timeout=0).state for each in late] == [JobState.COMPLETED] * 2


def test_the_ends_of_a_tree_that_was_held_are_stored_together_once_it_is_free(
    sessions: sessionmaker[Session], desk: Desk
) -> None:
    with transaction(sessions) as session:
        register_engine(session, capacity=replace(CAPACITY, max_batch_size=16))
        parts = [submit_one(session).id for _ in range(16)]
        found = claims.claim_all(session, ENGINE, POLICY).claims
        (tree,) = create(session, ready_document(session, text_of(50)))
        session.execute(update(Job).where(Job.id.in_(parts)).values(summary_id=tree.id))
    assert len(found) == 16
    with sessions() as other, other.begin():
        other.execute(select(Summary.id).where(Summary.id == tree.id).with_for_update())
        stored = [hand_in(desk, each, tree_id=tree.id) for each in found]
        for _ in range(3):
            desk.tick(None)
        assert not any(each.done() for each in stored)
    desk.tick(None)
    assert [each.result(timeout=0).state for each in stored] == [JobState.COMPLETED] * 16
    with sessions() as session:
        writers = session.scalars(select(cast(column("xmin"), Text)).select_from(Result)).all()
    assert (len(writers), len(set(writers))) == (16, 1)


def test_the_end_of_a_part_whose_tree_is_gone_is_stored(
    sessions: sessionmaker[Session], desk: Desk, running: list[Claim]
) -> None:
    tree_id = uuid7()
    with transaction(sessions) as session:
        session.execute(update(Job).where(Job.id == running[0].lease.job_id).values(summary_id=tree_id))
    stored = hand_in(desk, running[0], tree_id=tree_id)
    desk.tick(None)
    assert stored.result(timeout=0).state is JobState.COMPLETED


def test_a_cancelled_run_that_never_began_leaves_what_earlier_runs_generated(
    sessions: sessionmaker[Session], desk: Desk, running: list[Claim]
) -> None:
    lease = running[0].lease
    with transaction(sessions) as session:
        ending.checkpoint(session, lease, output_of("half", 2))
        lifecycle.cancel(session, lease.job_id, tenant_id=DEFAULT_TENANT)
    ended = hand_in(desk, running[0], NOTHING, RunEnd(NotLoaded(), engine_is_done=True))
    desk.tick(None)
    assert ended.result(timeout=0).state is JobState.CANCELLED
    with sessions() as session:
        assert session.get_one(Result, lease.job_id).output == "half"
        assert session.get_one(Job, lease.job_id).completion_tokens == 2


def test_a_job_whose_prompt_could_not_be_read_is_not_claimed_again_at_once(
    sessions: sessionmaker[Session], desk: Desk, running: list[Claim]
) -> None:
    ended = hand_in(desk, running[0], NOTHING, RunEnd(NotLoaded(), engine_is_done=True))
    desk.tick(None)
    assert ended.result(timeout=0).state is JobState.QUEUED
    with sessions() as session:
        run_after = session.get_one(Job, running[0].lease.job_id).run_after
        assert run_after is not None
        assert run_after > database_now(session)


def test_a_run_keeps_when_its_answer_was_whole_though_it_is_stored_alone(
    sessions: sessionmaker[Session], desk: Desk, running: list[Claim]
) -> None:
    hand_in(desk, running[0], POISON)
    stored = hand_in(desk, running[1])
    tick_until_done(desk, [stored])
    with sessions() as session:
        mine = Attempt.job_id == running[1].lease.job_id
        assert session.scalars(select(Attempt.answered_at).where(mine)).one() is not None


def test_an_end_that_breaks_its_connection_holds_up_no_other(
    sessions: sessionmaker[Session], desk: Desk, running: list[Claim]
) -> None:
    bad, *good = running
    with on_write(sessions, bad.lease.job_id, BREAKS):
        broken = hand_in(desk, bad, end=RELEASED)
        stored = [hand_in(desk, each, end=RELEASED) for each in good]
        tick_until_done(desk, stored)
        assert [each.result(timeout=0).state for each in stored] == [JobState.QUEUED] * len(good)
        assert not broken.done()
    desk.tick(None)
    assert broken.result(timeout=0).state is JobState.QUEUED


def test_answers_outlast_a_database_that_is_away_for_longer_than_their_leases(
    database_settings: DatabaseSettings,
    engine: Engine,
    feeding: Callable[..., Settings],
    running: list[Claim],
) -> None:
    settings = feeding()
    jobs = settings.jobs.model_copy(update={"lease_seconds": 0.0})
    closed = SecretStr(f"postgresql://nobody@127.0.0.1:{free_port()}/none")
    away = make_engine(database_settings.model_copy(update={"url": closed}))
    sessions = make_sessions(away)
    desk = Desk(settings.model_copy(update={"jobs": jobs}), sessions, stopping=threading.Event())
    stored = [hand_in(desk, each) for each in running]
    for _ in range(3):
        desk.tick(None)
    away.dispose()
    sessions.configure(bind=engine)
    for _ in running:  # a tick tries at least one again
        desk.tick(None)
    assert [each.result(timeout=0).state for each in stored] == [JobState.COMPLETED] * SLOTS


def test_answers_outlast_a_disk_that_is_full_for_longer_than_their_leases(
    sessions: sessionmaker[Session], feeding: Callable[..., Settings], running: list[Claim]
) -> None:
    settings = feeding()
    jobs = settings.jobs.model_copy(update={"lease_seconds": 0.0})
    desk = Desk(settings.model_copy(update={"jobs": jobs}), sessions, stopping=threading.Event())
    with refusing(sessions, "BEFORE UPDATE ON jobs FOR EACH ROW", code="disk_full"):
        stored = [hand_in(desk, each) for each in running]
        for _ in range(3):
            desk.tick(None)
        assert not any(each.done() for each in stored)
    for _ in running:  # a tick tries at least one again
        desk.tick(None)
    assert [each.result(timeout=0).state for each in stored] == [JobState.COMPLETED] * SLOTS


@contextmanager
def on_write(sessions: sessionmaker[Session], job_id: UUID, does: str) -> Iterator[None]:
    """Let this happen to whoever writes this job's row."""
    body = f"BEGIN PERFORM {does}; RETURN NEW; END"
    with transaction(sessions) as session:
        session.execute(text(f"CREATE FUNCTION does() RETURNS trigger LANGUAGE plpgsql AS $${body}$$"))
        when = f"BEFORE UPDATE ON jobs FOR EACH ROW WHEN (NEW.id = '{job_id}')"
        session.execute(text(f"CREATE TRIGGER does {when} EXECUTE FUNCTION does()"))
    yield
    with transaction(sessions) as session:
        session.execute(text("DROP FUNCTION does CASCADE"))


BREAKS = "pg_terminate_backend(pg_backend_pid())"


def test_an_end_whose_statement_takes_for_ever_holds_up_no_other(
    patient: sessionmaker[Session], feeding: Callable[..., Settings], running: list[Claim]
) -> None:
    desk = Desk(feeding(), patient, stopping=threading.Event())
    slow, *good = running
    with on_write(patient, slow.lease.job_id, "pg_sleep(3600)"):
        late = hand_in(desk, slow, end=RELEASED)
        stored = [hand_in(desk, each, end=RELEASED) for each in good]
        ticking = threading.Thread(target=tick_until_done, args=(desk, stored), daemon=True)
        ticking.start()
        ticking.join(PATIENCE)
        assert not ticking.is_alive(), "the others wait for it"
        assert [each.result(timeout=0).state for each in stored] == [JobState.QUEUED] * len(good)
        assert not late.done()
    desk.tick(None)
    assert late.result(timeout=0).state is JobState.QUEUED


def test_a_tick_stores_one_end_alone_and_leaves_those_that_it_has_no_time_for_to_the_next(
    sessions: sessionmaker[Session], feeding: Callable[..., Settings], running: list[Claim]
) -> None:
    hours = itertools.count(step=3600.0)
    desk = Desk(feeding(), sessions, stopping=threading.Event(), clock=lambda: next(hours))
    bad, good = hand_in(desk, running[0], POISON, RELEASED), hand_in(desk, running[1], end=RELEASED)
    wakes: list[None] = []
    desk.wake = lambda: wakes.append(None)
    for num_stored in (1, 2):
        desk.tick(None)
        assert [bad.done(), good.done()].count(True) == num_stored
        assert len(wakes) == num_stored, "there is a slot to fill, and more to store"


def test_an_endpoint_that_is_being_changed_delays_no_end_that_it_wants(
    patient: sessionmaker[Session], feeding: Callable[..., Settings], running: list[Claim]
) -> None:
    endpoint, _ = add_endpoint(patient, "https://receiver.example/")
    desk = Desk(feeding(), patient, stopping=threading.Event())
    stored = hand_in(desk, running[0])
    with patient() as other, other.begin():
        endpoints.get(other, endpoint.id, tenant_id=endpoint.tenant_id)
        ticking = threading.Thread(target=desk.tick, args=[None], daemon=True)
        ticking.start()
        assert stored.result(timeout=PATIENCE).may_have_deliveries


def test_an_answer_whose_endpoint_is_deleted_in_between_is_stored_whole(
    sessions: sessionmaker[Session], desk: Desk, running: list[Claim]
) -> None:
    add_endpoint(sessions, "https://receiver.example/")
    body = "BEGIN IF nextval('met') < 3 THEN RAISE foreign_key_violation; END IF; RETURN NEW; END"
    with transaction(sessions) as session:
        session.execute(text("CREATE SEQUENCE met"))  # counts also what is rolled back
        session.execute(text(f"CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $${body}$$"))
        when = "BEFORE INSERT ON webhook_dispatches FOR EACH ROW"
        session.execute(text(f"CREATE TRIGGER refuses {when} EXECUTE FUNCTION refuse()"))
    try:
        stored = hand_in(desk, running[0], output_of("all of it"))
        desk.tick(None)
    finally:
        with transaction(sessions) as session:
            session.execute(text("DROP FUNCTION refuse CASCADE"))
            session.execute(text("DROP SEQUENCE met"))
    assert stored.result(timeout=0).state is JobState.COMPLETED
    with sessions() as session:
        assert session.get_one(Result, running[0].lease.job_id).output == "all of it"


def test_jobs_start_before_ends_are_stored_alone(
    sessions: sessionmaker[Session], desk: Desk, running: list[Claim]
) -> None:
    with on_write(sessions, running[1].lease.job_id, BREAKS):
        released = hand_in(desk, running[1], end=RELEASED)
        desk.tick(None)
    hand_in(desk, running[0])
    started: list[tuple[int, bool]] = []
    desk.tick(POLICY, start=lambda result: started.append((len(result.claims), released.done())))
    assert started == [(1, False)]
    assert released.result(timeout=0).state is JobState.QUEUED


class Unreadable(History):
    """A history that fails every claim."""

    def peers(self, session: Session, groups: Collection[Group]) -> dict[Group, Peers]:
        raise RuntimeError(session, groups)


def test_ends_are_stored_though_claims_fail(desk: Desk, running: list[Claim]) -> None:
    failing = replace(POLICY, history=Unreadable())
    completed = hand_in(desk, running[0])
    assert desk.tick(failing).claims == ()
    assert completed.result(timeout=0).state is JobState.COMPLETED
    released = hand_in(desk, running[1], end=RELEASED)
    assert desk.tick(failing).claims == ()
    assert released.result(timeout=0).state is JobState.QUEUED
    with pytest.raises(RuntimeError):
        desk.tick(failing)


def test_only_ends_that_a_webhook_wants_wake_its_deliveries(
    sessions: sessionmaker[Session], desk: Desk, running: list[Claim]
) -> None:
    quiet, wanted, *_ = running
    with transaction(sessions) as session:
        url = {"webhook_url": "https://receiver.example/"}
        session.execute(update(Job).where(Job.id == wanted.lease.job_id).values(url))
    stored = []
    for each in (quiet, wanted):
        stored.append(hand_in(desk, each))
        desk.tick(None)
    assert [each.result(timeout=0).may_have_deliveries for each in stored] == [False, True]


def test_an_end_frees_its_slot_for_the_claims_of_its_tick_whatever_it_is(
    desk: Desk, running: list[Claim]
) -> None:
    released = hand_in(desk, running[0], end=RELEASED)
    assert len(desk.tick(POLICY).claims) == 1
    assert released.result(timeout=0).state is JobState.QUEUED


def test_an_end_that_is_stored_alone_frees_its_slot_for_the_next_tick(
    desk: Desk, running: list[Claim]
) -> None:
    wakes: list[None] = []
    desk.wake = lambda: wakes.append(None)
    failed = hand_in(desk, running[0], POISON)
    assert desk.tick(POLICY).claims == ()
    assert failed.result(timeout=0).state is JobState.FAILED
    assert len(wakes) == 2, "for the run that ended, and for the slot"
    assert len(desk.tick(POLICY).claims) == 1
