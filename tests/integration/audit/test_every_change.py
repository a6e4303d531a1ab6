"""Every mutating route leaves an entry in the audit log, or is listed with the reason why not."""

import re
import secrets
from collections.abc import Callable
from typing import Any
from uuid import UUID

import httpx2
import pytest
from pydantic import SecretStr
from sqlalchemy import select, text, update
from sqlalchemy.orm import Session, sessionmaker

from api.app import create_app
from jobs import ids
from jobs.audit import Action
from jobs.models import AuditEntry, Batch
from jobs.models.summary import Summary
from jobs.settings import BrokerSettings, DatabaseSettings, Settings
from jobs.tenants import keys
from support import API_KEY, ENGINE, register_engine

Make = Callable[["World"], dict[str, Any]]
CANARY = "canary-7c21"
MODEL = "llama-3.1-8b-instruct"
READING = {"GET", "HEAD", "OPTIONS"}
KEY = f"lb_{keys.handle_of(API_KEY)}"

_ROW = "is itself a row with its tenant and time; millions of them must not cost twice"
_WAITED = "makes a job, whose row says what it was; a caller that leaves cancels its own request"
_FILE = "is itself a row with its tenant, name and time"
_READS = "changes nothing"
SUBMISSIONS = {
    ("POST", "/v1/jobs"): _ROW,
    ("POST", "/v1/jobs/bulk"): _ROW,
    ("POST", "/v1/batches"): _ROW,
    ("POST", "/v1/summaries"): _ROW,
    ("POST", "/v1/answers"): _ROW,
    ("POST", "/v1/extractions"): _ROW,
    ("POST", "/v1/chat/completions"): _WAITED,
    ("POST", "/v1/completions"): _WAITED,
    ("POST", "/v1/embeddings"): _WAITED,
    ("POST", "/v1/responses"): _WAITED,
    ("POST", "/generate"): _WAITED,
    ("POST", "/generate_stream"): _WAITED,
    ("POST", "/v1/files"): _FILE,
    ("POST", "/v1/documents"): _FILE,
    ("POST", "/v1/batches/estimate"): _READS,
    ("POST", "/v1/summaries/estimate"): _READS,
    ("POST", "/v1/answers/estimate"): _READS,
    ("POST", "/v1/extractions/estimate"): _READS,
}


