"""What the body of a line asks for, by the endpoint of its batch."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from jobs.embeddings import requests as embeddings
from jobs.errors import InvalidRequestError, UnsupportedParameterError
from jobs.models import JsonObject
from jobs.prompts import openai
from jobs.prompts.abilities import UNKNOWN, Takes
from jobs.prompts.openai import Generation
from jobs.responses import requests as responses
from jobs.responses.requests import ResponseRequest
from jobs.states.batch import Endpoint


@dataclass(frozen=True, slots=True)
class LineBody:
    """A valid body.

    Attributes:
        generation: what it asks the model to generate.
        repeated: the parameters that its response repeats; None: its endpoint makes no responses.
        metadata: the caller's own keys and values, which only responses show.
    """

    generation: Generation
    repeated: JsonObject | None = None
    metadata: JsonObject | None = None


def validate_body(endpoint: Endpoint, body: Mapping[str, Any], takes: Takes = UNKNOWN) -> LineBody:
    """Validate the body of a line.

    Args:
        endpoint: of the batch.
        body: its JSON.
        takes: what engines can be asked for.

    Raises:
        InvalidRequestError: a parameter is invalid or not supported; `param` names it.
    """
    if endpoint is Endpoint.EMBEDDINGS:
        request, generation = embeddings.validate(body, takes)
        return LineBody(replace(generation, sampling=generation.sampling | request.written_as))
    if endpoint is not Endpoint.RESPONSES:
        return _unless_streamed(LineBody(openai.validate_request(endpoint, body, takes)))
    asked = responses.validate(body, takes)
    _check_response(asked.request)
    repeated = asked.repeated | {"service_tier": "flex", "store": False}
    return _unless_streamed(LineBody(asked.generation, repeated, dict(asked.request.metadata or {})))


def _unless_streamed(found: LineBody) -> LineBody:
    if found.generation.stream:
        raise InvalidRequestError("Requests of a batch cannot stream.", param="stream")
    return found


def _check_response(request: ResponseRequest) -> None:
    """Refuse what a line of a batch cannot have."""
    refused = {
        "background": (request.background, "a batch runs all of its lines in the background."),
        "store": (request.store is True, "a batch keeps its responses in its output file alone."),
        "service_tier": (request.service_tier == "priority", "a batch runs in the tier flex."),
    }
    for name, (is_set, reason) in refused.items():
        if is_set:
            raise UnsupportedParameterError(f"{name}: {reason}", param=name)
