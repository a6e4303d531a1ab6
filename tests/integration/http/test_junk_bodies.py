"""Long bodies that are no requests, and the process that parses long bodies."""

from pathlib import Path

import httpx2
import pytest

from api_server import ApiProcess, error_of
from support import eventually


@pytest.mark.parametrize(
    "route", ["/v1/jobs", "/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/embeddings"]
)
def test_a_body_of_too_many_names_is_refused(http: httpx2.Client, route: str) -> None:
    body = "{" + ",".join(f'"a{number}":1' for number in range(100_000))
    refused = http.post(route, content=body.encode())
    assert refused.status_code == 400
    assert error_of(refused)["message"] == "The request body may have at most 32768 names and texts."


def test_the_process_for_long_bodies_starts_with_the_api(server: ApiProcess) -> None:
    pid = server.process.pid
    eventually(lambda: Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
