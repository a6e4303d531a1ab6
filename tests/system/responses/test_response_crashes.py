"""API and worker are killed while a response is generated in the background: one result, one webhook."""

import signal
from collections import Counter
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from openai.types.responses import Response
from pytest_httpserver import HTTPServer

from cli.stack.ready import API, INFERENCE_WORKER
from cli.stack.stack import Stack
from jobs.webhooks.secrets import new_secret
from openai_support import MODEL
from support import eventually
from system_support import Client

pytestmark = pytest.mark.timeout(300)

KILLS = True
ENGINE_MODE = "synthetic"
TIME_SCALE = 12.0
NUM_TOKENS = 1500


@pytest.fixture
def sdk(stack: Stack) -> Iterator[openai.OpenAI]:
    # Its own retries bridge the moments in which the API is away.
    base_url, api_key = f"{stack.urls.api_url}/v1", stack.urls.api_key or ""
    with openai.OpenAI(base_url=base_url, api_key=api_key, max_retries=10) as made:
        yield made


def test_a_response_in_the_background_survives_the_death_of_api_and_worker(
    stack: Stack, sdk: openai.OpenAI, client: Client, httpserver: HTTPServer
) -> None:
    httpserver.expect_request("/ended", method="POST").respond_with_data("thanks")
    secret = new_secret()
    to = {"webhook_url": f"http://127.0.0.1:{httpserver.port}/ended", "webhook_secret": secret}
    asked: Any = {
        "model": MODEL,
        "input": f"Talk. [[tokens={NUM_TOKENS}]]",
        "max_output_tokens": NUM_TOKENS + 1,
        "background": True,
        "extra_body": to,
        "extra_headers": {"Idempotency-Key": "of this response"},
    }
    made: Response = sdk.responses.create(**asked)
    client.streaming(made.id.replace("resp_", "job_"))
    stack.send(API, signal.SIGKILL)
    stack.send(INFERENCE_WORKER, signal.SIGKILL)
    assert sdk.responses.create(**asked).id == made.id, "a caller that lost the answer asks again"

    def found() -> Response | None:
        response = sdk.responses.retrieve(made.id)
        return None if response.status in {"queued", "in_progress"} else response

    last = eventually(found, timeout=120, interval=0.2)
    assert last.status == "completed"
    assert last.usage is not None
    assert last.usage.output_tokens == NUM_TOKENS
    events: list[Any] = list(sdk.responses.retrieve(made.id, stream=True))
    deltas = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert deltas == last.output_text == events[-1].response.output_text
    eventually(lambda: httpserver.log, timeout=60)
    # Another one, told of later, shows that nothing more of the first is on its way.
    marker = sdk.responses.create(**(asked | {"input": "Stop. [[tokens=2]]", "extra_headers": {}}))
    told: Counter[str] = Counter()

    def is_marked() -> bool:
        told.clear()
        for request, _ in httpserver.log:
            headers = {name.lower(): value for name, value in request.headers.items()}
            event: Any = sdk.webhooks.unwrap(request.get_data(), headers, secret=secret)
            told[f"{event.type} {event.data.id}"] += 1
        return f"response.completed {marker.id}" in told

    eventually(is_marked, timeout=60)
    assert told == {f"response.completed {made.id}": 1, f"response.completed {marker.id}": 1}
