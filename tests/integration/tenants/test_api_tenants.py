"""Every route of the OpenAPI document, walked with another tenant's ids: nothing is there or told."""

import re
import secrets
from collections.abc import Callable, Iterator
from typing import Any

import httpx2
import pytest
from sqlalchemy.orm import Session, sessionmaker

import ending
from api_server import ApiProcess, error_of
from jobs import tenants
from jobs.states import FinishReason
from jobs.tenants import keys
from jobs.tenants.keys import Scope
from support import API_KEY, claim_one, eventually, output_of, register_engine

# Nothing of a tenant's is there, whoever asks.
OPEN = {"/health/live", "/health/ready", "/metrics"}
NO_TENANT = OPEN | {"/v1/version", "/v1/models", "/v1/models/{model}"}
OPERATORS = ("/v1/engines", "/v1/tenants", "/v1/keys")  # only for the scope that no tenant needs
CANARY = "canary-4e1f"
MODEL = "llama-3.1-8b-instruct"


@pytest.fixture
def stranger(server: ApiProcess, sessions: sessionmaker[Session]) -> Iterator[httpx2.Client]:
    """A client of another tenant, with every scope of a tenant."""
    with sessions.begin() as session:
        tenant = tenants.create(session, f"t-{secrets.token_hex(4)}")
        scopes = [each for each in Scope if each is not Scope.OPERATOR]
        made = keys.create(session, tenant_id=tenant.id, name="", scopes=scopes)
    with server.client(api_key=made.secret) as client:
        yield client


@pytest.fixture
def owned(http: httpx2.Client) -> dict[str, str]:
    """Ids of the default tenant, by the name that paths have for them."""
    sent = {"input": CANARY, "custom_id": CANARY, "metadata": {"who": CANARY}, "max_tokens": 8}
    job_id = http.post("/v1/jobs", json=sent, headers={"Idempotency-Key": CANARY}).json()["id"]
    upload = http.post("/v1/documents", content=CANARY.encode(), params={"filename": f"{CANARY}.txt"})
    document = upload.json()["id"]
    asked = {"documents": [document], "instructions": CANARY, "custom_id": CANARY}
    summary = http.post("/v1/summaries", json=asked).json()["data"][0]["id"]
    questions = {"documents": [document], "questions": [CANARY], "custom_id": CANARY}
    answers = http.post("/v1/answers", json=questions).json()["data"][0]["id"]
    schema = {"type": "object", "properties": {CANARY: {"type": "string"}}}
    fields = {"documents": [document], "schema": schema, "custom_id": CANARY}
    extraction = http.post("/v1/extractions", json=fields).json()["data"][0]["id"]
    owned = {"job_id": job_id, "document_id": document, "summary_id": summary, "answers_id": answers}
    owned |= {"extraction_id": extraction}
    owned |= {"engine": "default", "tenant": "default", "key": f"lb_{keys.handle_of(API_KEY)}"}
    return owned | _file_and_batch(http) | _endpoint_and_event(http) | _response(http)


def _response(http: httpx2.Client) -> dict[str, str]:
    """A response that has ended, so that the job is the next one in the queue."""
    sent = {"model": MODEL, "input": CANARY, "background": True, "metadata": {"who": CANARY}}
    response_id = http.post("/v1/responses", json=sent).json()["id"]
    assert http.post(f"/v1/responses/{response_id}/cancel").json()["status"] == "cancelled"
    return {"response_id": response_id}


def look(http: httpx2.Client, owned: dict[str, str]) -> dict[str, Any]:
    """Read the job without its place in the queue, which changes by itself."""
    found: dict[str, Any] = http.get(f"/v1/jobs/{owned['job_id']}").json()
    del found["queue"]
    return found


