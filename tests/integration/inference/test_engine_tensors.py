"""Tensors by name through a worker and a real Triton server: to the engine, and back as files."""

import io
from collections.abc import Callable, Iterator
from typing import Any
from uuid import UUID

import httpx2
import numpy as np
import pytest
from numpy.typing import NDArray
from sqlalchemy import select
from sqlalchemy.orm import Session, sessionmaker

import ending
from api_server import ApiProcess, Serve
from cli.stack.servers.valkey import EmbeddedValkey
from jobs import deletion, files, ids, lifecycle
from jobs.checkpoints import Output
from jobs.database import database_now, transaction
from jobs.engines import tensor_rows
from jobs.engines.tensor_rows import NewOutput
from jobs.engines.tensors import TensorInput, TensorRequest
from jobs.models import DEFAULT_TENANT, EngineOutput, File, Job
from jobs.prompts.store import NewText
from jobs.settings import DatabaseSettings, EngineSettings, JobSettings, Settings
from jobs.states import FinishReason
from jobs.transitions import Lease
from stand_in_engine import standing_in
from support import claim_one, eventually, register_engine, spec, submit_one
from worker.engine.deltas import OutputDelta
from worker.inference.outcome import Finished, RunEnd, write_outcome
from worker.inference.tensors.outputs import EngineOutputs, OutputFiles
from worker_suite import settings_of_worker
from worker_support import MODEL, Queue, running_worker

NUM_LOGITS = 16
TRUE = {"datatype": "BOOL", "shape": [1], "data": [True]}
BOTH_LOGITS: dict[str, Any] = {"return_context_logits": TRUE, "return_generation_logits": TRUE}


@pytest.fixture(scope="module")
def api(serve: Serve) -> Iterator[ApiProcess]:
    with serve(LONGBATCH_ENGINE__MODEL=MODEL) as process:
        yield process


@pytest.fixture
def client(api: ApiProcess, queue: Queue) -> Iterator[httpx2.Client]:  # noqa: ARG001  # without jobs
    with api.client() as found:
        yield found


def submitted(client: httpx2.Client, **fields: Any) -> str:  # noqa: ANN401  # JSON
    """The id of a job that is accepted once the API has heard of the engine."""
    body = {"input": "Tell a story of a ship.", "max_tokens": 40} | fields
    answer = eventually(lambda: (a := client.post("/v1/jobs", json=body)).status_code == 202 and a)
    job_id: str = answer.json()["id"]
    return job_id


def result_of(client: httpx2.Client, job_id: str) -> dict[str, Any]:
    eventually(lambda: client.get(f"/v1/jobs/{job_id}?wait=10").json()["finalized_at"])
    found: dict[str, Any] = client.get(f"/v1/jobs/{job_id}/result").json()
    return found


def loaded(client: httpx2.Client, output: dict[str, Any]) -> NDArray[Any]:
    content = client.get(f"/v1/files/{output['file_id']}/content").content
    assert len(content) == output["bytes"]
    found: NDArray[Any] = np.load(io.BytesIO(content))
    assert list(found.shape) == output["shape"]
    return found


def one_hot(token_ids: list[int]) -> list[list[float]]:
    rows: list[list[float]] = np.eye(NUM_LOGITS)[np.array(token_ids) % NUM_LOGITS].tolist()
    return rows


def test_tensors_go_to_the_engine_and_come_back_as_files_whole_over_all_responses(
    client: httpx2.Client, queue: Queue, feeding: Callable[..., Settings]
) -> None:
    table = {"datatype": "FP16", "shape": [2, 4], "data": [0.5] * 8}
    draft = {"datatype": "INT32", "shape": [3], "data": [7, 8, 9]}
    names = ["context_logits", "generation_logits", "total_draft_tokens", "kv_cache_alloc_new_blocks"]
    with running_worker(feeding(), queue.tokenizer):
        job_id = submitted(
            client,
            engine_inputs=BOTH_LOGITS | {"prompt_embedding_table": table, "draft_input_ids": draft},
            engine_outputs=[*names, "cum_log_probs"],
        )
        result = result_of(client, job_id)
    assert result["state"] == "completed"
    assert result["usage"]["completion_tokens"] == 40
    outputs = result["engine_outputs"]
    assert list(outputs) == sorted([*names, "cum_log_probs"])
    assert outputs.pop("cum_log_probs") is None, "the engine sent none"
    assert {each["datatype"] for each in outputs.values()} == {"FP32", "INT32"}
    generated = queue.result_ids(ids.parse_job_id(job_id))
    generation = loaded(client, outputs["generation_logits"])
    assert generation.shape == (1, 40, NUM_LOGITS)
    assert generation[0].tolist() == one_hot(generated)
    context = loaded(client, outputs["context_logits"])
    assert context.shape == (result["usage"]["prompt_tokens"], NUM_LOGITS)
    assert {float(each) for each in context.ravel()} == {0.5, 1.5}, (
        "its table of embeddings reached the engine"
    )
    assert loaded(client, outputs["total_draft_tokens"]).tolist() == [3]
    assert loaded(client, outputs["kv_cache_alloc_new_blocks"]).shape == (1,)


