"""Service workers are killed again and again while a batch moves on; each line ends exactly once."""

import signal
from collections.abc import Iterator

import openai
import pytest

from cli.stack.ready import API, INFERENCE_WORKER, SERVICE_WORKER
from cli.stack.stack import Stack
from openai_support import chat_line, ended, jsonl, results, run
from support import eventually

pytestmark = pytest.mark.timeout(300)

KILLS = True
NUM_LINES = 700  # the last kill comes after 500


@pytest.fixture(scope="module")
def sdk(stack: Stack) -> Iterator[openai.OpenAI]:
    # Its own retries bridge the moments in which the API is away.
    base_url, api_key = f"{stack.urls.api_url}/v1", stack.urls.api_key or ""
    with openai.OpenAI(base_url=base_url, api_key=api_key, max_retries=10) as client:
        yield client


def counts(sdk: openai.OpenAI, batch_id: str) -> tuple[int, int]:
    found = sdk.batches.retrieve(batch_id).request_counts
    assert found is not None
    return found.total, found.completed + found.failed


def test_each_line_of_a_batch_ends_once_whoever_is_killed(stack: Stack, sdk: openai.OpenAI) -> None:
    lines = [chat_line(f"line-{number}", f"Question {number}?", max_tokens=2) for number in range(NUM_LINES)]
    for number in range(0, NUM_LINES, 100):
        lines[number]["body"]["temperature"] = 9
    batch_id = run(sdk, jsonl(lines)).id
    stack.send(SERVICE_WORKER, signal.SIGKILL)
    eventually(lambda: counts(sdk, batch_id)[0] == NUM_LINES, interval=0.2)
    for wanted, victim in (
        (1, SERVICE_WORKER),
        (60, SERVICE_WORKER),
        (150, INFERENCE_WORKER),
        (300, SERVICE_WORKER),
        (400, API),
        (500, SERVICE_WORKER),
    ):
        eventually(lambda wanted=wanted: counts(sdk, batch_id)[1] >= wanted, timeout=120, interval=0.2)
        stack.send(victim, signal.SIGKILL)
    last = ended(sdk, batch_id, timeout=200)
    assert last.status == "completed"
    output, errors = results(sdk, last.output_file_id), results(sdk, last.error_file_id)
    refused = {f"line-{number}" for number in range(0, NUM_LINES, 100)}
    assert errors.keys() == refused
    assert output.keys() == {f"line-{number}" for number in range(NUM_LINES)} - refused
    assert last.request_counts is not None
    assert last.request_counts.model_dump() == {
        "total": NUM_LINES,
        "completed": NUM_LINES - len(refused),
        "failed": len(refused),
    }
