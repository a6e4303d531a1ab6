"""Authentication: admits a request only with a key whose scope allows it, before any body is read."""

import asyncio
from dataclasses import dataclass
from typing import Final

from starlette.datastructures import MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.http import errors
from api.http.scopes import needed_scope
from api.runtime.api_keys import Caller
from api.runtime.database import request_tenant
from api.runtime.quotas import QuotaCache
from api.runtime.rate_limits import Rate
from api.runtime.services import Services
from jobs.errors import ForbiddenError, LongbatchError

# The body of a refused request is read and dropped up to this size, so that a caller still sending sees the
# response.
_DRAINED_BYTES: Final = 64 * 2**20
_DRAINED_SECONDS: Final = 10


class AuthMiddleware:
    """ASGI middleware in front of all routes; sets `scope["state"]["caller"]` for them."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, bound to its tenant, or refuse it."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close"})  # no route speaks WebSocket
            return
        try:
            passed = await _admit(scope)
        except LongbatchError as error:
            await _refuse(errors.response(error), scope, receive, send)
            return
        await self._app(scope, receive, passed.adding_headers(send) if passed else send)


@dataclass(frozen=True, slots=True)
class _Passed:
    """A request that is admitted."""

    caller: Caller
    rate: Rate
    quotas: QuotaCache

    def adding_headers(self, send: Send) -> Send:
        """Wrap `send` to add the caller's remaining limits where a response lacks them."""

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                limits = self.quotas.headers(self.caller.tenant_id, self.caller.limits)
                for name, value in (*self.rate.headers().items(), *limits.items()):
                    headers.setdefault(name, value)
            await send(message)

        return send_with_headers


async def _admit(scope: Scope) -> _Passed | None:
    """Authenticate the request and count it against the caller's rate limit.

    Returns:
        None: the route needs no key.

    Raises:
        LongbatchError: the request is refused; answer with this error.
    """
    needed = needed_scope(scope)
    if needed is None:
        return None
    services: Services = scope["app"].state.services
    caller = await services.api_keys.verify(_header(scope, b"authorization"))
    if needed not in caller.scopes:
        raise ForbiddenError(f"This API key lacks the scope {needed.value!r}, which this request requires.")
    rate = await services.rates.hit(caller.tenant_id, caller.limits.max_requests)
    scope.setdefault("state", {})["caller"] = caller
    request_tenant.set(caller.tenant_id)
    return _Passed(caller, rate, services.quotas)


async def _refuse(response: Response, scope: Scope, receive: Receive, send: Send) -> None:
    if _header(scope, b"expect") is None:  # with Expect, the caller waits for an answer before it sends
        await _drain(receive)
    await response(scope, receive, send)


async def _drain(receive: Receive) -> None:
    num_bytes = 0
    try:
        async with asyncio.timeout(_DRAINED_SECONDS):
            while num_bytes < _DRAINED_BYTES:
                message = await receive()
                num_bytes += len(message.get("body", b""))
                if not message.get("more_body", False):
                    return
    except TimeoutError:
        return


def _header(scope: Scope, name: bytes) -> str | None:
    found = next((value for each, value in scope["headers"] if each == name), None)
    return found.decode("latin-1") if found is not None else None
