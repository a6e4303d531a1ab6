"""Cancelling a running job frees the engine at once, wherever the job is."""

import pytest

from support import eventually
from system_support import LONG_CHARS, Client, Gauges, text_of

pytestmark = pytest.mark.timeout(120)

ENGINE_MODE = "synthetic"  # it goes on to max_tokens, so there is always something to cancel
TIME_SCALE = 4.0


def test_cancelling_a_streaming_job_frees_its_blocks_and_keeps_what_it_said(
    client: Client, gauges: Gauges
) -> None:
    job = client.submit(text_of(60_000), max_tokens=4096, task="summarize")
    client.streaming(job["id"])
    client.cancel(job["id"])
    gauges.until_idle()
    ended = client.finished(job["id"])
    assert 0 < ended["completion_tokens"] < 4096, "the engine stopped before its end"
    assert (ended["state"], ended["finish_reason"]) == ("cancelled", None)
    result = client.result(job["id"])
    assert result["usage"]["completion_tokens"] == ended["completion_tokens"]


def test_cancelling_in_prefill_frees_the_blocks_too(client: Client, gauges: Gauges) -> None:
    job = client.submit(text_of(LONG_CHARS), max_tokens=1024, task="summarize")
    eventually(lambda: gauges.read()["requests{context}"] > 0)
    assert client.job(job["id"])["first_token_at"] is None
    client.cancel(job["id"])
    gauges.until_idle()
    ended = client.finished(job["id"])
    assert (ended["state"], ended["first_token_at"]) == ("cancelled", None)
