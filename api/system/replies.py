"""Replies about the service itself, modelled for the API documentation."""

from typing import Literal

from pydantic import BaseModel

from api.http.fields import example
from api.http.replies import ErrorBody
from jobs.prompts.estimates import TokenCounts


class ComponentReply(BaseModel):
    """The state of one component of the service."""

    ready: bool
    detail: str


class ReadyReply(BaseModel):
    """The readiness of each component; if one is not ready, `error` is set."""

    model_config = example(
        ready=True,
        components={
            "database": {"ready": True, "detail": "schema is at 0001"},
            "broker": {"ready": True, "detail": "answers"},
            "engine": {"ready": True, "detail": "jobs start on default"},
            "workers": {"ready": True, "detail": "2 report that all of their loops run"},
            "tokenizer": {"ready": True, "detail": "loaded, fingerprint 8f50fa8d0822a7f2fd1273579431ccec"},
        },
    )

    ready: bool
    components: dict[Literal["database", "broker", "engine", "workers", "tokenizer"], ComponentReply]
    error: ErrorBody | None = None


class LiveReply(BaseModel):
    """The process is alive."""

    model_config = example(status="ok")

    status: Literal["ok"]


class VersionReply(BaseModel):
    """The version of this server and the model it serves."""

    model_config = example(version="0.2.0", model="llama-3.1-8b-instruct", token_counts="exact")  # noqa: S106  # of text

    version: str
    model: str
    token_counts: TokenCounts
