import json
import os
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx2
import pytest
from sqlalchemy.orm import Session, sessionmaker
from typer.testing import CliRunner, Result

import ending
from api_server import REPOSITORY, ApiProcess
from claiming import claims
from cli.stack.ports import free_port
from jobs import ids
from jobs.database import database_now
from jobs.engines.registry import register
from jobs.states import FinishReason, JobState
from jobs.transitions import Lease
from longbatch.cli.main import application
from support import (
    API_KEY,
    CAPACITY,
    ENGINE,
    POLICY,
    eventually,
    job_in,
    output_of,
    register_engine,
    report_service_worker,
)

# The command line with these arguments; `stdin` and `api_url` by name.
Run = Callable[..., Result]
SERVED_MODEL = "llama-3.1-8b-instruct"


@pytest.fixture
def run(server: ApiProcess, sessions: sessionmaker[Session]) -> Run:  # noqa: ARG001  # without jobs
    def invoke(*arguments: str, stdin: str | None = None, api_url: str = server.url) -> Result:
        return CliRunner().invoke(application(), arguments, input=stdin, env=environment(api_url))

    return invoke


def environment(api_url: str) -> dict[str, str]:
    return {"LONGBATCH_API_URL": api_url, "LONGBATCH_API_KEY": API_KEY}


def claim(sessions: sessionmaker[Session]) -> Lease | None:
    with sessions.begin() as session:
        register(session, ENGINE, SERVED_MODEL, CAPACITY, now=database_now(session))
        claimed = claims.claim(session, ENGINE, POLICY)
        return claimed.lease if claimed else None


def stored(sessions: sessionmaker[Session], state: JobState) -> str:
    with sessions.begin() as session:
        return ids.job_id(job_in(session, state).id)


def test_submit_prints_the_id_of_the_new_job(run: Run, http: httpx2.Client, tmp_path: Path) -> None:
    file = tmp_path / "document.txt"
    file.write_text("A document \u00e9.", encoding="utf-8")
    done = run("submit", str(file), "--task", "summarize", "--max-tokens", "9", "--metadata", "team=x")
    assert done.exit_code == 0
    job = http.get(f"/v1/jobs/{done.stdout.strip()}").json()
    assert (job["task"], job["max_tokens"], job["metadata"]) == ("summarize", 9, {"team": "x"})


def test_submit_reads_standard_input_and_prints_json(run: Run) -> None:
    done = run("submit", "-", "--json", "--custom-id", "c", stdin="hello")
    assert json.loads(done.stdout)["custom_id"] == "c"