class World:
    """Makes what a change needs.

    Each of its methods returns the request's path parameters, and `_` for what the request takes besides.
    """

    def __init__(self, http: httpx2.Client, sessions: sessionmaker[Session]) -> None:
        self.http = http
        self.sessions = sessions

    def made(self, path: str, **sent: Any) -> dict[str, Any]:  # noqa: ANN401  # of the client
        answer = self.http.post(path, **sent)
        assert answer.is_success, answer.text
        found: dict[str, Any] = answer.json()
        return found

    def job(self) -> dict[str, Any]:
        return {"job_id": self.made("/v1/jobs", json={"input": CANARY})["id"]}

    def ended_job(self) -> dict[str, Any]:
        job = self.job()
        self.made("/v1/jobs/{job_id}/cancel".format(**job))
        return job

    def jobs(self) -> dict[str, Any]:
        self.made("/v1/jobs", json={"input": CANARY, "custom_id": "all of them"})
        return {"_": {"json": {"custom_id": "all of them"}}}

    def response(self) -> dict[str, Any]:
        sent = {"model": MODEL, "input": CANARY, "background": True}
        return {"response_id": self.made("/v1/responses", json=sent)["id"]}

    def ended_response(self) -> dict[str, Any]:
        response = self.response()
        self.made("/v1/responses/{response_id}/cancel".format(**response))
        return response

    def document(self) -> dict[str, Any]:
        content = f"{CANARY} {secrets.token_hex(4)}".encode()
        made = self.made("/v1/documents", content=content, params={"filename": "a.txt"})
        return {"document_id": made["id"]}

    def subject(self, kind: str, name: str, **fields: object) -> dict[str, Any]:
        sent = {"documents": [self.document()["document_id"]]} | fields
        return {name: self.made(f"/v1/{kind}", json=sent)["data"][0]["id"]}

    def summary(self) -> dict[str, Any]:
        return self.subject("summaries", "summary_id", instructions=CANARY)

    def answers(self) -> dict[str, Any]:
        return self.subject("answers", "answers_id", questions=[CANARY])

    def extraction(self) -> dict[str, Any]:
        schema = {"type": "object", "properties": {CANARY: {"type": "string"}}}
        return self.subject("extractions", "extraction_id", schema=schema)

    def ended(self, made: dict[str, Any]) -> dict[str, Any]:
        """The same, after its end."""
        (value,) = made.values()
        ended = {"state": "cancelled", "finalized_at": text("clock_timestamp()")}
        with self.sessions.begin() as session:
            row_id = UUID(hex=value.partition("_")[2])
            session.execute(update(Summary).where(Summary.id == row_id).values(**ended))
        return made

    def file(self) -> dict[str, Any]:
        line = (
            f'{{"custom_id":"a","method":"POST","url":"/v1/chat/completions",'
            f'"body":{{"model":"{MODEL}","messages":[{{"role":"user","content":"{CANARY}"}}]}}}}\n'
        )
        given = {"file": ("a.jsonl", line.encode())}
        return {"file_id": self.made("/v1/files", files=given, data={"purpose": "batch"})["id"]}

    def batch(self) -> dict[str, Any]:
        sent = {"endpoint": "/v1/chat/completions", "completion_window": "24h"}
        made = self.made("/v1/batches", json=sent | {"input_file_id": self.file()["file_id"]})
        return {"batch_id": made["id"]}

    def failed_batch(self) -> dict[str, Any]:
        batch = self.batch()
        with self.sessions.begin() as session:
            row = session.get_one(Batch, ids.parse_batch_id(batch["batch_id"]))
            row.state, row.cancelled_at = "cancelled", row.created_at
            row.error_file_id = row.input_file_id
        return batch

    def endpoint(self) -> dict[str, Any]:
        sent = {"url": f"https://example.com/{CANARY}", "description": CANARY}
        made = self.made("/v1/webhook_endpoints", json=sent)
        self.secret = made["secret"]
        return {"endpoint_id": made["id"]}

    def changed_endpoint(self) -> dict[str, Any]:
        return self.endpoint() | {"_": {"json": {"url": f"https://example.com/{CANARY}/b"}}}

    def event(self) -> dict[str, Any]:
        endpoint = self.endpoint()["endpoint_id"]
        return {"event_id": self.made(f"/v1/webhook_endpoints/{endpoint}/test")["id"]}

    def tenant(self) -> dict[str, Any]:
        return {"tenant": self.made("/v1/tenants", json={"name": f"t-{secrets.token_hex(4)}"})["id"]}

    def key(self) -> dict[str, Any]:
        sent = {"tenant": "default", "name": "of the walk", "scopes": ["read"]}
        made = self.made("/v1/keys", json=sent)
        self.secret = made["api_key"]
        return {"key": made["id"]}

    def engine(self) -> dict[str, Any]:
        with self.sessions.begin() as session:
            register_engine(session, model=MODEL)
        return {"engine": ENGINE}


def sending(make: Make | None = None, **body: object) -> Make:
    """What `make` makes, and this as the request's body."""
    return lambda world: (make(world) if make else {}) | {"_": {"json": body}}


def nothing(_: World) -> dict[str, Any]:
    return {}


