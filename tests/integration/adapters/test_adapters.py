"""Adapters by name: who may ask for which, on every route, and what their jobs share with no others."""

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx2
import pytest
from sqlalchemy import select
from sqlalchemy.orm import Session, sessionmaker
from typer.testing import CliRunner, Result

from batch_support import Service
from jobs.adapters import registry as adapters
from jobs.errors import AdapterRemovedError
from jobs.models import DEFAULT_TENANT, Job
from jobs.prompts.abilities import ABILITIES
from jobs.prompts.counter import PromptCounter
from jobs.prompts.prefixes import adapted
from jobs.prompts.store import NewText
from jobs.prompts.tokenizer import Tokenizer
from jobs.scheduling.output_history import History
from jobs.settings import DatabaseSettings
from jobs.sharing import Sharing
from jobs.states import JobState
from longbatch.cli.main import application
from openai_support import chat_line, jsonl
from support import job_in, prepare_all, register_engine, spec, submit_one
from weights.adapters import write_peft_adapter

Run = Callable[..., Result]
# The model that the tests' service is configured for.
SERVED = "llama-3.1-8b-instruct"
LEGAL = f"{SERVED}:legal"


@pytest.fixture
def run(database_settings: DatabaseSettings, sessions: sessionmaker[Session]) -> Run:  # noqa: ARG001  # migrated
    url = database_settings.url.get_secret_value()

    def invoke(*arguments: str) -> Result:
        return CliRunner().invoke(application(), arguments, env={"LONGBATCH_DATABASE__URL": url})

    return invoke


@pytest.fixture
def service(sessions: sessionmaker[Session]) -> Service:
    return Service(sessions)


@pytest.fixture
def legal(sessions: sessionmaker[Session], run: Run, tmp_path: Path) -> str:
    """A registered adapter of the served model, whose engine takes any."""
    with sessions.begin() as session:
        register_engine(session, model=SERVED, takes=ABILITIES)
    assert run("adapters", "add", LEGAL, str(write_peft_adapter(tmp_path / "legal"))).exit_code == 0
    return LEGAL


def rows(sessions: sessionmaker[Session]) -> list[tuple[str, str | None]]:
    with sessions() as session:
        return [(job.model, job.adapter) for job in session.scalars(select(Job).order_by(Job.id))]


