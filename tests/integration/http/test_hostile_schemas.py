"""The worst schemas of 64 KiB on each route that takes one: their costs have limits, and errors say why."""

import json
import os
import signal
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2
import pytest
from sqlalchemy.orm import Session, sessionmaker

from api_server import ApiProcess
from batch_support import Service, validate_next
from bench import cpu
from bench.schemas.hostile import ROUTES, SCHEMAS
from jobs.batches import line_requests
from jobs.prompts import guides
from openai_support import chat_line
from support import MODEL, register_engine

# Compiling them takes seconds or hours, or gigabytes.
COSTLY = {
    "many large patterns": "regular expressions",
    "a long pattern of Unicode classes": "too much time or memory",
    "alternatives of Unicode classes": "too much time or memory",
    "a mesh beside unevaluatedProperties": "too much time or memory",
    "doubling beside unevaluatedItems": "too much time or memory",
}
# Of user and system, in a fork for each question; and what forking takes.
MAX_CPU_SECONDS = 0.15 + 0.1


@pytest.mark.parametrize("name", ROUTES)
def test_no_schema_costs_the_service_more_than_its_limits(
    server: ApiProcess, http: httpx2.Client, sessions: sessionmaker[Session], name: str
) -> None:
    with sessions.begin() as session:
        register_engine(session)
    path, body = ROUTES[name]
    pid = server.process.pid
    http.post(path, json={}).close()
    cpu.clear_peak(pid)
    before, used = cpu.memory_mib(pid), cpu.of_descendants(pid)
    for what, schema in SCHEMAS.items():
        sent = body(schema)
        raw = sent if isinstance(sent, bytes) else json.dumps(sent).replace('"bench"', f'"{MODEL}"').encode()
        answer = http.post(path, content=raw, headers={"Content-Type": "application/json"})
        assert answer.status_code in (200, 202, 400, 404, 503), answer.text
        if what in COSTLY and answer.status_code != 503:  # the tokenizer is loading
            error = refusal(answer.json())
            assert error["code"] == "invalid_value"
            assert any(word in error["message"] for word in (COSTLY[what], "20000 characters")), (what, error)
            assert len(error["message"]) < 600
    assert cpu.memory_mib(pid) - before < 100
    assert cpu.of_descendants(pid) - used < 4 * len(SCHEMAS) * MAX_CPU_SECONDS, "bulk has three of each"
    assert "jsonschema_rs" not in Path(f"/proc/{pid}/maps").read_text(), "it compiles none itself"


def test_the_api_answers_others_while_a_short_request_waits_for_the_check_of_its_schema(
    server: ApiProcess, http: httpx2.Client
) -> None:
    schema = SCHEMAS["a mesh beside unevaluatedProperties"]
    body = {"input": "x", "guided_json": schema, "structured_fallback": "words"}
    assert len(json.dumps(body)) < 8000
    http.post("/v1/jobs", json=body).close()  # starts a confined process
    confined = [pid for pid in cpu.descendants(server.process.pid) if is_confined(pid)]
    assert confined
    with ThreadPoolExecutor(1) as pool:
        signal_all(confined, signal.SIGSTOP)
        try:
            waiting = pool.submit(http.post, "/v1/jobs", json=body)
            for _ in range(20):
                assert http.get("/health/live").status_code == 200
            assert not waiting.done()
        finally:
            signal_all(confined, signal.SIGCONT)
        assert waiting.result().status_code == 400


def signal_all(pids: Iterable[int], number: signal.Signals) -> None:
    for pid in pids:
        os.kill(pid, number)


def is_confined(pid: int) -> bool:
    return b"jobs.prompts.confined" in Path(f"/proc/{pid}/cmdline").read_bytes()


def refusal(reply: dict[str, Any]) -> dict[str, Any]:
    error: dict[str, Any] = reply["error"] if "error" in reply else reply["errors"][0]
    return error


def test_a_line_whose_schema_costs_too_much_fails_alone(sessions: sessionmaker[Session]) -> None:
    service = Service(sessions)
    forms: list[dict[str, Any]] = [{"guided_json": schema} for schema in SCHEMAS.values()]
    lines = [chat_line(f"line-{at}", model=MODEL, **form) for at, form in enumerate([{}, *forms, {}])]
    batch_id = service.accepted(lines)
    taken = {job.batch_line for job in service.jobs(batch_id)}
    assert {1, len(lines)} <= taken, "those without a schema are jobs"
    costly = {at + 2 for at, name in enumerate(SCHEMAS) if name in COSTLY}
    assert not costly & taken
    assert service.batch(batch_id).num_failed == len(lines) - len(taken)


def test_the_sum_of_all_tools_counts_though_none_is_offered(http: httpx2.Client) -> None:
    tools = [
        {"type": "function", "function": {"name": f"f{n}", "description": "x" * 60_000}} for n in range(5)
    ]
    answer = http.post("/v1/jobs", json={"input": "x", "tools": tools, "tool_choice": "none"})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "tools"
    assert "262144 bytes in all" in answer.json()["error"]["message"]


def test_tools_and_form_share_one_budget_of_patterns(http: httpx2.Client) -> None:
    half: dict[str, Any] = {"patternProperties": {f"^a{n}$": {} for n in range(guides.MAX_PATTERNS // 2 + 1)}}
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", **half}}}]
    body = {"input": "x", "tools": tools, "tool_choice": "none", "guided_json": half}
    answer = http.post("/v1/jobs", json=body)
    assert answer.status_code == 400
    assert "regular expressions (got 102)" in answer.json()["error"]["message"]


def test_a_slice_of_lines_that_take_long_to_validate_ends_early_and_none_is_lost(
    sessions: sessionmaker[Session], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(line_requests, "_MAX_SECONDS", 0.0)
    service = Service(sessions)
    batch_id = service.create([chat_line(f"line-{at}", model=MODEL) for at in range(5)])
    assert validate_next(sessions, service.tools)
    assert service.advance() == 1
    assert [job.batch_line for job in service.jobs(batch_id)] == [1]
    service.settle()
    assert sorted(job.batch_line or 0 for job in service.jobs(batch_id)) == [1, 2, 3, 4, 5]
    assert service.batch(batch_id).is_expanded