def uploaded(client: httpx2.Client, content: bytes) -> str:
    answer = client.post("/v1/files", data={"purpose": "engine_input"}, files={"file": ("t", content)})
    file_id: str = answer.json()["id"]
    return file_id


def test_a_file_s_bytes_go_to_the_engine(
    client: httpx2.Client, queue: Queue, feeding: Callable[..., Settings]
) -> None:
    values = np.full((2**20, 2), 0.25, dtype="<f2")
    file_id = uploaded(client, values.tobytes())
    table = {"datatype": "FP16", "shape": [2**20, 2], "file_id": file_id}
    inputs = BOTH_LOGITS | {"prompt_embedding_table": table}
    with running_worker(feeding(), queue.tokenizer):
        job_id = submitted(client, engine_inputs=inputs, engine_outputs=["context_logits"])
        outputs = result_of(client, job_id)["engine_outputs"]
    assert {float(each) for each in loaded(client, outputs["context_logits"]).ravel()} == {0.25, 1.25}


def test_a_job_whose_file_is_gone_fails_with_its_reason(
    client: httpx2.Client, queue: Queue, feeding: Callable[..., Settings]
) -> None:
    settings = feeding()
    with running_worker(settings, queue.tokenizer):
        submitted(client, engine_inputs=BOTH_LOGITS)  # the API has heard of the engine
    file_id = uploaded(client, bytes(4))
    table = {"datatype": "FP16", "shape": [1, 2], "file_id": file_id}
    job_id = submitted(client, engine_inputs={"prompt_embedding_table": table})
    assert client.delete(f"/v1/files/{file_id}").status_code == 200
    with running_worker(settings, queue.tokenizer):
        error = result_of(client, job_id)["error"]
    assert error["code"] == "engine_input_gone"


def test_files_are_their_job_s_and_go_with_it(
    client: httpx2.Client, queue: Queue, feeding: Callable[..., Settings]
) -> None:
    with running_worker(feeding(), queue.tokenizer):
        job_id = submitted(client, engine_inputs=BOTH_LOGITS, engine_outputs=["generation_logits"])
        output = result_of(client, job_id)["engine_outputs"]["generation_logits"]
    [listed] = client.get("/v1/files", params={"purpose": "engine_output"}).json()["data"]
    assert (listed["id"], listed["bytes"], listed["status"]) == (
        output["file_id"],
        output["bytes"],
        "processed",
    )
    assert listed["filename"] == f"{job_id}_generation_logits.npy"
    assert listed["expires_at"] is None
    assert client.delete(f"/v1/jobs/{job_id}").status_code == 200
    assert client.get(f"/v1/files/{output['file_id']}").status_code == 404
    with queue.sessions() as session:
        assert session.scalars(select(File.state)).all() == ["deleted"]


def test_a_file_may_be_deleted_before_its_job(
    client: httpx2.Client, queue: Queue, feeding: Callable[..., Settings]
) -> None:
    with running_worker(feeding(), queue.tokenizer):
        job_id = submitted(client, engine_inputs=BOTH_LOGITS, engine_outputs=["context_logits"])
        output = result_of(client, job_id)["engine_outputs"]["context_logits"]
    assert client.delete(f"/v1/files/{output['file_id']}").status_code == 200
    assert result_of(client, job_id)["engine_outputs"] == {"context_logits": None}
    assert client.delete(f"/v1/jobs/{job_id}").status_code == 200


def test_a_job_whose_tensors_are_too_large_fails_with_the_limit(
    client: httpx2.Client, queue: Queue, feeding: Callable[..., Settings]
) -> None:
    settings = feeding(max_engine_output_bytes=1024)
    with running_worker(settings, queue.tokenizer):
        job_id = submitted(client, engine_inputs=BOTH_LOGITS, engine_outputs=["generation_logits"])
        result = result_of(client, job_id)
    assert (result["state"], result["engine_outputs"]) == ("failed", None)
    assert result["error"]["code"] == "engine_outputs_too_large"
    assert "1024 bytes" in result["error"]["message"]
    with queue.sessions() as session:
        assert not session.scalars(select(File)).all()
        assert session.scalars(select(Job.attempt)).all() == [0], "another attempt would end the same way"


def test_an_engine_that_is_not_triton_refuses_by_name(
    queue: Queue, database_settings: DatabaseSettings, valkey: EmbeddedValkey
) -> None:
    asked = TensorRequest({"draft_input_ids": TensorInput("INT32", (1,), bytes(4))})
    with standing_in("vllm") as stand_in:
        fed = {"url": stand_in.url, "max_batch_size": 4, "max_blocks": 256, "tokens_per_block": 32}
        settings = settings_of_worker(database_settings, valkey.url, EngineSettings.model_validate(fed))
        with running_worker(settings, queue.tokenizer):
            ended = queue.ended(queue.submit("Hi", tensors=NewText(asked.written()), is_whole=True))
    assert ended.error is not None
    assert (ended.state, ended.error["code"]) == ("failed", "unsupported_parameter")
    assert "engine_inputs" in str(ended.error["message"])


