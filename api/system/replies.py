"""What the service says about itself, described for the API's documentation."""

from typing import Literal

from pydantic import BaseModel

from api.http.replies import ErrorBody, example


class ComponentReply(BaseModel):
    """Whether a part of the service works."""

    ready: bool
    detail: str


class ReadyReply(BaseModel):
    """Whether jobs can be accepted and run, part by part; when not, `error` stands beside."""

    model_config = example(
        ready=True,
        components={
            "database": {"ready": True, "detail": "schema is at 0001"},
            "broker": {"ready": True, "detail": "answers"},
            "triton": {"ready": True, "detail": "ready"},
            "tokenizer": {"ready": True, "detail": "loaded, fingerprint 8f50fa8d0822a7f2fd1273579431ccec"},
        },
    )

    ready: bool
    components: dict[Literal["database", "broker", "triton", "tokenizer"], ComponentReply]
    error: ErrorBody | None = None


class LiveReply(BaseModel):
    """The process answers."""

    model_config = example(status="ok")

    status: Literal["ok"]


class VersionReply(BaseModel):
    """What this server is."""

    model_config = example(version="0.1.0", model="llama-3.1-8b-instruct")

    version: str
    model: str