def test_submit_passes_tensors_by_name(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "inputs.json"
    file.write_text(json.dumps({"draft_input_ids": {"datatype": "INT32", "shape": [1], "data": [1]}}))
    refused = run("submit", "-", "--engine-inputs", str(file), stdin="a")
    assert "engine_inputs: not every engine of the model" in refused.stderr
    refused = run("submit", "-", "--engine-output", "logits", stdin="a")
    assert "engine_outputs: not every engine" in refused.stderr
    file.write_text("{")
    assert "is not JSON" in run("submit", "-", "--engine-inputs", str(file), stdin="a").stderr


def test_submit_with_a_key_makes_one_job(run: Run) -> None:
    first, second = (run("submit", "-", "--idempotency-key", "k", stdin="a").stdout for _ in range(2))
    assert first == second


def test_submit_waits_and_prints_the_output(run: Run, sessions: sessionmaker[Session]) -> None:
    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(run, "submit", "-", "--wait", stdin="hello")
        lease = eventually(lambda: claim(sessions))
        with sessions.begin() as session:
            ending.complete(session, lease, output_of("the [bold]answer[/]"), FinishReason.STOP)
        assert (done.result().exit_code, done.result().stdout) == (0, "the [bold]answer[/]\n")


def test_a_job_that_did_not_complete_is_exit_code_1(run: Run, sessions: sessionmaker[Session]) -> None:
    failed = run("result", stored(sessions, JobState.FAILED))
    assert (failed.exit_code, failed.stdout) == (1, "")
    assert "it broke" in failed.stderr
    done = run("submit", "-", "--wait", "--max-tokens", "131072", "--json", stdin="too long")
    assert (done.exit_code, json.loads(done.stdout)["state"]) == (1, "failed")


def test_result_prints_a_partial_output_too(run: Run, sessions: sessionmaker[Session]) -> None:
    cancelled = run("result", stored(sessions, JobState.CANCELLED))
    assert (cancelled.exit_code, cancelled.stdout) == (1, "some text\n")


def test_list_and_show_say_what_is_known(run: Run, http: httpx2.Client) -> None:
    job = http.post("/v1/jobs", json={"input": "a", "custom_id": "[red]c"}).json()
    listed = run("list")
    assert job["id"] in listed.stdout
    assert "[red]c" in listed.stdout
    assert json.loads(run("list", "--state", "completed", "--json").stdout)["data"] == []
    eventually(lambda: "no engine large enough for it is taking jobs" in run("show", job["id"]).stdout)
    assert "queued" in run("show", job["id"]).stdout
    seen = json.loads(run("show", job["id"], "--json").stdout)
    assert seen.pop("queue") == {
        "position": None,
        "reason": "engine_down",
        "estimated_start_at": None,
        "detail": None,
    }
    assert seen == job


def test_cancel_takes_ids_or_filters(run: Run, http: httpx2.Client) -> None:
    one, two, three = (
        http.post("/v1/jobs", json={"input": "a", "metadata": {"n": n}}).json()["id"] for n in "112"
    )
    assert run("cancel", one).stdout == f"{one} cancelled\n"
    assert run("cancel", "--metadata", "n=1").stdout == "1 cancelled\n"
    assert http.get(f"/v1/jobs/{two}").json()["state"] == "cancelled"
    assert http.get(f"/v1/jobs/{three}").json()["state"] == "queued"
    assert run("cancel").exit_code == run("cancel", one, "--state", "queued").exit_code == 2


def test_wrong_usage_is_exit_code_2(run: Run, tmp_path: Path) -> None:
    binary = tmp_path / "binary"
    binary.write_bytes(b"\xff\xfe")
    pdf = tmp_path / "ascii.pdf"
    pdf.write_bytes(b"%PDF-1.4")
    for arguments in (
        ("submit", str(tmp_path / "nothing")),
        ("submit", str(binary)),
        ("submit", str(pdf)),
        ("submit", "-", "--metadata", "x"),
        ("submit", "-", "--task", "translate"),
        ("submit",),
        ("watch", "sum_1"),
    ):
        assert run(*arguments, stdin="a").exit_code == 2


def test_no_server_is_exit_code_3(run: Run) -> None:
    done = run("list", api_url=f"http://127.0.0.1:{free_port()}")
    assert done.exit_code == 3
    assert "no Longbatch server answers" in done.stderr
    assert "longbatch up" in done.stderr
    assert run("list", api_url="nonsense").exit_code == 3


def test_a_refused_request_is_exit_code_4_with_its_field(run: Run, sessions: sessionmaker[Session]) -> None:
    refused = run("submit", "-", "--max-tokens", "0", stdin="a")
    assert refused.exit_code == 4
    assert "max_tokens" in refused.stderr
    assert run("show", "job_nothing").exit_code == 4
    assert run("show", "../health/live").exit_code == 4
    assert "job_not_finished" in run("result", stored(sessions, JobState.QUEUED)).stderr


def test_without_a_valid_key_the_error_says_where_keys_come_from(server: ApiProcess) -> None:
    variables = environment(server.url) | {"LONGBATCH_API_KEY": "lb_wrong"}
    done = CliRunner().invoke(application(), ["list"], env=variables)
    assert done.exit_code == 4
    assert "LONGBATCH_API_KEY" in done.stderr


def test_help_names_defaults_that_are_no_values() -> None:
    shown = CliRunner().invoke(application(), ["summarize", "--help"], env={"NO_COLOR": "1"}).stdout
    for default in ("the local stack", "the one served", "the document's", "400"):
        assert f"[default: ({default})]" in shown


def test_doctor_names_every_part(run: Run, sessions: sessionmaker[Session]) -> None:
    sick = run("doctor")
    assert sick.exit_code == 1
    for part in ("api", "database", "broker", "engine", "tokenizer", "open files", "keepalive"):
        assert part in sick.stdout
    assert "no engine has registered" in sick.stdout
    with sessions.begin() as session:
        register_engine(session)
        report_service_worker(session)
    well = run("doctor", "--json")
    assert well.exit_code == 0
    assert {each["name"]: each["status"] for each in json.loads(well.stdout)} == {
        "api": "ok",
        "database": "ok",
        "broker": "ok",
        "engine": "ok",
        "workers": "ok",
        "tokenizer": "ok",
        "open files": "ok",
        "triton keepalive": "unknown",
    }


def test_doctor_looks_by_itself_where_no_server_answers(run: Run) -> None:
    done = run("doctor", api_url=f"http://127.0.0.1:{free_port()}")
    assert done.exit_code == 1
    assert "no Longbatch server answers" in done.stdout


def test_the_command_is_usable_in_a_pipe(server: ApiProcess, sessions: sessionmaker[Session]) -> None:  # noqa: ARG001  # without jobs
    done = subprocess.run(
        [sys.executable, "-c", "from longbatch.cli import main; main()", "submit", "-"],
        input=b"a text",
        capture_output=True,
        check=False,
        cwd=REPOSITORY,
        env={**os.environ, **environment(server.url)},
    )
    assert done.returncode == 0
    assert done.stdout.startswith(b"job_")
    assert done.stdout.count(b"\n") == 1