def wanting(session: Session) -> Lease:
    """A running job that wants a tensor."""
    register_engine(session)
    asked = TensorRequest(outputs=("logits", "other"))
    submit_one(session, spec(tensors=NewText(asked.written()), is_whole=True))
    return claim_one(session).lease


def keep(sessions: sessionmaker[Session], lease: Lease, value: int) -> None:
    """Store what a run got, as it does before its end."""
    outputs = EngineOutputs(("logits", "other"), max_bytes=1000)
    outputs.add(OutputDelta("logits", "INT8", (1,), bytes([value])))
    with sessions() as session:
        job = session.get_one(Job, lease.job_id)
    OutputFiles(sessions).keep(outputs, _Claimed(lease, job))  # type: ignore[arg-type]  # all that it reads


class _Claimed:
    def __init__(self, lease: Lease, job: Job) -> None:
        self.lease, self.job = lease, job


def complete(sessions: sessionmaker[Session], lease: Lease) -> str | None:
    end = RunEnd(Finished(FinishReason.STOP), engine_is_done=True)
    output = Output("yes", (), 1, has_files=True)
    with transaction(sessions) as session:
        return ending.store(session, write_outcome(lease, end, output, settings=JobSettings()))


def visible(sessions: sessionmaker[Session], job_id: UUID) -> dict[str, int | None]:
    """The last byte of each of the job's visible files."""
    with sessions() as session:
        found = tensor_rows.read_outputs(session, job_id)
        contents = {
            output.name: None if file is None else b"".join(read_file(session, file.id))
            for output, file in found
        }
    return {name: content and content[-1] for name, content in contents.items()}  # type: ignore[misc]


def read_file(session: Session, file_id: UUID) -> Iterator[bytes]:
    from jobs.files.storage import RowStore

    return files.read_chunks(session, file_id, RowStore())


def test_files_of_a_lost_run_vanish_as_another_one_completes_the_job(
    sessions: sessionmaker[Session], queue: Queue
) -> None:
    with transaction(sessions) as session:
        first = wanting(session)
    keep(sessions, first, 1)
    with sessions() as session:
        [hidden] = session.scalars(select(File))
        assert (hidden.state, hidden.purpose) == ("uploading", "engine_output")
    queue.rescue()
    with transaction(sessions) as session:
        second = claim_one(session).lease
    assert complete(sessions, first) is None, "its lease is lost"
    keep(sessions, second, 2)
    keep(sessions, first, 3)  # too late
    assert complete(sessions, second) == "completed"
    assert visible(sessions, first.job_id) == {"logits": 2, "other": None}
    with sessions() as session:
        states = session.scalars(select(File.state).order_by(File.id)).all()
        assert states == ["deleted", "complete"]
        assert {row.lease_id for row in session.scalars(select(EngineOutput))} == {second.lease_id}


def test_files_of_a_run_that_does_not_complete_its_job_are_removed(sessions: sessionmaker[Session]) -> None:
    with transaction(sessions) as session:
        lease = wanting(session)
    keep(sessions, lease, 1)
    OutputFiles(sessions).discard(lease)
    with sessions() as session:
        assert session.scalars(select(File.state)).all() == ["deleted"]


def test_files_of_a_run_that_was_killed_go_as_abandoned_uploads_do(
    sessions: sessionmaker[Session], queue: Queue
) -> None:
    with transaction(sessions) as session:
        lease = wanting(session)
    keep(sessions, lease, 1)
    queue.rescue()
    with transaction(sessions) as session:
        lifecycle.cancel(session, lease.job_id, tenant_id=DEFAULT_TENANT)
        assert deletion.remove(session, lease.job_id, tenant_id=DEFAULT_TENANT)
        assert session.scalars(select(File.state)).all() == ["deleted"]
        assert not tensor_rows.begin_files(session, lease.job_id, lease.lease_id, [], missing=[])
        assert database_now(session)


def test_what_it_got_is_described_in_the_rows(sessions: sessionmaker[Session]) -> None:
    with transaction(sessions) as session:
        lease = wanting(session)
        new = [NewOutput("logits", "FP32", (2, 3), 200)]
        begun = tensor_rows.begin_files(session, lease.job_id, lease.lease_id, new, missing=["other"])
        assert begun is not None
        assert list(begun) == ["logits"]
    with sessions() as session:
        rows = {row.name: row for row in session.scalars(select(EngineOutput))}
    assert (rows["logits"].datatype, rows["logits"].shape) == ("FP32", [2, 3])
    assert (rows["other"].file_id, rows["other"].shape) == (None, None)
