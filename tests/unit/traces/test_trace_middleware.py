"""The span of a request says how it ended, also where no response began, or another layer answers."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from starlette.requests import ClientDisconnect
from starlette.types import Message, Receive, Scope, Send

from api.http.traces import TraceMiddleware
from api.runtime.traces import Tracing, trace_of_request
from jobs.settings import TraceSettings
from jobs.traces.span import Span

Answer = Callable[[Send], Awaitable[None]]


class Kept:
    """Takes the spans that would be sent."""

    def __init__(self) -> None:
        self.spans: list[Span] = []

    def add(self, span: Span) -> None:
        self.spans.append(span)


async def answers(send: Send) -> None:
    await send({"type": "http.response.start", "status": 202, "headers": []})


async def leaves(_: Send) -> None:
    raise ClientDisconnect


async def breaks(_: Send) -> None:
    raise RuntimeError


def spans_of(answer: Answer, *, submits: bool = True, ratio: float = 1, method: str = "POST") -> list[Span]:
    """What one request leaves."""
    kept = Kept()

    async def app(_scope: Scope, _receive: Receive, send: Send) -> None:
        if submits:
            trace_of_request()
        await answer(send)

    async def receive() -> Message:
        raise NotImplementedError

    async def send(_: Message) -> None:
        pass

    tracing = Tracing(TraceSettings(ratio=ratio), kept)  # type: ignore[arg-type]  # sends nothing
    scope = {"type": "http", "method": method, "headers": [], "path": "/v1/jobs"}
    try:
        asyncio.run(TraceMiddleware(app, tracing)(scope, receive, send))
    except (ClientDisconnect, RuntimeError):
        assert answer in {leaves, breaks}
    return kept.spans


@pytest.mark.parametrize(
    ("answer", "status", "error"),
    [(answers, 202, None), (leaves, None, "no_response"), (breaks, 500, "500")],
)
def test_a_span_says_how_its_request_ended(answer: Answer, status: int | None, error: str | None) -> None:
    (span,) = spans_of(answer)
    assert span.attributes.get("http.response.status_code") == status
    assert span.error_type == error
    assert span.ended_at >= span.started_at


def test_only_kept_requests_that_submit_something_have_a_span() -> None:
    assert not spans_of(answers, submits=False)
    assert not spans_of(answers, ratio=0)
    assert not spans_of(answers, method="GET")
