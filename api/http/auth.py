"""Authentication: admits a request only with a key whose scope allows it, before any body is read."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.http import errors
from api.http.actors import actor_with
from api.http.scopes import is_console, needed_scope
from api.runtime.api_keys import Caller
from api.runtime.database import request_actor, request_tenant
from api.runtime.quotas import QuotaCache
from api.runtime.rate_limits import Rate
from api.runtime.services import Services
from jobs.audit import Via
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
        send = passed.adding_headers(send) if passed else send
        try:
            await self._app(scope, _rechecking(scope, receive), send)
        finally:
            if passed is not None or is_console(scope["path"]):
                scope["app"].state.services.open_requests.leave(scope["state"])


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
                caller, given = self.caller, message.get("headers", [])
                limits = self.quotas.headers(caller.tenant_id, caller.limits, of_key=caller.quota)
                names, ours = {name for name, _ in given}, self.rate.headers() | limits
                more = [(name.encode(), value.encode()) for name, value in ours.items()]
                message["headers"] = [*given, *(each for each in more if each[0] not in names)]
            await send(message)

        return send_with_headers


def _rechecking(scope: Scope, receive: Receive) -> Receive:
    """Wrap `receive` so that a body that takes long to arrive is not taken from a key revoked meanwhile.

    `state["recheck"]` of the request, where there is one, raises if the request would be refused now. A
    request without a body is not rechecked: its only message is read by the response that is under way.
    """
    services: Services = scope["app"].state.services
    seconds = services.settings.api.key_cache_seconds
    checked_at = time.monotonic()
    has_body = False

    async def receive_rechecked() -> Message:
        nonlocal checked_at, has_body
        message = await receive()
        recheck: Callable[[], Awaitable[object]] | None = scope.get("state", {}).get("recheck")
        has_body = has_body or bool(message.get("body"))
        is_due = message["type"] == "http.request" and time.monotonic() - checked_at >= seconds
        if recheck is not None and has_body and is_due:
            await recheck()
            checked_at = time.monotonic()
        return message

    return receive_rechecked


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

    async def verify() -> Caller:
        found = await services.api_keys.verify(_header(scope, b"authorization"))
        if needed not in found.scopes:
            raise ForbiddenError(
                f"This API key lacks the scope {needed.value!r}, which this request requires."
            )
        return found

    caller = await verify()
    rate = await services.rates.hit_each(caller.rate_limits)
    state = scope.setdefault("state", {})
    services.open_requests.enter(state, caller.tenant_id)
    state.update(caller=caller, recheck=verify)
    request_tenant.set(caller.tenant_id)
    request_actor.set(actor_with(scope, caller, Via.API))
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
