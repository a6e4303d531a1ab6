"""What goes of a tenant without retention, and what has to stay until it was delivered."""

import secrets
from collections.abc import Sequence
from datetime import timedelta
from functools import partial
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import Engine, event, select, text, update
from sqlalchemy.orm import Session, sessionmaker
from typer.testing import CliRunner

import ending
from api_server import ApiProcess
from cli.stack.servers.valkey import EmbeddedValkey
from jobs import doorbell, files, ids, submission, tenants
from jobs.checkpoints import Output
from jobs.database import database_now
from jobs.engines.tensor_rows import INPUT_PURPOSE
from jobs.erasure import zero_retention
from jobs.erasure.zero_retention import Walk
from jobs.errors import AlreadyDeliveredError, NotFoundError
from jobs.files.storage import RowStore
from jobs.models import (
    DEFAULT_TENANT,
    Document,
    File,
    FilePart,
    Job,
    JobTensors,
    PromptText,
    Result,
    Summary,
    Tenant,
    WebhookDispatch,
    WebhookEvent,
)
from jobs.settings import DatabaseSettings
from jobs.states import FinishReason
from jobs.states.file import FileState
from jobs.submission import Submitter
from jobs.submission.repetition import Repetition
from jobs.summaries import queries
from jobs.tenants import keys
from jobs.tenants.idempotency import IdempotencyGuard
from jobs.tenants.keys import Scope
from longbatch.cli.main import application
from searching import stores
from searching.stores import Marks
from summary_support import claim_next, complete, nodes_of, planned, prepare_all, ready_document, run_to_end
from support import CAPACITY, ERROR, claim_one, eventually, output_of, register_engine, spec, submit_one
from worker.erasure import TenantStores, ZeroRetention

SPAN = timedelta(hours=1)


@pytest.fixture
def tenant_id(sessions: sessionmaker[Session]) -> UUID:
    """A tenant without retention."""
    with sessions.begin() as session:
        row = tenants.create(session, f"t-{secrets.token_hex(4)}")
        tenants.set_retention(session, row.id, int(SPAN.total_seconds()))
        register_engine(session)
        return row.id


@pytest.fixture
def work(sessions: sessionmaker[Session], valkey: EmbeddedValkey) -> ZeroRetention:
    broker = doorbell.connect(valkey.url, socket_timeout=1)
    return ZeroRetention(sessions, TenantStores(RowStore(), broker))


def rounds(work: ZeroRetention) -> None:
    number = 0
    while work.run_once():
        number += 1
        assert number < 100, "it does not end"


def done(session: Session, tenant_id: UUID, output: Output | None = None, **fields: Any) -> Job:  # noqa: ANN401
    """A job of the tenant that has just completed; the queue is empty."""
    job = submit_one(session, spec(**fields), tenant_id=tenant_id)
    ending.complete(session, claim_one(session).lease, output or output_of("said"), FinishReason.STOP)
    return job


def exists(sessions: sessionmaker[Session], job: Job) -> bool:
    with sessions() as session:
        return session.get(Job, job.id) is not None


def pass_time(sessions: sessionmaker[Session]) -> None:
    """All that ended or came did so longer ago than the tenant's content may wait."""
    with sessions.begin() as session:
        for table, column in (
            (Job, Job.finalized_at),
            (Document, Document.finalized_at),
            (File, File.created_at),
            (Summary, Summary.finalized_at),
            (WebhookEvent, WebhookEvent.created_at),
        ):
            session.execute(update(table).where(column.is_not(None)).values({column: column - 2 * SPAN}))


def test_what_nobody_fetched_goes_when_its_time_is_over_and_not_before(
    sessions: sessionmaker[Session], tenant_id: UUID, work: ZeroRetention
) -> None:
    marks = Marks(["markedprompt", "markedanswer"])
    with sessions.begin() as session:
        job = done(session, tenant_id, output_of("markedanswer"), prompt="markedprompt")
        others = done(session, DEFAULT_TENANT, prompt="another's")
        queued = submit_one(session, spec(), tenant_id=tenant_id)
    rounds(work)
    assert {"texts.body", "results.output"} <= stores.in_database(sessions, marks)
    pass_time(sessions)
    rounds(work)
    assert not exists(sessions, job)
    assert exists(sessions, others)
    assert exists(sessions, queued)
    assert stores.in_database(sessions, marks) == set()


