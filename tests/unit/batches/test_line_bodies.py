"""What lines of a batch may ask of /v1/responses."""

from typing import Any

import pytest

from jobs.batches.line_bodies import validate_body
from jobs.errors import InvalidRequestError
from jobs.states.batch import Endpoint

BODY = {"model": "m", "input": "Hello"}


def test_a_line_repeats_its_parameters_in_the_tier_of_batches() -> None:
    found = validate_body(Endpoint.RESPONSES, BODY | {"metadata": {"a": "b"}, "temperature": 0.5})
    assert found.metadata == {"a": "b"}
    assert found.repeated is not None
    assert [found.repeated[name] for name in ("temperature", "service_tier", "store")] == [0.5, "flex", False]


@pytest.mark.parametrize("endpoint", [Endpoint.CHAT, Endpoint.TEXT])
def test_other_endpoints_make_no_responses(endpoint: Endpoint) -> None:
    prompt = (
        {"messages": [{"role": "user", "content": "a"}]} if endpoint is Endpoint.CHAT else {"prompt": "a"}
    )
    assert validate_body(endpoint, {"model": "m"} | prompt).repeated is None
    with pytest.raises(InvalidRequestError):
        validate_body(endpoint, BODY)


@pytest.mark.parametrize(
    "fields",
    [
        {"background": True},
        {"store": True},
        {"service_tier": "priority"},
        {"stream": True},
        {"webhook_url": "https://example.com"},
        {"messages": []},
    ],
)
def test_what_a_line_cannot_have_is_refused_by_name(fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequestError) as raised:
        validate_body(Endpoint.RESPONSES, BODY | fields)
    assert raised.value.param == next(iter(fields))