# Rotating a key creates one; deleting a tenant pauses its queue.
OF_TWO = {("POST", "/v1/keys/{key}/rotate"), ("DELETE", "/v1/tenants/{tenant}")}
HALT: dict[str, Any] = {"reason": "new driver"}
CHANGES: dict[tuple[str, str], tuple[Action, Make]] = {
    ("POST", "/v1/jobs/{job_id}/cancel"): (Action.JOB_CANCEL, World.job),
    ("DELETE", "/v1/jobs/{job_id}"): (Action.JOB_DELETE, World.ended_job),
    ("POST", "/v1/jobs/cancel"): (Action.JOBS_CANCEL, World.jobs),
    ("POST", "/v1/responses/{response_id}/cancel"): (Action.JOB_CANCEL, World.response),
    ("DELETE", "/v1/responses/{response_id}"): (Action.JOB_DELETE, World.ended_response),
    ("POST", "/v1/batches/{batch_id}/cancel"): (Action.BATCH_CANCEL, World.batch),
    ("POST", "/v1/batches/{batch_id}/retry"): (Action.BATCH_RETRY, World.failed_batch),
    ("POST", "/v1/summaries/{summary_id}/cancel"): (Action.SUMMARY_CANCEL, World.summary),
    ("DELETE", "/v1/summaries/{summary_id}"): (Action.SUMMARY_DELETE, lambda w: w.ended(w.summary())),
    ("POST", "/v1/answers/{answers_id}/cancel"): (Action.ANSWERS_CANCEL, World.answers),
    ("DELETE", "/v1/answers/{answers_id}"): (Action.ANSWERS_DELETE, lambda w: w.ended(w.answers())),
    ("POST", "/v1/extractions/{extraction_id}/cancel"): (Action.EXTRACTION_CANCEL, World.extraction),
    ("DELETE", "/v1/extractions/{extraction_id}"): (
        Action.EXTRACTION_DELETE,
        lambda w: w.ended(w.extraction()),
    ),
    ("DELETE", "/v1/documents/{document_id}"): (Action.DOCUMENT_DELETE, World.document),
    ("DELETE", "/v1/files/{file_id}"): (Action.FILE_DELETE, World.file),
    ("POST", "/v1/webhook_endpoints"): (
        Action.ENDPOINT_CREATE,
        sending(url=f"https://example.com/{CANARY}", events=["job.completed"]),
    ),
    ("PATCH", "/v1/webhook_endpoints/{endpoint_id}"): (Action.ENDPOINT_UPDATE, World.changed_endpoint),
    ("DELETE", "/v1/webhook_endpoints/{endpoint_id}"): (Action.ENDPOINT_DELETE, World.endpoint),
    ("POST", "/v1/webhook_endpoints/{endpoint_id}/rotate"): (Action.ENDPOINT_ROTATE, World.endpoint),
    ("POST", "/v1/webhook_endpoints/{endpoint_id}/test"): (Action.ENDPOINT_TEST, World.endpoint),
    ("POST", "/v1/webhook_endpoints/{endpoint_id}/replay"): (Action.ENDPOINT_REPLAY, World.endpoint),
    ("POST", "/v1/webhook_events/{event_id}/replay"): (Action.EVENT_REPLAY, World.event),
    ("POST", "/v1/webhook_secret/rotate"): (Action.SECRET_ROTATE, nothing),
    ("POST", "/v1/queue/pause"): (Action.QUEUE_PAUSE, sending(**HALT)),
    ("POST", "/v1/queue/drain"): (Action.QUEUE_DRAIN, sending(**HALT)),
    ("POST", "/v1/queue/resume"): (Action.QUEUE_RESUME, nothing),
    ("POST", "/v1/tenants"): (
        Action.TENANT_CREATE,
        lambda _: {"_": {"json": {"name": f"t-{secrets.token_hex(4)}"}}},
    ),
    ("PATCH", "/v1/tenants/{tenant}"): (
        Action.TENANT_SET_LIMITS,
        sending(World.tenant, limits={"max_jobs": 3}),
    ),
    ("DELETE", "/v1/tenants/{tenant}"): (Action.TENANT_DELETE, World.tenant),
    ("POST", "/v1/tenants/{tenant}/queue/pause"): (Action.QUEUE_PAUSE, sending(World.tenant, **HALT)),
    ("POST", "/v1/tenants/{tenant}/queue/drain"): (Action.QUEUE_DRAIN, sending(World.tenant, **HALT)),
    ("POST", "/v1/tenants/{tenant}/queue/resume"): (Action.QUEUE_RESUME, World.tenant),
    ("POST", "/v1/keys"): (Action.KEY_CREATE, sending(tenant="default", scopes=["read"])),
    ("PATCH", "/v1/keys/{key}"): (
        Action.KEY_SET_LIMITS,
        sending(World.key, limits={"max_requests": 3}),
    ),
    ("POST", "/v1/keys/{key}/rotate"): (Action.KEY_CREATE, World.key),  # after `key.rotate`
    ("POST", "/v1/keys/{key}/revoke"): (Action.KEY_REVOKE, World.key),
    ("POST", "/v1/engines/{engine}/pause"): (Action.ENGINE_PAUSE, sending(World.engine, **HALT)),
    ("POST", "/v1/engines/{engine}/drain"): (Action.ENGINE_DRAIN, sending(World.engine, **HALT)),
    ("POST", "/v1/engines/{engine}/resume"): (Action.ENGINE_RESUME, World.engine),
}


