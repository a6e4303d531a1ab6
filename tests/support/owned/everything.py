"""A tenant that has rows in every table that has rows of tenants, each text of which holds a mark."""

from datetime import date, timedelta
from hashlib import sha256
from uuid import UUID

from sqlalchemy import select, text
from sqlalchemy.orm import Session

import ending
from jobs import files
from jobs.database import database_now
from jobs.files.storage import PartStore
from jobs.ids import uuid7
from jobs.models import (
    AccountShard,
    AuditEntry,
    Base,
    Batch,
    Checkpoint,
    ConsoleSession,
    ConsoleSignInCode,
    DocumentFinding,
    EngineOutput,
    IdempotencyKey,
    Job,
    JobTensors,
    QuotaAllowance,
    StoredNote,
    StoredResponse,
    StoredTotal,
    Summary,
    SummaryDocument,
    SummaryNode,
    TenantAccount,
    TenantLimit,
    TenantTurn,
    UsageDay,
    WebhookBreaker,
    WebhookDelivery,
    WebhookDestination,
    WebhookDispatch,
    WebhookEndpoint,
    WebhookEvent,
    WebhookSecret,
)
from jobs.states import FinishReason
from jobs.states.file import FileState
from jobs.tenants import keys
from jobs.tenants.keys import Scope
from jobs.transitions import Lease
from summary_support import ready_document
from support import MODEL, claim_one, output_of, register_engine, spec, submit_one


def fill(session: Session, tenant_id: UUID, mark: str, store: PartStore) -> Lease:
    """Fill every table with rows of the tenant; no other job waits. Returns the lease of its running job."""
    now = database_now(session)
    done, running = _jobs(session, tenant_id, mark)
    file = files.create(
        session, tenant_id=tenant_id, purpose=files.INPUT, filename=mark, state=FileState.COMPLETE
    )
    part = store.put(mark.encode())
    files.add_part(session, file.id, part, start=0, tenant_id=tenant_id)
    document = ready_document(session, f"It says {mark}.", tenant_id=tenant_id)
    document.title = document.filename = mark
    key = keys.create(session, tenant_id=tenant_id, name=mark, scopes=[Scope.READ]).row
    endpoint = WebhookEndpoint(
        tenant_id=tenant_id, url=f"https://{mark}/", events=["*"], secret=mark.encode()
    )
    event = session.scalars(select(WebhookEvent).where(WebhookEvent.job_id == done.id)).one()
    event.payload, event.output = {"output": mark}, mark
    summary = _summary(session, tenant_id, mark)
    session.add_all(
        [
            endpoint,
            ConsoleSession(
                token_sha256=sha256(mark.encode()).digest(),
                tenant_id=tenant_id,
                api_key_id=key.id,
                expires_at=now,
            ),
            ConsoleSession(
                token_sha256=sha256(f"of a person {mark}".encode()).digest(),
                tenant_id=tenant_id,
                person_issuer=mark,
                person_subject=mark,
                person_name=mark,
                scopes=["read"],
                expires_at=now,
            ),
            ConsoleSignInCode(
                code_sha256=sha256(mark.encode()).digest(),
                tenant_id=tenant_id,
                api_key_id=key.id,
                expires_at=now,
            ),
            TenantLimit(tenant_id=tenant_id, max_jobs=5, adapters=[mark]),
            QuotaAllowance(tenant_id=tenant_id, shard=1, tokens=1, jobs=1, max_enqueued_tokens=1, max_jobs=1),
            StoredTotal(tenant_id=tenant_id, num_bytes=1),
            StoredNote(tenant_id=tenant_id, num_bytes=1),
            UsageDay(
                tenant_id=tenant_id,
                day=date(2026, 1, 31),
                model=MODEL,
                state="completed",
                num_jobs=2,
                prompt_tokens=30,
                cached_tokens=4,
                completion_tokens=5,
            ),
            IdempotencyKey(
                tenant_id=tenant_id, key=mark, request_sha256=b"0" * 32, answer={"of": mark}, created_at=now
            ),
            AuditEntry(
                id=uuid7(),
                tenant_id=tenant_id,
                action="key.create",
                object_id=mark,
                actor_kind="key",
                actor_id=mark,
                actor_name=mark,
                actor_tenant_id=tenant_id,
                via="api",
                address=mark,
            ),
            TenantTurn(kind="validate", tenant_id=tenant_id, served_at=now),
            WebhookBreaker(destination_id=uuid7(), tenant_id=tenant_id, num_failures=1, failing_since=now),
            WebhookDestination(id=uuid7(), tenant_id=tenant_id, server_id=uuid7()),
            WebhookSecret(tenant_id=tenant_id, secret=mark.encode()),
            _batch(tenant_id, file.id, mark, ends=now + timedelta(days=1)),
            DocumentFinding(summary_id=summary.id, place=0, tenant_id=tenant_id, **_finding(mark)),
            SummaryDocument(summary_id=summary.id, position=0, tenant_id=tenant_id, document_id=document.id),
            SummaryNode(
                summary_id=summary.id,
                number=0,
                tenant_id=tenant_id,
                kind="map",
                level=0,
                document_id=document.id,
                chunk=0,
                start_char=0,
                end_char=1,
                context_char=0,
                tokens=1,
                job_id=uuid7(),
            ),
            JobTensors(job_id=done.id, tenant_id=tenant_id, text_id=done.text_id),
            EngineOutput(job_id=done.id, lease_id=uuid7(), name=mark, tenant_id=tenant_id, file_id=file.id),
            StoredResponse(
                job_id=done.id, tenant_id=tenant_id, request_id=done.text_id, input_id=done.text_id
            ),
        ]
    )
    session.flush()
    _accounts(session, tenant_id)
    session.add_all(
        [
            WebhookDispatch(
                tenant_id=tenant_id,
                event_id=event.id,
                destination_id=endpoint.id,
                endpoint_id=endpoint.id,
                state="pending",
                next_attempt_at=now,
            ),
            WebhookDelivery(
                tenant_id=tenant_id, event_id=event.id, attempt=1, outcome="delivered", latency_ms=1
            ),
        ]
    )
    session.flush()
    return running