def test_a_round_that_finds_nothing_costs_as_little_for_many_tenants_as_for_one(
    sessions: sessionmaker[Session], engine: Engine, tenant_id: UUID, work: ZeroRetention
) -> None:
    def num_statements_of_a_round() -> int:
        found: list[str] = []

        def watch(_connection: object, _cursor: object, statement: str, *_: object) -> None:
            found.append(statement)

        event.listen(engine, "before_cursor_execute", watch)
        try:
            assert work.run_once() == 0
        finally:
            event.remove(engine, "before_cursor_execute", watch)
        return len(found)

    of_one = num_statements_of_a_round()
    with sessions.begin() as session:
        for number in range(5):
            row = tenants.create(session, f"idle-{number}-{tenant_id.hex[-12:]}")
            tenants.set_retention(session, row.id, 60)
        submit_one(session, spec(), tenant_id=tenant_id)  # waits
    assert num_statements_of_a_round() == of_one <= 4


def test_a_look_that_fails_keeps_no_content(
    sessions: sessionmaker[Session], tenant_id: UUID, work: ZeroRetention, monkeypatch: pytest.MonkeyPatch
) -> None:
    with sessions.begin() as session:
        job = done(session, tenant_id)
    pass_time(sessions)

    def too_slow(session: Session, _tenant_ids: Sequence[UUID]) -> None:
        session.execute(text("SET LOCAL statement_timeout = 1"))
        session.execute(text("SELECT pg_sleep(10)"))

    monkeypatch.setattr(zero_retention, "find_work", too_slow)
    rounds(work)
    assert not exists(sessions, job)


