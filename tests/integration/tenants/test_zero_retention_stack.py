"""A tenant without retention on a whole stack: afterwards no store and no log has anything of its content."""

import json
import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import pytest
import redis
import zstandard
from sqlalchemy import select
from sqlalchemy.orm import Session, sessionmaker

from api_server import ApiProcess, Serve
from cli.stack.servers.valkey import EmbeddedValkey
from jobs import ids, tenants
from jobs.models import Job, PromptText, Result
from jobs.settings import Settings
from jobs.tenants import keys, usage
from jobs.tenants.keys import Scope
from openai_support import chat_line, jsonl
from searching import stores
from searching.stores import Marks
from support import eventually
from webhook_support import OK, WEBHOOKS, Receiver, status
from worker_support import MODEL, WorkerProcess

# The search must find it where it is, before it can be said to be gone.
STORED = {"texts.body", "texts.token_ids", "results.output", "results.output_ids"}


@dataclass
class ZeroStack:
    """An API and workers as processes, with a tenant without retention."""

    sessions: sessionmaker[Session]
    broker: redis.Redis
    http: httpx2.Client
    api: ApiProcess
    logs: Path

    def ended(self, path: str) -> dict[str, Any]:
        """The job, once it has ended."""
        return eventually(lambda: (job := self.http.get(path).json())["finalized_at"] and job)

    def marks_of(self, path: str, *words: str) -> Marks:
        """What the job made, as it is stored now, and these words of its prompt."""
        with self.sessions() as session:
            job = session.get_one(Job, ids.parse_job_id(path.rpartition("/")[2]))
            text, result = session.get_one(PromptText, job.text_id), session.get_one(Result, job.id)
        assert text.token_ids is not None
        runs = [_ids(text.token_ids)[40:60], _ids(result.output_ids)[:8]]
        return Marks([*words, result.output[:40]], runs)

    def traces(self, marks: Marks) -> set[str]:
        """Where any of it is: tables, Redis, and the logs of all processes."""
        logged = {"log of the API"} if marks.are_in("".join(self.api.lines).encode()) else set()
        found = stores.in_database(self.sessions, marks) | stores.in_redis(self.broker, marks)
        return found | stores.in_files(self.logs, marks) | logged

    def until_gone(self, marks: Marks) -> None:
        eventually(lambda: not self.traces(marks), interval=0.2)


def _ids(packed: bytes) -> tuple[int, ...]:
    raw = zstandard.ZstdDecompressor().decompressobj().decompress(packed)
    return tuple(int(each) for each in np.frombuffer(raw, dtype="<i4"))


@pytest.fixture(scope="module")
def api(serve: Serve) -> Iterator[ApiProcess]:
    assert WEBHOOKS.secret is not None
    assert WEBHOOKS.encryption_key is not None
    variables = {
        "LONGBATCH_WEBHOOKS__SECRET": WEBHOOKS.secret.get_secret_value(),
        "LONGBATCH_WEBHOOKS__ENCRYPTION_KEY": WEBHOOKS.encryption_key.get_secret_value(),
        "LONGBATCH_WEBHOOKS__ALLOWED_HOSTS": json.dumps(WEBHOOKS.allowed_hosts),
        "LONGBATCH_API__ENGINE_CACHE_SECONDS": "0",
        "LONGBATCH_ENGINE__MODEL": MODEL,
    }
    with serve(**variables) as process:
        yield process


@pytest.fixture
def stack(
    api: ApiProcess,
    sessions: sessionmaker[Session],
    feeding: Callable[..., Settings],
    valkey: EmbeddedValkey,
    tmp_path: Path,
) -> Iterator[ZeroStack]:
    with sessions.begin() as session:
        row = tenants.create(session, f"t-{secrets.token_hex(4)}")
        tenants.set_retention(session, row.id, 3600)
        scopes = [Scope.SUBMIT, Scope.READ]
        key = keys.create(session, tenant_id=row.id, name="theirs", scopes=scopes)
    broker = redis.Redis.from_url(valkey.url)
    for each in broker.scan_iter(match="longbatch:live:*"):  # what tests before generated
        broker.unlink(each)
    settings = feeding().model_copy(
        update={
            "webhooks": WEBHOOKS,
            "maintenance": feeding().maintenance.model_copy(update={"expire_seconds": 0.2}),
        }
    )
    workers = [WorkerProcess(role, settings, tmp_path / f"{role}.log") for role in ("inference", "service")]
    try:
        with api.client(api_key=key.secret) as http:
            yield ZeroStack(sessions, broker, http, api, tmp_path)
    finally:
        for each in workers:
            each.end()