def tables_of(session: Session, tenant_id: UUID) -> set[str]:
    """The tables with rows of the tenant."""
    owned = [table.name for table in Base.metadata.sorted_tables if "tenant_id" in table.columns]
    return {
        name
        for name in owned
        if session.scalar(
            text(f"SELECT EXISTS (SELECT FROM {name} WHERE tenant_id = :id)"),  # noqa: S608  # ours
            {"id": tenant_id},
        )
    }


def owned_tables() -> set[str]:
    """The tables with a column `tenant_id`."""
    return {table.name for table in Base.metadata.sorted_tables if "tenant_id" in table.columns}


def _jobs(session: Session, tenant_id: UUID, mark: str) -> tuple[Job, Lease]:
    """One that completed, one that runs from a checkpoint on, and one that waits."""
    register_engine(session)
    done = submit_one(
        session,
        spec(prompt=f"Say {mark}", custom_id=mark, metadata={"of": mark}, webhook_url=f"http://{mark}/"),
        tenant_id=tenant_id,
    )
    ending.complete(session, claim_one(session).lease, output_of(mark), FinishReason.STOP)
    submit_one(session, spec(prompt=f"Run {mark}"), tenant_id=tenant_id)
    running = claim_one(session).lease
    session.add(
        Checkpoint(job_id=running.job_id, output=mark, output_ids=b"ids", num_tokens=3, fingerprint="test")
    )
    submit_one(session, spec(prompt=f"Wait {mark}"), tenant_id=tenant_id)
    session.refresh(done)
    return done, running


def _accounts(session: Session, tenant_id: UUID) -> None:
    for row in (
        TenantAccount(tenant_id=tenant_id, model="another"),
        AccountShard(tenant_id=tenant_id, model="another", engine_name="another"),
    ):
        session.merge(row)
    session.flush()


def _batch(tenant_id: UUID, file_id: UUID, mark: str, *, ends: object) -> Batch:
    return Batch(
        tenant_id=tenant_id,
        state="validating",
        endpoint="/v1/chat/completions",
        completion_window="24h",
        input_file_id=file_id,
        labels={"of": mark},
        request_sha256=b"0" * 32,
        created_at=ends,
        expires_at=ends,
    )


def _summary(session: Session, tenant_id: UUID, mark: str) -> Summary:
    summary = Summary(
        tenant_id=tenant_id,
        state="preparing",
        is_combined=False,
        style="paragraph",
        length=100,
        focus=mark,
        on_gap="skip",
        model=MODEL,
        templates={},
        gaps=[],
        created_at=database_now(session),
    )
    session.add(summary)
    session.flush()
    return summary


def _finding(mark: str) -> dict[str, object]:
    return {"value": mark, "sources": None, "quote": mark, "is_quoted": False, "gaps": []}
