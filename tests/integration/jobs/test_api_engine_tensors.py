"""Jobs that name tensors of their engine's model, as the API takes, shares, stores and deletes them."""

import json
from typing import Any

import httpx2
import pytest
from sqlalchemy import func, select
from sqlalchemy.orm import Session, sessionmaker

from api_server import ApiProcess, error_of
from jobs.database import database_now
from jobs.engines import registry
from jobs.engines.tensors import DeclaredTensor, DeclaredTensors
from jobs.models import DEFAULT_TENANT, EngineOutput, Job, JobTensors, PromptText
from jobs.settings import EngineSettings
from jobs.tenants import keys
from jobs.tenants.keys import Scope
from support import CAPACITY, ENGINE, eventually, new_tenant

DECLARED = DeclaredTensors(
    {"draft_input_ids": DeclaredTensor("INT32", (-1,))},
    {"context_logits": DeclaredTensor("FP32", (-1, -1))},
    frozenset({"input_ids"}),
)
DRAFT = {"datatype": "INT32", "shape": [2], "data": [1, 2]}
PASSED: dict[str, Any] = {"engine_inputs": {"draft_input_ids": DRAFT}}
WANTED: dict[str, Any] = {"engine_outputs": ["context_logits"]}


@pytest.fixture
def declared(http: httpx2.Client, sessions: sessionmaker[Session]) -> httpx2.Client:
    """A client of the service, which knows of an engine on Triton."""
    register(sessions, ENGINE, DECLARED)
    ready = eventually(lambda: (a := http.post("/v1/jobs", json=body())).status_code == 202 and a)
    http.post("/v1/jobs/cancel", json={"state": ready.json()["state"]})
    return http


def register(sessions: sessionmaker[Session], name: str, tensors: DeclaredTensors) -> None:
    model = EngineSettings().model
    with sessions.begin() as session:
        registry.register(session, name, model, CAPACITY, now=database_now(session))
        registry.declare(session, name, tensors)


def body(**fields: Any) -> dict[str, Any]:  # noqa: ANN401  # JSON
    return {"input": "Say yes."} | PASSED | fields


@pytest.mark.parametrize(
    ("fields", "param", "said"),
    [
        ({"engine_inputs": {"input_ids": DRAFT}}, "engine_inputs.input_ids", "sets this input itself"),
        ({"engine_inputs": {"other": DRAFT}}, "engine_inputs.other", "draft_input_ids (INT32 [-1])"),
        (
            {"engine_inputs": {"draft_input_ids": DRAFT | {"shape": [1, 2]}}},
            "engine_inputs.draft_input_ids",
            "must be INT32 [-1], not INT32 [1, 2]",
        ),
        ({"engine_outputs": ["output_ids"]}, "engine_outputs.0", "context_logits (FP32 [-1, -1])"),
    ],
)
def test_what_the_engines_do_not_declare_is_refused_in_jobs_and_lines(
    declared: httpx2.Client, fields: dict[str, Any], param: str, said: str
) -> None:
    answer = declared.post("/v1/jobs", json={"input": "a"} | fields)
    assert (answer.status_code, error_of(answer)["param"]) == (400, param)
    assert said in str(error_of(answer)["message"])
    lines = "\n".join(json.dumps({"input": "a"} | each) for each in (fields, PASSED))
    report = declared.post("/v1/jobs/bulk", content=lines).json()
    assert (report["accepted"], [each["param"] for each in report["errors"]]) == (1, [param])


@pytest.mark.usefixtures("declared")
def test_it_takes_a_scope_of_its_own(server: ApiProcess, sessions: sessionmaker[Session]) -> None:
    others = [each for each in Scope if each is not Scope.ENGINE]
    with sessions.begin() as session:
        without = keys.create(session, tenant_id=DEFAULT_TENANT, name="", scopes=others)
        both = [Scope.SUBMIT, Scope.ENGINE]
        granted = keys.create(session, tenant_id=DEFAULT_TENANT, name="", scopes=both)
    with server.client(api_key=without.secret) as http:
        for fields in (PASSED, WANTED):
            refused = http.post("/v1/jobs", json={"input": "a"} | fields)
            assert (refused.status_code, error_of(refused)["code"]) == (403, "insufficient_scope")
            assert "'engine'" in str(error_of(refused)["message"])
        assert http.post("/v1/jobs", json={"input": "a"}).status_code == 202
        report = http.post("/v1/jobs/bulk", content=json.dumps(body())).json()
        assert [each["code"] for each in report["errors"]] == ["insufficient_scope"]
    with server.client(api_key=granted.secret) as http:
        assert http.post("/v1/jobs", json=body(**WANTED)).status_code == 202


