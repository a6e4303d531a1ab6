"""A job's webhook comes from the stack as `longbatch up` runs it: once, signed, with the job as it ended."""

import json

import openai
import pytest
from pytest_httpserver import HTTPServer
from standardwebhooks import Webhook, WebhookVerificationError

from cli.stack.stack import Stack
from jobs.webhooks.secrets import new_secret
from openai_support import chat_line, jsonl, run
from support import eventually
from system_support import Client

pytestmark = pytest.mark.timeout(120)


def test_the_stack_s_own_secret_signs_one_delivery_of_the_ended_job(
    stack: Stack, client: Client, httpserver: HTTPServer
) -> None:
    httpserver.expect_request("/told", method="POST").respond_with_data("thanks")
    url = f"http://127.0.0.1:{httpserver.port}/told"
    job = client.submit("A short text to summarize.", task="summarize", max_tokens=32, webhook_url=url)
    ended = client.finished(job["id"])
    eventually(lambda: httpserver.log)
    request, _ = httpserver.log[0]
    event = Webhook(stack.webhook_secret).verify(request.get_data(), dict(request.headers))
    assert event["type"] == "job.completed"
    assert event["data"].pop("result_url") == f"/v1/jobs/{job['id']}/result"
    assert event["data"].pop("usage") == client.result(job["id"])["usage"]
    assert event["data"] | {"queue": None} == ended
    assert len(httpserver.log) == 1


def test_openai_s_client_verifies_and_parses_the_event_of_a_batch(
    stack: Stack, httpserver: HTTPServer
) -> None:
    httpserver.expect_request("/batch", method="POST").respond_with_data("thanks")
    own = new_secret()
    told = {"webhook_url": f"http://127.0.0.1:{httpserver.port}/batch", "webhook_secret": own}
    base_url, api_key = f"{stack.urls.api_url}/v1", stack.urls.api_key or ""
    with openai.OpenAI(base_url=base_url, api_key=api_key, max_retries=0, webhook_secret=own) as sdk:
        batch = run(sdk, jsonl([chat_line("a"), chat_line("b")]), extra_body=told)
        eventually(lambda: httpserver.log)
        request, _ = httpserver.log[0]
        body, headers = request.get_data(), {name.lower(): value for name, value in request.headers.items()}
        event = sdk.webhooks.unwrap(body, headers)
        assert event.type == "batch.completed"
        assert (event.data.id, event.object, event.id) == (batch.id, "event", headers["webhook-id"])
        assert set(json.loads(body)) == {"id", "object", "created_at", "type", "data"}
        assert Webhook(own).verify(body, headers)["data"] == {"id": batch.id}
        assert sdk.batches.retrieve(batch.id).status == "completed"
        with pytest.raises(openai.InvalidWebhookSignatureError):
            sdk.webhooks.unwrap(body.replace(b"batch.completed", b"batch.cancelled"), headers)
        with pytest.raises(openai.InvalidWebhookSignatureError):
            sdk.webhooks.unwrap(body, headers, secret=new_secret())
        later = {**headers, "webhook-timestamp": str(int(headers["webhook-timestamp"]) - 301)}
        with pytest.raises(openai.InvalidWebhookSignatureError):
            sdk.webhooks.unwrap(body, later)
        for wrong in (later, headers | {"webhook-id": "evt_2"}):
            with pytest.raises(WebhookVerificationError):
                Webhook(own).verify(body, wrong)