def test_another_tenant_s_ids_are_404_on_every_route_and_nothing_leaks(
    http: httpx2.Client, stranger: httpx2.Client, owned: dict[str, str], sessions: sessionmaker[Session]
) -> None:
    before = look(http, owned)
    walked = 0
    for method, path, operation in operations(http):
        if path in NO_TENANT:
            continue
        names = re.findall(r"{(\w+)}", path)
        for name in names:
            assert name in owned, f"give the walk an id of another tenant for {{{name}}} of {path}"
        answer = stranger.request(method, path.format(**owned), **body_of(operation))
        if path.startswith(OPERATORS):
            assert answer.status_code == 403, (method, path, answer.text)
        elif names:
            assert answer.status_code == 404, (method, path, answer.text)
            assert error_of(answer)["code"] == "not_found"
        else:
            assert answer.status_code < 500, (method, path, answer.text)
        assert not leaks(answer, owned), (method, path, answer.text)
        walked += 1
    assert walked >= 8
    assert look(http, owned) == before
    end_job(sessions)
    path = f"/v1/jobs/{owned['job_id']}/result"
    assert (stranger.get(path).status_code, http.get(path).json()["output"]) == (404, "said")
    assert stranger.get(f"/v1/jobs/{owned['job_id']}?wait=1").status_code == 404


def test_a_walk_without_a_key_is_401_on_every_route(server: ApiProcess, owned: dict[str, str]) -> None:
    with server.client(api_key=None) as nobody:
        for method, path, operation in operations(nobody):
            if path in OPEN:
                continue
            answer = nobody.request(method, path.format(model=MODEL, **owned), **body_of(operation))
            assert answer.status_code == 401, (method, path)


def test_lists_filters_and_cursors_reach_nobody_else(
    http: httpx2.Client, stranger: httpx2.Client, owned: dict[str, str]
) -> None:
    assert stranger.get("/v1/jobs").json()["data"] == []
    assert stranger.get("/v1/jobs", params={"custom_id": CANARY}).json()["data"] == []
    wrong = stranger.get("/v1/jobs", params={"after": owned["job_id"]})
    assert (wrong.status_code, error_of(wrong)["param"]) == (400, "after")
    for filters in ({"custom_id": CANARY}, {"metadata": {"who": CANARY}}, {"state": "queued"}):
        assert stranger.post("/v1/jobs/cancel", json=filters).json()["cancelled"] == 0
    assert http.get(f"/v1/jobs/{owned['job_id']}").json()["state"] == "queued"


def test_another_tenant_s_file_is_no_input_and_its_ids_are_no_cursors(
    stranger: httpx2.Client, owned: dict[str, str]
) -> None:
    sent = {"input_file_id": owned["file_id"], "endpoint": "/v1/chat/completions"}
    for path, more in (("/v1/batches", {"completion_window": "24h"}), ("/v1/batches/estimate", {})):
        refused = stranger.post(path, json=sent | more)
        assert (refused.status_code, error_of(refused)["param"]) == (400, "input_file_id")
        assert CANARY not in refused.text
    for path in ("/v1/batches", "/v1/files"):
        assert stranger.get(path).json()["data"] == []
        cursor = owned["batch_id"] if path.endswith("batches") else owned["file_id"]
        refused = stranger.get(path, params={"after": cursor})
        assert (refused.status_code, error_of(refused)["param"]) == (400, "after")


def test_equal_keys_and_texts_of_two_tenants_are_two_jobs(
    stranger: httpx2.Client, owned: dict[str, str]
) -> None:
    sent = {"input": CANARY, "custom_id": CANARY, "metadata": {"who": CANARY}, "max_tokens": 8}
    answer = stranger.post("/v1/jobs", json=sent, headers={"Idempotency-Key": CANARY})
    assert answer.status_code == 202
    assert "idempotent-replayed" not in answer.headers
    assert answer.json()["id"] != owned["job_id"]


