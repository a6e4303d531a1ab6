"""The middleware of traces; without a collector the application has none."""

from datetime import UTC, datetime
from typing import Final

from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.runtime.traces import RequestTrace, Tracing, request_trace
from jobs import telemetry

_HEADER: Final = b"traceparent"
_FAILED: Final = 500


class TraceMiddleware:
    """ASGI middleware that gives each request a trace, and sends the span of one that submits something."""

    def __init__(self, app: ASGIApp, tracing: Tracing) -> None:
        self._app = app
        self._tracing = tracing

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on; its span ends with its response."""
        if scope["type"] != "http" or scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        began = datetime.now(UTC)
        trace = self._tracing.begin([value for name, value in scope["headers"] if name == _HEADER])
        status: int | None = None

        async def noting(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        request_trace.set(trace)  # of this request's task, also for what logs its failure
        try:
            await self._app(scope, receive, noting)
        except ClientDisconnect:  # before the response began, or during it
            raise
        except Exception:
            status = status or _FAILED  # the middleware around this one answers
            raise
        finally:
            self._end(scope, trace, status=status, began=began)

    def _end(self, scope: Scope, trace: RequestTrace, *, status: int | None, began: datetime) -> None:
        if not trace.is_used:
            return
        route = getattr(scope.get("route"), "path", "")
        try:
            now = datetime.now(UTC)
            self._tracing.end(
                trace, method=scope["method"], route=route, status=status, began=began, ended=now
            )
        except Exception as error:  # noqa: BLE001  # the caller has its answer
            telemetry.log_failure(telemetry.LOOP_FAILED, error, loop="traces")