def test_jobs_behind_a_long_queue_go_without_another_look_at_the_queue(
    sessions: sessionmaker[Session], tenant_id: UUID, work: ZeroRetention, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(zero_retention, "_LOOKED_AT", 2)
    monkeypatch.setattr(zero_retention, "_AT_ONCE", 1)
    with sessions.begin() as session:
        waiting = [submit_one(session, spec(None), tenant_id=tenant_id) for _ in range(2)]
        ended = [done(session, tenant_id) for _ in range(2)]
    pass_time(sessions)
    assert [work.run_once() for _ in range(3)] == [0, 1, 1]
    assert not any(exists(sessions, job) for job in ended)
    assert all(exists(sessions, job) for job in waiting)


def test_a_2xx_that_carried_all_of_the_output_is_a_delivery(
    sessions: sessionmaker[Session], tenant_id: UUID, work: ZeroRetention
) -> None:
    told: dict[str, Any] = {"webhook_url": "https://a.example/", "webhook_includes_output": True}
    with sessions.begin() as session:
        whole = done(session, tenant_id, **told)
        announced = done(session, tenant_id, webhook_url="https://a.example/")
        thought = Output(text="said", ids=(5, 6, 7), num_tokens=3, reasoning="thought", reasoning_tokens=1)
        partly = done(session, tenant_id, thought, **told)
        long = done(session, tenant_id, output_of("long " * 4000), **told)
    rounds(work)
    assert all(exists(sessions, job) for job in (whole, announced, partly, long)), "nothing is delivered yet"
    with sessions.begin() as session:
        session.execute(update(WebhookDispatch).values(state="delivered", next_attempt_at=None))
    rounds(work)
    assert not exists(sessions, whole)
    for job in (announced, partly, long):
        assert exists(sessions, job), "its receiver has yet to fetch what the webhook did not carry"
    with sessions() as session:
        event = session.scalars(select(WebhookEvent).where(WebhookEvent.job_id == whole.id)).one()
        assert (event.payload, event.output) == (None, None)


def test_the_event_of_a_response_delivers_nothing(
    sessions: sessionmaker[Session], tenant_id: UUID, work: ZeroRetention
) -> None:
    """It has the response's id alone, also of one that failed."""
    with sessions.begin() as session:
        job = submit_one(session, spec(webhook_url="https://a.example/"), tenant_id=tenant_id)
        ending.fail(session, claim_one(session).lease, ERROR)
        session.execute(update(WebhookEvent).values(type="response.failed"))
        session.execute(update(WebhookDispatch).values(state="delivered", next_attempt_at=None))
    rounds(work)
    assert exists(sessions, job)
    with sessions.begin() as session:
        session.execute(update(WebhookEvent).values(type="job.failed"))
    rounds(work)
    assert not exists(sessions, job), "the event of a job says why it failed"


def test_a_job_waits_for_every_receiver_and_goes_with_the_last(
    sessions: sessionmaker[Session], tenant_id: UUID, work: ZeroRetention
) -> None:
    with sessions.begin() as session:
        job = done(session, tenant_id, webhook_url="https://a.example/", webhook_includes_output=True)
        event = session.scalars(select(WebhookEvent).where(WebhookEvent.job_id == job.id)).one()
        session.execute(update(WebhookDispatch).values(state="delivered", next_attempt_at=None))
        more = WebhookDispatch(
            tenant_id=tenant_id,
            event_id=event.id,
            destination_id=job.id,
            url="https://b.example/",
            includes_output=True,
            state="pending",
            next_attempt_at=database_now(session),
        )
        session.add(more)
    rounds(work)
    assert exists(sessions, job)
    with sessions.begin() as session:
        # Its owner reads the result: the job goes, and what the second receiver is to get stays.
        assert zero_retention.forget_jobs(session, [job.id], tenant_id=tenant_id) == [job.id]
    rounds(work)
    with sessions() as session:
        assert session.get_one(WebhookEvent, event.id).output == "said"
    pass_time(sessions)
    rounds(work)
    with sessions() as session:
        assert session.get_one(WebhookEvent, event.id).output is None
        assert session.get_one(WebhookDispatch, more.id).state == "failed"


def test_a_running_job_is_not_forgotten(
    sessions: sessionmaker[Session], tenant_id: UUID, work: ZeroRetention
) -> None:
    with sessions.begin() as session:
        job = submit_one(session, spec(), tenant_id=tenant_id)
        claim_one(session)
        assert zero_retention.forget_jobs(session, [job.id], tenant_id=tenant_id) == []
    pass_time(sessions)
    rounds(work)
    assert exists(sessions, job)


def test_another_tenant_s_job_is_not_forgotten(sessions: sessionmaker[Session], tenant_id: UUID) -> None:
    with sessions.begin() as session:
        job = done(session, DEFAULT_TENANT)
        assert zero_retention.forget_jobs(session, [job.id], tenant_id=tenant_id) == []
    assert exists(sessions, job)


def test_a_line_of_a_batch_goes_once_it_is_in_the_file_of_results(
    sessions: sessionmaker[Session], tenant_id: UUID, work: ZeroRetention
) -> None:
    with sessions.begin() as session:
        job = done(session, tenant_id, batch_id=UUID(int=7), batch_line=1)
    pass_time(sessions)
    rounds(work)
    assert exists(sessions, job), "its batch has not read it"
    with sessions.begin() as session:
        session.execute(update(Job).values(is_reported=True))
    rounds(work)
    assert not exists(sessions, job)


def test_files_and_documents_go_when_nothing_needs_them(
    sessions: sessionmaker[Session], tenant_id: UUID, work: ZeroRetention
) -> None:
    with sessions.begin() as session:
        ready_document(session, "a marked document", tenant_id=tenant_id)
        waiting = submit_one(session, spec())  # another tenant's, with tensors
        session.add(JobTensors(job_id=waiting.id, tenant_id=DEFAULT_TENANT, text_id=waiting.text_id))
        made_ids = {}
        for purpose in (files.INPUT, files.OUTPUT, INPUT_PURPOSE):
            made = files.create(
                session, tenant_id=tenant_id, purpose=purpose, filename="f", state=FileState.COMPLETE
            )
            part = RowStore().put(b"a marked document")
            files.add_part(session, made.id, part, start=0, tenant_id=tenant_id)
            made.num_bytes = part.num_bytes
            made_ids[purpose] = made.id
    made_id = made_ids[files.OUTPUT]
    rounds(work)
    marks = Marks(["marked"])
    assert stores.in_database(sessions, marks) == {"document_texts.body", "file_parts.content"}
    with sessions.begin() as session:
        now = database_now(session)
        zero_retention.forget_file(session, made_id, tenant_id=DEFAULT_TENANT, now=now)
        assert files.get(session, made_id, tenant_id=tenant_id), "another tenant's reading delivers nothing"
        zero_retention.forget_file(session, made_id, tenant_id=tenant_id, now=now)
        with pytest.raises(NotFoundError):
            files.get(session, made_id, tenant_id=tenant_id)
    rounds(work)
    with sessions() as session:
        assert session.query(FilePart).count() == 2, "the bytes of the file that was read"
    pass_time(sessions)
    rounds(work)
    assert stores.in_database(sessions, marks) == set()
    with sessions() as session:
        assert session.query(File).count() == 0


def test_joins_go_once_they_are_joined_and_leaves_with_the_whole(session: Session) -> None:
    """The result of a summary has what its leaves said."""
    session.execute(update(Tenant).where(Tenant.id == DEFAULT_TENANT).values(zero_retention_seconds=3600))
    summary = planned(session, 4000)
    joins = [node for node, _ in nodes_of(session, summary) if node.level > 0 and node.parent is not None]
    assert joins, "more than the root joins"
    stores_ = TenantStores(RowStore(), doorbell.connect("redis://127.0.0.1:1", socket_timeout=1))
    num_gone = 0
    for _ in range(100):
        prepare_all(session)
        claimed = claim_next(session)
        if claimed is None:
            break
        complete(session, claimed)
        is_open = session.get_one(Summary, summary.id, populate_existing=True).finalized_at is None
        now = database_now(session)
        for step in zero_retention.STEPS:
            zero_retention.remove_part(session, DEFAULT_TENANT, step, stores_, Walk(), now=now)
        found = nodes_of(session, summary)
        ended = {node.number for node, job in found if job.state == "completed"}
        kept = set(session.scalars(select(Result.job_id)))
        for node, job in found:
            if job.state == "completed" and is_open:
                is_joined = node.level > 0 and node.parent in ended
                assert (job.id in kept) is not is_joined
                num_gone += is_joined
    assert num_gone
    assert session.get_one(Summary, summary.id, populate_existing=True).state == "completed"
    chunks = queries.list_chunks(session, summary.id)
    assert {each["summary"] for each in chunks} == {"a summary"}
    zero_retention.forget_summary(session, summary.id, tenant_id=DEFAULT_TENANT, now=now)
    assert session.get_one(Summary, summary.id, populate_existing=True).deleted_at == now


def test_a_key_of_what_was_delivered_makes_nothing_again(
    sessions: sessionmaker[Session], tenant_id: UUID
) -> None:
    """Or a client that repeats its request would get a second answer, and a second webhook."""
    by = Submitter(tenant_id, CAPACITY)
    guard = IdempotencyGuard(key="key", request_sha256=b"0" * 32, valid_for=timedelta(hours=1))
    once, make = Repetition(guard, is_submission=True), partial(submission.submit, specs=[spec()], by=by)
    with sessions.begin() as session:
        (job,), _ = once.run(session, make, tenant_id=tenant_id)
        ending.complete(session, claim_one(session).lease, output_of("said"), FinishReason.STOP)
    with sessions.begin() as session:
        assert zero_retention.forget_jobs(session, [job.id], tenant_id=tenant_id) == [job.id]
    with sessions.begin() as session, pytest.raises(AlreadyDeliveredError):
        once.run(session, make, tenant_id=tenant_id)


def test_a_prompt_that_another_job_shares_stays_for_it(
    sessions: sessionmaker[Session], tenant_id: UUID, work: ZeroRetention
) -> None:
    with sessions.begin() as session:
        done(session, tenant_id, prompt="shared")
        queued = submit_one(session, spec(prompt="shared"), tenant_id=tenant_id)
    pass_time(sessions)
    rounds(work)
    with sessions() as session:
        text_id = session.get_one(Job, queued.id).text_id
        assert session.scalars(select(PromptText.id)).all() == [text_id]


def test_the_command_sets_it_and_takes_it_back(
    sessions: sessionmaker[Session], database_settings: DatabaseSettings
) -> None:
    environment = {"LONGBATCH_DATABASE__URL": database_settings.url.get_secret_value()}
    name = f"t-{secrets.token_hex(4)}"

    def run(verb: str, *options: str) -> int | None:
        done = CliRunner().invoke(application(), ["tenants", verb, name, *options], env=environment)
        assert done.exit_code == 0, done.output
        with sessions() as session:
            return tenants.named(session, name).zero_retention_seconds

    assert run("create", "--zero-retention-seconds", "3600") == 3600
    assert run("set", "--weight", "2") == 3600
    assert run("set", "--zero-retention-seconds", "0") is None


def test_a_summary_is_delivered_by_the_form_of_its_result_that_has_all(
    sessions: sessionmaker[Session], tenant_id: UUID, server: ApiProcess
) -> None:
    with sessions.begin() as session:
        path = f"/v1/summaries/{ids.summary_id(planned(session, 2000).id)}"
        run_to_end(session)
        for table in ("summaries", "summary_nodes", "summary_documents", "jobs", "texts", "documents"):
            session.execute(text(f"UPDATE {table} SET tenant_id = :id"), {"id": tenant_id})  # noqa: S608  # ours
        key = keys.create(session, tenant_id=tenant_id, name="theirs", scopes=[Scope.READ])
    with server.client(api_key=key.secret) as http:
        for form in ("md", "csv"):
            assert http.get(f"{path}/result", params={"format": form}).status_code == 200
        assert http.get(path).status_code == 200, "what leaves out a part delivers nothing"
        result = http.get(f"{path}/result").json()
        assert result["summary"]
        assert all(each["summary"] for each in result["chunks"])
        eventually(lambda: http.get(path).status_code == 404)


def test_a_file_that_cannot_be_removed_holds_up_nothing_else(
    sessions: sessionmaker[Session], tenant_id: UUID, valkey: EmbeddedValkey
) -> None:
    class Refusing(RowStore):
        def drop(self, keys: Sequence[str]) -> None:
            raise OSError(f"{len(keys)} keys")

    with sessions.begin() as session:
        job = done(session, tenant_id)
        files.create(
            session, tenant_id=tenant_id, purpose=files.INPUT, filename="f", state=FileState.COMPLETE
        )
    pass_time(sessions)
    broker = doorbell.connect(valkey.url, socket_timeout=1)
    rounds(ZeroRetention(sessions, TenantStores(Refusing(), broker)))
    assert not exists(sessions, job)
    with sessions() as session:
        assert session.query(File).count() == 1
