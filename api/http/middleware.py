"""The outermost middleware: adds request ids, gives every failure one shape, counts every request."""

import re
import time
import traceback
from collections.abc import Callable
from typing import Final

from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.http import errors
from api.http.metrics import HttpMetrics
from api.runtime.traces import traceparent_of_request
from jobs import telemetry
from jobs.ids import uuid7

_SAFE_ID: Final = re.compile(rb"[A-Za-z0-9._-]{1,128}")
_HEADER: Final = b"x-request-id"
# Enough to find the line. The message is not logged, since it may contain what a caller sent.
_FRAMES: Final = 4


class RequestMiddleware:
    """ASGI middleware around everything else: request ids, metrics, and 500 for what nothing else caught."""

    def __init__(
        self,
        app: ASGIApp,
        metrics: HttpMetrics,
        *,
        failure: Callable[[Scope], Response] = lambda _: errors.internal_response(),
    ) -> None:
        """Args: failure: makes the 500 that answers such a request."""
        self._app = app
        self._metrics = metrics
        self._failure = failure

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer the request, whatever the application does."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = _request_id(scope)
        scope.setdefault("state", {})["request_id"] = request_id.decode()
        status = 0
        started_at = time.perf_counter()

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message.get("headers", []), (_HEADER, request_id)]
            await send(message)

        try:
            with self._metrics.open_requests.track_inprogress():
                await self._app(scope, receive, send_with_id)
        except ClientDisconnect:
            pass  # the caller left, so there is no one to answer
        except Exception as error:
            _log(error, scope, request_id)
            if status:
                raise  # part of the response is out, so the server must break the connection
            await self._failure(scope)(scope, receive, send_with_id)
        finally:
            self._metrics.observe(scope, status=status, seconds=time.perf_counter() - started_at)


def _request_id(scope: Scope) -> bytes:
    """Return the caller's request id if it is safe to log, otherwise a new one."""
    given = next((value for name, value in scope["headers"] if name == _HEADER), b"")
    return given if _SAFE_ID.fullmatch(given) else b"req_" + uuid7().hex.encode()


def _log(error: Exception, scope: Scope, request_id: bytes) -> None:
    frames = traceback.extract_tb(error.__traceback__)[-_FRAMES:]
    telemetry.logger().error(
        telemetry.REQUEST_FAILED,
        request_id=request_id.decode(),
        **telemetry.in_trace(traceparent_of_request()),
        method=scope["method"],
        route=getattr(scope.get("route"), "path", None),
        error=type(error).__name__,
        cause=type(error.__cause__).__name__ if error.__cause__ else None,
        where=[f"{frame.filename}:{frame.lineno} {frame.name}" for frame in frames],
    )
