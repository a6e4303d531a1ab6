"""Long bodies that are no requests."""

import httpx2
import pytest

from api_server import error_of


@pytest.mark.parametrize(
    "route", ["/v1/jobs", "/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/embeddings"]
)
def test_a_body_of_too_many_names_is_refused(http: httpx2.Client, route: str) -> None:
    body = "{" + ",".join(f'"a{number}":1' for number in range(100_000))
    refused = http.post(route, content=body.encode())
    assert refused.status_code == 400
    assert error_of(refused)["message"] == "The request body may have at most 32768 names and texts."