def test_equal_bytes_of_two_tenants_are_two_documents(
    http: httpx2.Client, stranger: httpx2.Client, owned: dict[str, str]
) -> None:
    sent: dict[str, Any] = {"content": CANARY.encode(), "params": {"filename": f"{CANARY}.txt"}}
    assert http.post("/v1/documents", **sent).json()["id"] == owned["document_id"]
    answer = stranger.post("/v1/documents", **sent)
    assert answer.status_code == 202
    assert answer.json()["id"] != owned["document_id"]
    assert [each["id"] for each in stranger.get("/v1/documents").json()["data"]] == [answer.json()["id"]]
    refused = stranger.get("/v1/documents", params={"after": owned["document_id"]})
    assert (refused.status_code, error_of(refused)["param"]) == (400, "after")


def test_waits_of_two_tenants_share_a_query_and_nothing_else(
    http: httpx2.Client,
    stranger: httpx2.Client,
    owned: dict[str, str],
    sessions: sessionmaker[Session],
    background: Callable[..., Any],
) -> None:
    theirs = stranger.post("/v1/jobs", json={"input": "a"}).json()["id"]
    waits = [
        background(client.get, f"/v1/jobs/{job_id}?wait=30")
        for client, job_id in ((http, owned["job_id"]), (stranger, theirs))
    ]
    eventually(lambda: "longbatch_http_open_requests 3.0" in http.get("/metrics").text)
    end_job(sessions)
    end_job(sessions)
    ended = [wait.result().json() for wait in waits]
    assert [job["id"] for job in ended] == [owned["job_id"], theirs]
    assert [job["state"] for job in ended] == ["completed"] * 2


def operations(http: httpx2.Client) -> list[tuple[str, str, dict[str, Any]]]:
    document = http.get("/openapi.json").json()
    return [
        (method.upper(), path, operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    ]


def body_of(operation: dict[str, Any]) -> dict[str, Any]:
    """A body that the operation reads: the smallest that is not refused for its form."""
    content = operation.get("requestBody", {}).get("content", {})
    if "application/x-ndjson" in content:
        return {"content": b'{"input": "a"}\n'}
    if "application/octet-stream" in content:
        return {"content": b"a"}
    if "multipart/form-data" in content:
        return {"files": {"file": ("a.jsonl", b"{}\n")}, "data": {"purpose": "batch"}}
    return {"json": {"input": "a"}} if content else {}


def leaks(answer: httpx2.Response, owned: dict[str, str]) -> bool:
    told = answer.text + str(answer.headers)
    return CANARY in told or any(each in answer.text.replace(str(answer.url), "") for each in owned.values())


def end_job(sessions: sessionmaker[Session]) -> None:
    with sessions.begin() as session:
        register_engine(session, model=MODEL)
        ending.complete(session, claim_one(session).lease, output_of("said"), FinishReason.STOP)


def _file_and_batch(http: httpx2.Client) -> dict[str, str]:
    line = (
        f'{{"custom_id":"{CANARY}","method":"POST","url":"/v1/chat/completions",'
        f'"body":{{"model":"{MODEL}","messages":[{{"role":"user","content":"{CANARY}"}}],"max_tokens":8}}}}\n'
    )
    uploaded = http.post("/v1/files", files={"file": ("a.jsonl", line.encode())}, data={"purpose": "batch"})
    sent = {"endpoint": "/v1/chat/completions", "completion_window": "24h"}
    batch = http.post("/v1/batches", json=sent | {"input_file_id": uploaded.json()["id"]})
    return {"file_id": uploaded.json()["id"], "batch_id": batch.json()["id"]}


def _endpoint_and_event(http: httpx2.Client) -> dict[str, str]:
    sent = {"url": f"https://example.com/{CANARY}", "description": CANARY}
    endpoint_id = http.post("/v1/webhook_endpoints", json=sent).json()["id"]
    event_id = http.post(f"/v1/webhook_endpoints/{endpoint_id}/test").json()["id"]
    return {"endpoint_id": endpoint_id, "event_id": event_id}
