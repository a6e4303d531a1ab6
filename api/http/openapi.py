"""Describe operations' request bodies and responses for the OpenAPI document."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from pydantic import BaseModel

from api.http.replies import ErrorReply

_NOTHING: Final[Mapping[str, str]] = MappingProxyType({})
REF: Final = "#/components/schemas/{model}"
REASONS: Final = {
    400: "A field is invalid or unknown; `param` names it",
    401: "The API key is missing or invalid",
    403: "The API key lacks the scope that this operation needs",
    404: "Nothing with this id exists, or it is not yours",
    409: "The request conflicts with the current state",
    413: "The body is too large",
    500: "The engine failed",
    429: "You reached a limit; the message says which. Try again after Retry-After seconds",
    503: "A component is unavailable; try again after Retry-After seconds",
    504: "No engine had room in time",
}


def responses(
    status: int, model: type | None, description: str, *errors: int, raw: Mapping[str, str] = _NOTHING
) -> dict[int | str, dict[str, Any]]:
    """Document an operation's responses: the successful one, then its possible errors.

    Args:
        status: of the successful response.
        model: of its JSON body; None if the body is never JSON.
        description: of the successful response.
        errors: statuses of the possible errors.
        raw: other media types of the successful response, each with an example.
    """
    good: dict[str, Any] = {"description": description}
    if model is not None:
        good["model"] = model
    if raw:
        good["content"] = {media_type: {"example": example} for media_type, example in raw.items()}
    # By name: a model here would be compiled anew for each route and status, a tenth of a second in all.
    found: dict[int | str, dict[str, Any]] = {status: good}
    return found | {error: failure(error) for error in errors}


def failure(status: int) -> dict[str, Any]:
    """Document the response of an error."""
    schema = {"$ref": REF.format(model=ErrorReply.__name__)}
    return {"description": REASONS[status], "content": {"application/json": {"schema": schema}}}


def event_responses(example: str) -> dict[int | str, dict[str, Any]]:
    """Document the responses of an operation that streams server-sent events."""
    return responses(200, None, "Server-sent events", 400, 404, 503, raw={"text/event-stream": example})


def json_body(model: type[BaseModel]) -> dict[str, Any]:
    """Document a JSON body of this shape, for an operation that reads it as bytes."""
    return _body("application/json", {"$ref": REF.format(model=model.__name__)})


def lines_body(model: type[BaseModel]) -> dict[str, Any]:
    """Document a body of lines, each a JSON object of this shape."""
    schema = {"$ref": REF.format(model=model.__name__)}
    example = '{"input":"first document","custom_id":"1"}\n{"input":"second document","custom_id":"2"}\n'
    return _body("application/x-ndjson", {"type": "string", "contentSchema": schema, "examples": [example]})


def form_body(model: type[BaseModel]) -> dict[str, Any]:
    """Document a multipart form of this shape, for an operation that streams it."""
    return _body("multipart/form-data", {"$ref": REF.format(model=model.__name__)})


def document_body(model: type[BaseModel]) -> dict[str, Any]:
    """Document a body that is a multipart form of this shape or the file itself."""
    described = form_body(model)
    file = {"type": "string", "format": "binary", "examples": ["Annual report …"]}
    described["requestBody"]["content"]["application/octet-stream"] = {"schema": file}
    return described


def _body(media_type: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"requestBody": {"required": True, "content": {media_type: {"schema": schema}}}}