def bodies(model: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """A request to each route that submits a job, without one that waits for its end."""
    yield "/v1/jobs", {"input": "a", "model": model}
    yield "/v1/responses", {"input": "a", "model": model, "background": True}


def test_every_route_takes_an_adapter_and_shows_it(
    http: httpx2.Client, sessions: sessionmaker[Session], legal: str
) -> None:
    for path, body in bodies(legal):
        answer = http.post(path, json=body)
        assert answer.status_code in {200, 202}, answer.text
        assert answer.json()["model"] == legal
    lines = jsonl([{"input": "a", "model": legal}, {"input": "a"}, {"input": "a", "model": f"{SERVED}:none"}])
    bulk = http.post("/v1/jobs/bulk", content=lines, headers={"Content-Type": "application/x-ndjson"}).json()
    assert [(each["line"], each["code"], each["param"]) for each in bulk["errors"]] == [
        (3, "model_not_found", "model")
    ]
    assert rows(sessions) == [(SERVED, "legal")] * 3 + [(SERVED, None)]


def test_lines_of_a_batch_take_an_adapter_each(
    sessions: sessionmaker[Session], service: Service, legal: str
) -> None:
    wanted = [legal, SERVED, f"{SERVED}:none"]
    batch_id = service.accepted(
        [chat_line(f"line-{place}", model=model) for place, model in enumerate(wanted)]
    )
    assert rows(sessions) == [(SERVED, "legal"), (SERVED, None)]
    assert service.batch(batch_id).num_failed == 1


def test_models_are_listed_before_their_adapters(http: httpx2.Client, legal: str) -> None:
    listed = http.get("/v1/models").json()["data"]
    assert [each["id"] for each in listed] == [SERVED, legal]
    assert (listed[1]["parent"], "parent" in listed[0]) == (SERVED, False)
    assert http.get(f"/v1/models/{legal}").json() == listed[1]


def test_a_model_with_a_slash_in_its_name_is_found(
    http: httpx2.Client, sessions: sessionmaker[Session]
) -> None:
    with sessions.begin() as session:
        register_engine(session, name="another", model="acme/small")
    for path in ("acme/small", "acme%2Fsmall"):
        assert http.get(f"/v1/models/{path}").json()["id"] == "acme/small"


def test_what_engines_cannot_do_is_refused_with_field_model_and_what_they_can(
    http: httpx2.Client, sessions: sessionmaker[Session], run: Run, legal: str
) -> None:
    def refused(model: str) -> tuple[int, str, str]:
        found = {path: http.post(path, json=body) for path, body in bodies(model)}
        (told,) = {(each.status_code, json.dumps(each.json()["error"])) for each in found.values()}
        error = json.loads(told[1])
        assert error["param"] == "model"
        return told[0], error["code"], error["message"]

    assert refused(f"{SERVED}:none") == (
        404,
        "model_not_found",
        f"The model {SERVED!r} has no adapter 'none'.",
    )
    assert refused("other:legal")[:2] == (404, "model_not_found")
    have = " its engines have other, third."
    with sessions.begin() as session:
        register_engine(session, model=SERVED, takes=ABILITIES, adapters=["other", "third"])
    assert refused(legal) == (
        400,
        "unsupported_parameter",
        f"model: not every engine of the model {SERVED!r} was started with the adapter 'legal';{have}",
    )
    with sessions.begin() as session:
        register_engine(session, model=SERVED, takes=["top_k", "top_p"])
    assert refused(legal) == (
        400,
        "unsupported_parameter",
        f"model: not every engine of the model {SERVED!r} takes lora; its engines take top_k, top_p.",
    )
    assert [each["id"] for each in http.get("/v1/models").json()["data"]] == [SERVED]
    (told,) = json.loads(run("adapters", "list", "--json").stdout)
    assert (told["id"], told["state"]) == (legal, "refused")
    assert "takes lora" in told["reason"]


def test_a_tenant_may_be_limited_to_adapters(
    http: httpx2.Client, run: Run, legal: str, tmp_path: Path
) -> None:
    assert (
        run("adapters", "add", f"{SERVED}:medical", str(write_peft_adapter(tmp_path / "m", seed=2))).exit_code
        == 0
    )
    assert run("adapters", "limit", "default", f"{SERVED}:medical").exit_code == 0
    for path, body in bodies(legal):
        answer = http.post(path, json=body)
        assert answer.status_code == 403
        assert answer.json()["error"]["code"] == "adapter_not_allowed"
        assert repr(legal) in answer.json()["error"]["message"]
    assert http.post("/v1/jobs", json={"input": "a", "model": f"{SERVED}:medical"}).status_code == 202
    assert http.post("/v1/jobs", json={"input": "a"}).status_code == 202
    assert [each["id"] for each in http.get("/v1/models").json()["data"]] == [SERVED, f"{SERVED}:medical"]
    assert run("adapters", "limit", "default").exit_code == 0
    assert http.post("/v1/jobs", json={"input": "a", "model": f"{SERVED}:medical"}).status_code == 403
    assert run("adapters", "limit", "default", "--all").exit_code == 0
    assert http.post("/v1/jobs", json={"input": "a", "model": legal}).status_code == 202
    unknown = run("adapters", "limit", "default", f"{SERVED}:none")
    assert (unknown.exit_code, "There is no adapter" in unknown.stderr) == (1, True)


def test_a_limited_tenant_is_told_of_no_other_adapters(
    http: httpx2.Client, sessions: sessionmaker[Session], run: Run, legal: str
) -> None:
    with sessions.begin() as session:
        register_engine(session, model=SERVED, takes=ABILITIES, adapters=["of-another-tenant"])
    assert run("adapters", "limit", "default", legal).exit_code == 0
    refused = http.post("/v1/jobs", json={"input": "a", "model": legal})
    assert refused.status_code == 400
    assert "its engines have none that you may name" in refused.json()["error"]["message"]


def test_a_model_s_name_is_no_adapter_s(run: Run, sessions: sessionmaker[Session], tmp_path: Path) -> None:
    with sessions.begin() as session:
        register_engine(session, model="qwen3:8b", takes=ABILITIES)
    files = str(write_peft_adapter(tmp_path))
    refused = run("adapters", "add", "qwen3:8b", files)
    assert (refused.exit_code, "qwen3:8b is a model" in refused.stderr) == (1, True)
    assert run("adapters", "add", "qwen3:8b:legal", files).exit_code == 0


def test_a_name_keeps_its_weights(run: Run, legal: str, tmp_path: Path) -> None:
    same, other = str(tmp_path / "legal"), str(write_peft_adapter(tmp_path / "other", seed=2))
    assert "is registered" in run("adapters", "add", legal, same).stderr
    assert run("adapters", "remove", legal).exit_code == 0
    assert "There is no adapter" in run("adapters", "remove", legal).stderr
    assert "was the name of other weights" in run("adapters", "add", legal, other).stderr
    assert run("adapters", "add", legal, same).exit_code == 0
    (told,) = json.loads(run("adapters", "list", "--json").stdout)
    assert (told["state"], told["removed_at"], told["rank"]) == ("ready", None, 4)
    assert legal in run("adapters", "list").stdout
    for name in ("legal", f"{SERVED}:", f"{SERVED}:.x", f"{SERVED}:a b"):
        assert run("adapters", "add", name, other).exit_code == 1
    broken = run("adapters", "add", f"{SERVED}:broken", str(tmp_path))
    assert (broken.exit_code, "adapter_config.json" in broken.stderr) == (1, True)


def test_a_removed_adapter_is_refused_and_its_jobs_can_tell(
    http: httpx2.Client, session: Session, run: Run, legal: str
) -> None:
    assert adapters.read(session, SERVED, "legal").name == "legal"
    session.rollback()
    assert run("adapters", "remove", legal).exit_code == 0
    assert http.post("/v1/jobs", json={"input": "a", "model": legal}).status_code == 404
    with pytest.raises(AdapterRemovedError, match=f"'{legal}' was removed"):
        adapters.read(session, SERVED, "legal")


def test_equal_requests_of_two_adapters_are_not_equal(session: Session) -> None:
    register_engine(session)
    made = [
        submit_one(session, spec(prompt="same", sharing=Sharing(), adapter=adapter)).state
        for adapter in (None, "legal", "medical", None, "legal")
    ]
    assert made == ["queued", "queued", "queued", "blocked", "blocked"]


def test_predictions_come_from_jobs_of_the_same_adapter(session: Session) -> None:
    register_engine(session)
    for adapter in (None, "legal", "legal"):
        job = job_in(session, JobState.COMPLETED)
        job.adapter, job.completion_tokens = adapter, 5 if adapter else 3
        session.flush()
    groups = [(DEFAULT_TENANT, "generate", adapter) for adapter in (None, "legal", "medical")]
    found = History().peers(session, groups)
    assert [len(found[each].near(100)) for each in groups] == [1, 2, 0]


def test_families_are_of_one_adapter_however_the_prompt_was_counted(
    session: Session, sessions: sessionmaker[Session], tokenizer: Tokenizer
) -> None:
    prompt = json.dumps([{"role": "user", "content": "word " * 3000}])
    for adapter in (None, "legal"):
        given = spec(prompt_tokens=None, prompt=prompt, adapter=adapter)
        submit_one(session, given)
    counted = PromptCounter(tokenizer).count_prompt(prompt)
    for adapter in (None, "legal"):
        given = spec(prompt=prompt, adapter=adapter)
        submit_one(session, replace(given, text=NewText(prompt, counted)))
    session.commit()
    prepare_all(sessions, PromptCounter(tokenizer))
    session.expire_all()
    found = [job.family for job in session.scalars(select(Job).order_by(Job.id))]
    assert found[0] is not None
    assert found == [found[0], adapted(found[0], "legal")] * 2
    assert found[0] != found[1]