@pytest.fixture
def world(http: httpx2.Client, sessions: sessionmaker[Session]) -> World:
    return World(http, sessions)


def test_every_mutating_route_is_audited_or_a_submission() -> None:
    url = SecretStr("postgresql://a@b/c")
    settings = Settings(database=DatabaseSettings(url=url), broker=BrokerSettings(url=SecretStr("redis://a")))
    routes = {
        (method.upper(), path)
        for path, methods in create_app(settings).openapi()["paths"].items()
        for method in methods
        if method.upper() not in READING
    }
    assert routes == CHANGES.keys() | SUBMISSIONS.keys()
    assert not CHANGES.keys() & SUBMISSIONS.keys()


@pytest.mark.parametrize("route", CHANGES, ids=" ".join)
def test_a_change_leaves_an_entry_with_who_what_and_whence(
    world: World, sessions: sessionmaker[Session], route: tuple[str, str]
) -> None:
    (method, path), (action, make) = route, CHANGES[route]
    made = make(world)
    sent = made.pop("_", {})
    before = num_entries(sessions)
    answer = world.http.request(method, path.format(**made), **sent)
    assert answer.is_success, answer.text
    found = world.http.get("/v1/audit", params={"limit": 1}).json()["data"][0]
    assert num_entries(sessions) == before + (2 if route in OF_TWO else 1)
    assert found["action"] == action
    assert found["request_id"] == answer.headers["x-request-id"]
    assert found["actor"] == {"kind": "key", "id": KEY, "name": "tests", "via": "api"}
    assert found["address"] == "127.0.0.1"
    for value in made.values():
        shown = re.sub("^resp_", "job_", value)
        assert shown in {found["object_id"], found["tenant_id"]} or action is Action.KEY_CREATE, found
    assert_no_secret(sessions, world)


def test_a_submission_leaves_none(world: World, sessions: sessionmaker[Session]) -> None:
    world.job()
    world.batch()
    world.summary()
    world.made("/v1/jobs/bulk", content=b'{"input": "a"}\n{"input": "b"}\n')
    assert num_entries(sessions) == 0


def test_a_cancel_that_changes_nothing_leaves_none(world: World, sessions: sessionmaker[Session]) -> None:
    job = world.ended_job()
    assert num_entries(sessions) == 1
    world.made("/v1/jobs/{job_id}/cancel".format(**job))
    assert world.http.post("/v1/jobs/cancel", json={"custom_id": "none"}).json()["cancelled"] == 0
    assert num_entries(sessions) == 1


def num_entries(sessions: sessionmaker[Session]) -> int:
    with sessions() as session:
        return len(session.scalars(select(AuditEntry.id)).all())


def assert_no_secret(sessions: sessionmaker[Session], world: World) -> None:
    with sessions() as session:
        rows = session.execute(text("SELECT row_to_json(audit_log)::text FROM audit_log")).scalars().all()
    written = " ".join(rows)
    assert CANARY not in written
    secret = getattr(world, "secret", None)
    assert secret is None or secret[20:] not in written
