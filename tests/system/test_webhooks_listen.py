"""`longbatch webhooks listen` as a process next to a running stack."""

import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.error import HTTPError

import pytest

from cli.stack.ports import free_port, release
from cli.stack.stack import Stack
from support import PATIENCE
from system_support import Client

pytestmark = pytest.mark.timeout(120)

_COMMAND = (sys.executable, "-P", "-c", "from longbatch.cli import main; main()", "webhooks", "listen")


@contextmanager
def listening(
    stack: Stack, *options: str, until: signal.Signals
) -> "Iterator[tuple[subprocess.Popen[str], str]]":
    """A listener and its URL; stopped by this signal at the end."""
    environment = {
        **os.environ,
        "LONGBATCH_API_URL": stack.urls.api_url or "",
        "LONGBATCH_API_KEY": stack.urls.api_key or "",
    }
    with subprocess.Popen(
        [*_COMMAND, *options], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stderr is not None
            line = process.stderr.readline()
            assert line.startswith("listening on http://127.0.0.1:"), line + process.stderr.read()
            yield process, line.split()[2]
        finally:
            process.send_signal(until)
            assert process.wait(PATIENCE) == 0


def line_of(process: "subprocess.Popen[str]") -> str:
    """The next line that the listener prints."""
    assert process.stdout is not None
    return process.stdout.readline()


def endpoints(client: Client) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = client.http.get("/v1/webhook_endpoints").json()["data"]
    return found


def submit(client: Client) -> str:
    return str(client.submit("A short text to summarize.", task="summarize", max_tokens=16)["id"])


def test_events_are_verified_and_printed_and_the_endpoint_is_gone_after_ctrl_c(
    stack: Stack, client: Client
) -> None:
    before = endpoints(client)
    with listening(stack, until=signal.SIGINT) as (process, url):
        (added,) = [each for each in endpoints(client) if each not in before]
        assert (added["url"], added["events"]) == (url, ["*"])
        job_id = submit(client)
        time, kind, event_id, data = line_of(process).split(maxsplit=3)
        assert len(time.split(":")) == 3
        assert kind == "job.completed"
        assert event_id.startswith("evt_")
        assert job_id in data
        assert len(data.strip()) <= 121
    assert endpoints(client) == before


def test_each_event_is_one_line_of_json_as_it_was_delivered(stack: Stack, client: Client) -> None:
    port = free_port()
    release(port)
    options = ("--json", "--port", str(port), "--event", "job.started")
    with listening(stack, *options, until=signal.SIGTERM) as (process, url):
        assert url == f"http://127.0.0.1:{port}/"
        job_id = submit(client)
        event = json.loads(line_of(process))
        assert event["type"] == "job.started"
        assert event["data"]["id"] == job_id
        assert event.keys() == {"id", "object", "created_at", "type", "data"}
    assert not endpoints(client)


def test_a_request_that_does_not_verify_gets_400_and_is_reported(stack: Stack) -> None:
    signed = {"webhook-id": "evt_1", "webhook-timestamp": "1790000000", "webhook-signature": "v1,bm8="}
    with listening(stack, until=signal.SIGINT) as (process, url):
        for headers, why in (({}, "has no webhook-id"), (signed, "signature does not match")):
            request = urllib.request.Request(url, b"{}", headers)  # noqa: S310 loopback
            with pytest.raises(HTTPError) as refused:
                urllib.request.urlopen(request, timeout=PATIENCE)  # noqa: S310 loopback
            assert refused.value.code == 400
            assert why in refused.value.read().decode()
            assert process.stderr is not None
            assert why in process.stderr.readline()


def test_a_server_elsewhere_and_a_taken_port_are_usage_errors(stack: Stack) -> None:
    api_url = stack.urls.api_url or ""
    taken = api_url.rpartition(":")[2]
    for options, words in (
        (["--api-url", "https://longbatch.example.com"], "must be a server on this machine"),
        (["--api-url", api_url, "--port", taken], f"{taken} cannot be used"),
    ):
        done = subprocess.run(
            [*_COMMAND, *options], capture_output=True, text=True, check=False, timeout=PATIENCE
        )
        assert done.returncode == 2
        assert words in " ".join(done.stderr.replace("│", " ").split())
