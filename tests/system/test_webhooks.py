"""A job's webhook comes from the stack as `longbatch up` runs it: once, signed, with the job as it ended."""

import os
from collections.abc import Iterator

import pytest
from pytest_httpserver import HTTPServer
from standardwebhooks import Webhook

from cli.stack.engine_options import EngineOptions
from cli.stack.options import StackOptions
from cli.stack.stack import Stack
from jobs.tokenizer_files import tokenizer_directory
from support import eventually
from system_support import TIME_SCALE, Client

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    options = StackOptions(
        directory=tmp_path_factory.mktemp("stack"),
        engine=EngineOptions(tokenizer_dir=tokenizer_directory(None), time_scale=TIME_SCALE),
        environment={**os.environ, "LONGBATCH_WEBHOOKS__ALLOWED_HOSTS": '["127.0.0.1"]'},
    )
    made = Stack(options)
    made.start()
    yield made
    made.stop()
    made.remove_data()


def test_the_stack_s_own_secret_signs_one_delivery_of_the_ended_job(
    stack: Stack, client: Client, httpserver: HTTPServer
) -> None:
    httpserver.expect_request("/told", method="POST").respond_with_data("thanks")
    url = f"http://127.0.0.1:{httpserver.port}/told"
    job = client.submit("A short text to summarize.", task="summarize", max_tokens=32, webhook_url=url)
    ended = client.finished(job["id"])
    eventually(lambda: httpserver.log, timeout=20)
    request, _ = httpserver.log[0]
    event = Webhook(stack.webhook_secret).verify(request.get_data(), dict(request.headers))
    assert event["type"] == "job.completed"
    assert {**event["data"], "queue": None} == ended
    assert len(httpserver.log) == 1
