"""Callers follow jobs and batches as server-sent events, and take them up where they broke off."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import httpx2
import openai
import pytest

from cli.stack.stack import Stack
from openai_support import chat_line, jsonl, run
from support import NO_CERTIFICATES
from system_support import Client

pytestmark = pytest.mark.timeout(240)

ENGINE_MODE = "synthetic"
TIME_SCALE = 12.0

Event = tuple[str, str, dict[str, Any]]


@pytest.fixture
def http(stack: Stack) -> Iterator[httpx2.Client]:
    assert stack.urls.api_url is not None
    headers = {"Authorization": f"Bearer {stack.urls.api_key}"}
    with httpx2.Client(
        base_url=stack.urls.api_url, timeout=60, headers=headers, verify=NO_CERTIFICATES
    ) as client:
        yield client


def events(http: httpx2.Client, path: str, **headers: str) -> Iterator[Event]:
    """Each event's id, name and data."""
    with http.stream("GET", path, headers=headers) as answer:
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/event-stream")
        fields: dict[str, str] = {}
        for line in answer.iter_lines():
            if line and not line.startswith(":"):
                name, _, value = line.partition(": ")
                fields[name] = value
            elif fields:
                yield fields["id"], fields["event"], json.loads(fields["data"])
                fields = {}


def text_of(found: list[Event]) -> str:
    return "".join(data["text"] for _, name, data in found if name == "text")


def test_a_job_is_followed_from_the_queue_to_its_end(client: Client, http: httpx2.Client) -> None:
    job_id = client.submit("Tell me. [[tokens=1500]]", task="generate", max_tokens=2000)["id"]
    found = list(events(http, f"/v1/jobs/{job_id}/events?text=true"))
    states = [data["state"] for _, name, data in found if name == "job"]
    assert states[-1] == "completed"
    assert set(states) <= {"preparing", "queued", "running", "completed"}
    progress = [data["completion_tokens"] for _, name, data in found if name == "progress"]
    assert progress == sorted(progress)
    assert len(progress) >= 2
    assert text_of(found) == client.result(job_id)["output"]


def test_a_reader_that_comes_back_gets_the_rest_and_nothing_twice(
    client: Client, http: httpx2.Client
) -> None:
    job_id = client.submit("Go on. [[tokens=1500]]", task="generate", max_tokens=2000)["id"]
    path = f"/v1/jobs/{job_id}/events?text=true"
    before: list[Event] = []
    for each in events(http, path):
        before.append(each)
        if len(text_of(before)) > 100:
            break
    after = list(events(http, path, **{"Last-Event-ID": before[-1][0]}))
    assert text_of(before) + text_of(after) == client.result(job_id)["output"]
    assert after[-1][2]["state"] == "completed"
    late = list(events(http, path, **{"Last-Event-ID": after[-1][0]}))
    assert [(name, data.get("state")) for _, name, data in late] == [("job", "completed")]


def test_a_batch_is_followed_to_its_end(stack: Stack, http: httpx2.Client) -> None:
    lines = [chat_line(str(number), f"[[tokens=200]] {number}", max_tokens=300) for number in range(12)]
    base_url, api_key = f"{stack.urls.api_url}/v1", stack.urls.api_key or ""
    with openai.OpenAI(base_url=base_url, api_key=api_key, max_retries=0) as sdk:
        batch = run(sdk, jsonl(lines))
    found = list(events(http, f"/v1/batches/{batch.id}/events"))
    counts = [data["request_counts"]["completed"] for _, _, data in found]
    assert counts == sorted(counts)
    assert (found[-1][2]["status"], counts[-1]) == ("completed", 12)


def test_what_does_not_exist_cannot_be_followed(http: httpx2.Client) -> None:
    assert http.get(f"/v1/jobs/job_{'0' * 32}/events").status_code == 404
    assert http.get(f"/v1/batches/batch_{'0' * 32}/events").status_code == 404


def test_the_command_line_follows_a_job_and_prints_what_it_says(stack: Stack, client: Client) -> None:
    job_id = client.submit("Say it. [[tokens=900]]", task="generate", max_tokens=1000)["id"]
    assert stack.urls.api_url is not None
    environment = {"LONGBATCH_API_URL": stack.urls.api_url, "LONGBATCH_API_KEY": stack.urls.api_key or ""}
    done = subprocess.run(
        [sys.executable, "-m", "cli", "watch", job_id, "--text"],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == client.result(job_id)["output"] + "\n"
    assert "completed, 900 tokens" in done.stderr
