"""One trace a job over the whole stack: request, waits, runs, recording and webhook, kills included."""

import json
import os
import signal
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from pytest_httpserver import HTTPServer

from bench.tracing.receiver import SeenSpan
from cli.stack.options import StackOptions
from cli.stack.ready import INFERENCE_WORKER, SERVICE_WORKER
from cli.stack.servers.engine_options import EngineOptions
from cli.stack.stack import Stack
from jobs.prompts.tokenizer_files import tokenizer_directory
from openai_support import MODEL, chat_line, jsonl, run
from support import eventually
from system_support import OF_TESTS, Client, running_stack, text_of
from tracing.collector import TraceReceiver, collecting

pytestmark = pytest.mark.timeout(180)

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
SECRET = "Zanzibar"


@pytest.fixture(scope="module")
def collector() -> Iterator[TraceReceiver]:
    with collecting() as made:
        yield made


@pytest.fixture(scope="module")
def stack(collector: TraceReceiver, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    inherited = {name: value for name, value in os.environ.items() if name not in OF_TESTS}
    options = StackOptions(
        directory=tmp_path_factory.mktemp("stack"),
        api_port=0,
        engine=EngineOptions(mode="synthetic", tokenizer_dir=tokenizer_directory(None), time_scale=8.0),
        environment={
            **inherited,
            "LONGBATCH_JOBS__LEASE_SECONDS": "6",
            "LONGBATCH_JOBS__RENEW_SECONDS": "1",
            "LONGBATCH_MAINTENANCE__RESCUE_SECONDS": "0.5",
            "LONGBATCH_MAINTENANCE__TRACE_SECONDS": "0.1",
            "LONGBATCH_WEBHOOKS__ALLOWED_HOSTS": '["127.0.0.1"]',
            "LONGBATCH_TRACES__ENDPOINT": collector.url,
            "LONGBATCH_TRACES__TIMEOUT_SECONDS": "1",
            "LONGBATCH_TRACES__MAX_JOBS": "4",
        },
    )
    with running_stack(options) as made:
        yield made


@pytest.fixture
def client(stack: Stack) -> Iterator[Client]:
    with Client(stack.urls) as made:
        yield made


def submit(client: Client, trace_id: str, text: str, **fields: object) -> dict[str, Any]:
    """Submit a job below a caller's span."""
    asked = client.http.post(
        "/v1/jobs",
        json={"input": text, "task": "summarize"} | fields,
        headers={"traceparent": f"00-{trace_id}-{SPAN}-01"},
    )
    assert asked.status_code == 202, asked.text
    made: dict[str, Any] = asked.json()
    return made


def traces_logged(stack: Stack, part: str, event: str) -> set[str | None]:
    """The traces of these events in the log of a process."""
    lines = (stack.directory / "logs" / f"{part}.log").read_text().splitlines()
    return {json.loads(line).get("trace_id") for line in lines if f'"event": "{event}"' in line}


def test_a_job_is_one_trace_from_its_caller_to_its_webhook(
    stack: Stack, client: Client, collector: TraceReceiver, httpserver: HTTPServer
) -> None:
    httpserver.expect_ordered_request("/told", method="POST").respond_with_data("no", status=503)
    httpserver.expect_ordered_request("/told", method="POST").respond_with_data("thanks")
    url = f"http://127.0.0.1:{httpserver.port}/told?token={SECRET}"
    job = submit(client, TRACE, f"{SECRET} " * 50, max_tokens=32, webhook_url=url, custom_id=SECRET)
    assert client.finished(job["id"])["state"] == "completed"
    eventually(lambda: len(collector.of_trace(TRACE).get("webhook", [])) == 2)
    found = collector.until(TRACE, "POST", "job", "wait", "chat", "record", "webhook")
    assert {name: len(spans) for name, spans in found.items()} == {
        "POST": 1,
        "job": 1,
        "wait": 1,
        "chat": 1,
        "record": 1,
        "webhook": 2,
    }
    (request,), (own,), (chat,) = found["POST"], found["job"], found["chat"]
    assert (request.name, request.parent_id) == ("POST /v1/jobs", SPAN)
    assert request.attributes["http.response.status_code"] == 202
    assert own.parent_id == request.span_id
    below = [*found["wait"], chat, *found["record"], *found["webhook"]]
    assert {each.parent_id for each in below} == {own.span_id}
    (first_token,) = chat.events
    assert chat.began <= first_token[1] <= chat.ended
    assert chat.attributes["gen_ai.usage.output_tokens"] == 32
    ended = [each.ended for each in below[:3]]
    assert ended == sorted(ended), "the wait, the run, the recording"
    tries = found["webhook"]
    assert [each.attributes["http.response.status_code"] for each in tries] == [503, 200]
    assert [each.is_error for each in tries] == [True, False]
    assert [each.attributes.get("http.request.resend_count") for each in tries] == [None, 1]
    sent = [request.headers["traceparent"] for request, _ in httpserver.log]
    assert sent == [f"00-{TRACE}-{each.span_id}-01" for each in tries], "the receiver can go on"
    assert not any(SECRET.encode() in body for body in collector.raw)
    for part, event in ((INFERENCE_WORKER, "job.ended"), (SERVICE_WORKER, "webhook.delivered")):
        assert TRACE in eventually(lambda p=part, e=event: traces_logged(stack, p, e))


def test_a_request_that_its_caller_does_not_trace_is_not_traced(
    client: Client, collector: TraceReceiver
) -> None:
    trace_id = "1" * 32
    headers = {"traceparent": f"00-{trace_id}-{SPAN}-00"}
    asked = client.http.post("/v1/jobs", json={"input": "short", "max_tokens": 4}, headers=headers)
    ended = client.finished(asked.json()["id"])
    later = submit(client, "2" * 32, "short", max_tokens=4)
    client.finished(later["id"])
    collector.until("2" * 32, "job", "POST")
    assert not collector.of_trace(trace_id)
    assert ended["state"] == "completed"


@pytest.mark.parametrize("header", ["nonsense", "00-" + "0" * 32 + f"-{SPAN}-01", "x" * 4000, "\xe9" * 55])
def test_a_malformed_traceparent_begins_a_trace_and_harms_nothing(
    client: Client, collector: TraceReceiver, header: str
) -> None:
    asked = client.http.post(
        "/v1/jobs",
        json={"input": "short", "max_tokens": 4},
        headers=[(b"traceparent", header.encode("latin-1"))],
    )
    job_id = asked.json()["id"]
    assert client.finished(job_id)["state"] == "completed"

    def own() -> list[SeenSpan]:
        return [each for each in collector.spans if each.attributes.get("longbatch.job.id") == job_id]

    (span,) = eventually(own)
    assert len(span.trace_id) == 32
    request = collector.until(span.trace_id, "POST")["POST"][0]
    assert (request.parent_id, request.span_id) == ("", span.parent_id)


def test_bulk_lines_are_traced_up_to_the_limit(client: Client, collector: TraceReceiver) -> None:
    trace_id = "3" * 32
    lines = "".join('{"input": "short", "max_tokens": 4}\n' for _ in range(9))
    headers = {"traceparent": f"00-{trace_id}-{SPAN}-01", "Content-Type": "application/x-ndjson"}
    made = client.http.post("/v1/jobs/bulk", content=lines, headers=headers)
    assert made.status_code == 200, made.text
    for job_id in made.json()["ids"]:
        client.finished(job_id)
    eventually(lambda: len(collector.of_trace(trace_id).get("job", [])) == 4)


def test_a_batch_is_one_trace_with_some_of_its_lines_and_its_webhook(
    stack: Stack, collector: TraceReceiver, httpserver: HTTPServer
) -> None:
    httpserver.expect_request("/batch", method="POST").respond_with_data("thanks")
    trace_id = "6" * 32
    base_url, api_key = f"{stack.urls.api_url}/v1", stack.urls.api_key or ""
    headers = {"traceparent": f"00-{trace_id}-{SPAN}-01"}
    with openai.OpenAI(base_url=base_url, api_key=api_key, max_retries=0, default_headers=headers) as sdk:
        told = {"webhook_url": f"http://127.0.0.1:{httpserver.port}/batch"}
        run(sdk, jsonl([chat_line(f"line-{number}") for number in range(9)]), extra_body=told)
    found = collector.until(trace_id, "POST", "batch", "validate", "job", "chat", "webhook")
    eventually(lambda: len(collector.of_trace(trace_id)["job"]) == 4)
    (own,) = found["batch"]
    assert [each.name for each in found["POST"]] == ["POST /v1/batches"]
    assert own.parent_id == found["POST"][0].span_id
    assert {each.parent_id for each in [*found["job"], *found["webhook"]]} == {own.span_id}
    assert own.attributes["longbatch.batch.num_lines"] == 9


def test_a_summary_is_one_trace_from_its_request_to_its_webhook(
    client: Client, collector: TraceReceiver, httpserver: HTTPServer
) -> None:
    httpserver.expect_request("/summary", method="POST").respond_with_data("thanks")
    trace_id = "7" * 32
    sent = client.http.post(
        "/v1/documents",
        params={"filename": f"{SECRET}.txt"},
        content=f"{SECRET} {text_of(6000)}".encode(),
        headers={"Content-Type": "text/plain"},
    )
    made = client.http.post(
        "/v1/summaries",
        json={
            "documents": [sent.json()["id"]],
            "length": 50,
            "instructions": f"Praise {SECRET}.",
            "webhook_url": f"http://127.0.0.1:{httpserver.port}/summary",
        },
        headers={"traceparent": f"00-{trace_id}-{SPAN}-01"},
    )
    assert made.status_code == 202, made.text
    found = collector.until(trace_id, "POST", "summary", "plan", "job", "wait", "chat", "record", "webhook")
    (request,), (own,) = found["POST"], found["summary"]
    assert (request.name, own.parent_id) == ("POST /v1/summaries", request.span_id)
    below = [*found["plan"], *found["job"], *found["webhook"]]
    assert {each.parent_id for each in below} == {own.span_id}
    assert not any(SECRET.encode() in body for body in collector.raw)


def test_a_chat_request_is_traced_with_its_job(client: Client, collector: TraceReceiver) -> None:
    trace_id = "8" * 32
    body = {"model": MODEL, "messages": [{"role": "user", "content": SECRET}], "max_tokens": 8, "n": 2}
    asked = client.http.post(
        "/v1/chat/completions", json=body, headers={"traceparent": f"00-{trace_id}-{SPAN}-01"}
    )
    assert asked.status_code == 200, asked.text
    found = collector.until(trace_id, "POST", "job", "chat")
    eventually(lambda: len(collector.of_trace(trace_id)["job"]) == 2)
    (request,) = found["POST"]
    assert request.name == "POST /v1/chat/completions"
    assert {each.parent_id for each in found["job"]} == {request.span_id}


def test_a_run_that_a_kill_ended_is_in_the_trace(
    stack: Stack, client: Client, collector: TraceReceiver
) -> None:
    trace_id = "4" * 32
    job = submit(client, trace_id, text_of(3000), max_tokens=300)
    client.streaming(job["id"])
    stack.send(INFERENCE_WORKER, signal.SIGKILL)
    assert client.finished(job["id"])["state"] == "completed"
    found = collector.until(trace_id, "POST", "job", "chat", "record")
    runs = sorted(found["chat"], key=lambda each: each.began)
    assert [each.attributes["longbatch.attempt.outcome"] for each in runs] == ["lost", "completed"]
    assert runs[0].is_error
    assert runs[0].ended <= runs[1].began
    (own,) = found["job"]
    assert all(own.began <= each.began <= each.ended <= own.ended + 1_000_000 for each in runs)


def test_jobs_and_webhooks_go_on_while_the_collector_hangs(
    client: Client, collector: TraceReceiver, httpserver: HTTPServer
) -> None:
    httpserver.expect_request("/told", method="POST").respond_with_data("thanks")
    trace_id = "5" * 32
    collector.going_on.clear()
    try:
        url = f"http://127.0.0.1:{httpserver.port}/told"
        jobs = [
            submit(client, trace_id, f"short {number}", max_tokens=4, webhook_url=url) for number in range(6)
        ]
        assert {client.finished(job["id"])["state"] for job in jobs} == {"completed"}
        eventually(lambda: len(httpserver.log) == len(jobs))
        assert not collector.of_trace(trace_id)
    finally:
        collector.going_on.set()
    eventually(lambda: len(collector.of_trace(trace_id).get("job", [])) == len(jobs))