def test_nothing_is_left_of_a_job_whose_result_was_read(stack: ZeroStack) -> None:
    word = f"w{secrets.token_hex(8)}"
    asked = {"input": f"Say {word}. " * 30, "max_tokens": 64}
    headers = {"Idempotency-Key": "once"}
    path = stack.http.post("/v1/jobs", json=asked, headers=headers).headers["location"]
    assert stack.ended(path)["state"] == "completed"
    marks = stack.marks_of(path, word)
    assert stack.traces(marks) >= STORED
    assert stack.http.get(path).status_code == 200, "looking at the job delivers nothing"
    assert stack.traces(marks) >= STORED
    result = stack.http.get(f"{path}/result")
    assert len(result.json()["output"]) > 40
    stack.until_gone(marks)
    assert stack.http.get(f"{path}/result").status_code == 404
    again = stack.http.post("/v1/jobs", json=asked, headers=headers)
    assert (again.status_code, again.json()["error"]["code"]) == (409, "already_delivered")
    with stack.sessions() as session:
        assert session.scalars(select(Job)).all() == []
        (used,) = usage.read_totals(session, first=date.min, last=date.max).values()
    assert used.num_jobs == 1, "it is still counted"


def test_nothing_is_left_of_a_job_whose_webhook_was_accepted(stack: ZeroStack, receiver: Receiver) -> None:
    word = f"w{secrets.token_hex(8)}"
    receiver.answers["/hook"] = status(500)
    asked = {
        "input": f"Say {word}. " * 30,
        "max_tokens": 64,
        "webhook_url": receiver.url(),
        "webhook_include_output": True,
    }
    path = stack.http.post("/v1/jobs", json=asked).headers["location"]
    eventually(lambda: receiver.at("/hook"))
    marks = stack.marks_of(path, word)
    assert stack.traces(marks) >= STORED | {"webhook_events.output"}, "a refused delivery is none"
    receiver.answers["/hook"] = OK
    stack.until_gone(marks)
    event = receiver.at("/hook")[-1].event
    assert event["type"] == "job.completed"
    assert event["data"]["output"].startswith(list(marks.words)[-1])


@pytest.mark.parametrize("stream", [False, True])
def test_nothing_is_left_of_an_answer_that_its_caller_waited_for(stack: ZeroStack, *, stream: bool) -> None:
    word = f"w{secrets.token_hex(8)}"
    asked = {
        "model": MODEL,
        "messages": [{"role": "user", "content": f"Say {word}. " * 30}],
        "max_tokens": 64,
        "stream": stream,
    }
    answer = stack.http.post("/v1/chat/completions", json=asked)
    assert answer.status_code == 200
    if stream:
        chunks = [
            line.removeprefix("data: ") for line in answer.text.splitlines() if line.startswith("data: {")
        ]
        said = "".join(
            choice["delta"].get("content") or "" for each in chunks for choice in json.loads(each)["choices"]
        )
    else:
        said = answer.json()["choices"][0]["message"]["content"]
    assert len(said) > 40
    stack.until_gone(Marks([word, said[:40]]))


def test_nothing_is_left_of_a_batch_whose_results_were_read(stack: ZeroStack) -> None:
    word = f"w{secrets.token_hex(8)}"
    lines = [
        chat_line(f"line-{place}", f"Say {word}. " * 10, model=MODEL, max_tokens=64) for place in range(3)
    ]
    raw = jsonl(lines)
    file = stack.http.post("/v1/files", files={"file": ("b.jsonl", raw)}, data={"purpose": "batch"}).json()
    made = stack.http.post(
        "/v1/batches",
        json={
            "input_file_id": file["id"],
            "endpoint": "/v1/chat/completions",
            "completion_window": "24h",
        },
    ).json()
    batch = eventually(
        lambda: (
            (found := stack.http.get(f"/v1/batches/{made['id']}").json())["status"] == "completed" and found
        )
    )
    marks = Marks([word])
    eventually(lambda: not stack.traces(marks), interval=0.2)
    assert stack.http.get(f"/v1/files/{file['id']}").status_code == 404, "no batch needs its lines any more"
    content = stack.http.get(f"/v1/files/{batch['output_file_id']}/content")
    found = [json.loads(line) for line in content.text.splitlines()]
    said = [each["response"]["body"]["choices"][0]["message"]["content"] for each in found]
    assert len(said) == len(lines)
    stack.until_gone(Marks([word, *(each[:40] for each in said)]))
    assert stack.http.get(f"/v1/files/{batch['output_file_id']}/content").status_code == 404


def test_operators_set_it_and_take_it_back(api: ApiProcess, sessions: sessionmaker[Session]) -> None:
    name = f"t-{secrets.token_hex(4)}"
    with api.client() as http:
        made = http.post("/v1/tenants", json={"name": name, "zero_retention_seconds": 60}).json()
        assert made["zero_retention_seconds"] == 60
        path = f"/v1/tenants/{name}"
        assert http.patch(path, json={"weight": 2}).json()["zero_retention_seconds"] == 60
        refused = http.patch(path, json={"zero_retention_seconds": 59})
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "zero_retention_seconds")
        assert (
            http.patch(path, json={"zero_retention_seconds": None}).json()["zero_retention_seconds"] is None
        )
    with sessions() as session:
        assert tenants.named(session, name).zero_retention_seconds is None