def test_such_a_job_is_whole_and_its_tensors_go_with_the_last_job_that_has_them(
    declared: httpx2.Client, sessions: sessionmaker[Session]
) -> None:
    def num_kept() -> tuple[int, int]:
        with sessions() as session:
            rows = session.scalar(select(func.count()).select_from(JobTensors)) or 0
            return rows, session.scalar(select(func.count(JobTensors.text_id.distinct()))) or 0

    listed = declared.get("/v1/jobs").json()["data"]
    for each in listed:
        assert declared.delete(f"/v1/jobs/{each['id']}").status_code == 200
    with sessions() as session:
        assert not session.scalars(select(PromptText.id)).all()
    ids = [declared.post("/v1/jobs", json=body()).json()["id"] for _ in range(2)]
    with sessions() as session:
        assert session.scalars(select(Job.is_whole)).all() == [True, True]
    assert num_kept() == (2, 1)
    for left, job_id in zip((1, 0), ids, strict=True):
        declared.post(f"/v1/jobs/{job_id}/cancel")
        result = declared.get(f"/v1/jobs/{job_id}/result").json()
        assert result["engine_outputs"] is None
        declared.delete(f"/v1/jobs/{job_id}")
        assert num_kept() == (left, left)
    with sessions() as session:
        assert not session.scalars(select(PromptText.id)).all()
        assert not session.scalars(select(EngineOutput.job_id)).all()


def test_only_jobs_with_equal_inputs_and_without_outputs_share_a_run(declared: httpx2.Client) -> None:
    shared = {"share_equal": True, "input": "Share."}
    other = {"engine_inputs": {"draft_input_ids": DRAFT | {"data": [1, 3]}}}

    def state(fields: dict[str, Any]) -> str:
        answer = declared.post("/v1/jobs", json=body(**shared) | fields)
        job: str = declared.get(f"/v1/jobs/{answer.json()['id']}").json()["state"]
        return job

    leads = state({})
    assert leads != "blocked"
    assert [state({}), state(other), state(WANTED), state(WANTED), state({"engine_inputs": None})] == [
        "blocked",
        leads,
        leads,
        leads,
        leads,
    ]


def test_an_idempotency_key_tells_different_tensors_apart(declared: httpx2.Client) -> None:
    headers = {"Idempotency-Key": "one"}
    first = declared.post("/v1/jobs", json=body(), headers=headers)
    again = declared.post("/v1/jobs", json=body(), headers=headers)
    assert again.json()["id"] == first.json()["id"]
    assert declared.post("/v1/jobs", json={"input": "Say yes."}, headers=headers).status_code == 409


def uploaded(http: httpx2.Client, content: bytes, purpose: str = "engine_input") -> str:
    """The id of a file of these bytes."""
    answer = http.post("/v1/files", data={"purpose": purpose}, files={"file": ("ids.bin", content)})
    assert answer.status_code == 200, answer.text
    assert answer.json()["purpose"] == purpose
    file_id: str = answer.json()["id"]
    return file_id


def test_a_file_may_hold_a_tensor(declared: httpx2.Client, sessions: sessionmaker[Session]) -> None:
    file_id = uploaded(declared, bytes(8))
    listed = declared.get("/v1/files", params={"purpose": "engine_input"}).json()["data"]
    assert [each["id"] for each in listed] == [file_id]
    from_file = {"draft_input_ids": {"datatype": "INT32", "shape": [2], "file_id": file_id}}
    assert declared.post("/v1/jobs", json=body(engine_inputs=from_file)).status_code == 202
    lines = "\n".join(json.dumps(body(engine_inputs=from_file)) for _ in range(2))
    assert declared.post("/v1/jobs/bulk", content=lines).json()["accepted"] == 2
    with sessions() as session:
        texts = session.scalar(select(func.count(JobTensors.text_id.distinct())))
    assert texts == 2, "that of the fixture's job, and one of all these"


def test_a_file_that_does_not_hold_the_tensor_is_refused_in_jobs_and_lines(
    declared: httpx2.Client, server: ApiProcess, sessions: sessionmaker[Session]
) -> None:
    with sessions.begin() as session:
        other = new_tenant(session)
        theirs = keys.create(session, tenant_id=other, name="", scopes=list(Scope))
    with server.client(api_key=theirs.secret) as http:
        foreign = uploaded(http, bytes(8))
    deleted = uploaded(declared, bytes(8))
    declared.delete(f"/v1/files/{deleted}")
    lines = declared.post(
        "/v1/files", data={"purpose": "batch"}, files={"file": ("a.jsonl", b"{}\n" * 2)}
    ).json()["id"]
    wrong = {
        uploaded(declared, bytes(9)): "the tensor has 8 bytes, and the file 9",
        **dict.fromkeys((foreign, deleted, lines), "you have no file of this id"),
        "file-1": "must be the id of a file",
    }
    param = "engine_inputs.draft_input_ids.file_id"
    requests = []
    for file_id, said in wrong.items():
        tensor = {"datatype": "INT32", "shape": [2], "file_id": file_id}
        requests.append(body(engine_inputs={"draft_input_ids": tensor}))
        answer = declared.post("/v1/jobs", json=requests[-1])
        assert (answer.status_code, error_of(answer)["param"]) == (400, param), file_id
        assert said in str(error_of(answer)["message"])
    content = "\n".join(json.dumps(each) for each in [*requests, body()])
    report = declared.post("/v1/jobs/bulk", content=content).json()
    assert (report["accepted"], report["rejected"]) == (1, len(wrong))
    assert {each["param"] for each in report["errors"]} == {param}


def test_a_model_of_which_one_engine_declares_nothing_is_passed_nothing(
    declared: httpx2.Client, sessions: sessionmaker[Session]
) -> None:
    register(sessions, "engine-b", DeclaredTensors())
    refused = eventually(lambda: (a := declared.post("/v1/jobs", json=body())).status_code == 400 and a)
    assert error_of(refused)["code"] == "unsupported_parameter"
    assert error_of(refused)["param"] == "engine_inputs"
