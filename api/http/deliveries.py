"""Responses that hand a result to its owner: what a tenant without retention has then is removed."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final
from uuid import UUID

import anyio
from sqlalchemy.orm import Session
from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.runtime.api_keys import Caller
from api.runtime.services import Services
from jobs import telemetry
from jobs.database import database_now
from jobs.erasure import zero_retention
from jobs.errors import LongbatchError

_STATE: Final = "handed_over"
_NOTHING: Final[Message] = {"type": "http.response.body", "body": b"", "more_body": True}


@dataclass(frozen=True, slots=True)
class HandedOver:
    """What a response has all of.

    Attributes:
        job_ids: jobs that have ended.
        summary_id: a summary that has ended.
        file_id: a complete file.
    """

    job_ids: Sequence[UUID] = ()
    summary_id: UUID | None = None
    file_id: UUID | None = None


def note(connection: HTTPConnection, found: HandedOver) -> None:
    """Note what this request's response has all of, before its last byte is sent."""
    setattr(connection.state, _STATE, found)


class DeliveryMiddleware:
    """ASGI middleware behind authentication: removes what was handed over, once the caller has all of it.

    That is, once the last byte was handed to the operating system while the connection was open. A response
    that broke off removes nothing: the caller can ask again.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, and look at how its response ends."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        services: Services = scope["app"].state.services
        is_ok, delivered = False, None

        async def send_and_look(message: Message) -> None:
            nonlocal is_ok, delivered
            if message["type"] == "http.response.start":
                is_ok = message["status"] == 200  # only this hands anything over
            found: HandedOver | None = scope.get("state", {}).get(_STATE)
            is_last = message["type"] == "http.response.body" and not message.get("more_body", False)
            if found is None or not (is_ok and is_last) or not await _keeps_nothing(services, scope):
                await send(message)
                return
            await send({**message, "more_body": True})
            await send(_NOTHING)  # waits until the connection has taken what was sent
            delivered = None if await _has_left(receive) else found
            await send({**_NOTHING, "more_body": False})

        await self._app(scope, receive, send_and_look)
        if delivered is not None:
            await _remove(services, scope["state"]["caller"], delivered)


async def _keeps_nothing(services: Services, scope: Scope) -> bool:
    caller: Caller | None = scope["state"].get("caller")
    try:
        return caller is not None and caller.tenant_id in await services.without_retention.get()
    except LongbatchError:  # the database does not answer: a worker's round finds it later
        return False


async def _has_left(receive: Receive) -> bool:
    """Return True if the caller has closed the connection; never waits."""
    kind = "http.request"
    while kind == "http.request":  # a body that the route did not read
        kind = ""
        with anyio.CancelScope() as at_once:
            at_once.cancel()
            kind = str((await receive())["type"])
    return kind == "http.disconnect"


async def _remove(services: Services, caller: Caller, found: HandedOver) -> None:
    def run(session: Session) -> list[UUID]:
        tenant_id = caller.tenant_id
        gone = zero_retention.forget_jobs(session, found.job_ids, tenant_id=tenant_id)
        now = database_now(session)
        if found.summary_id is not None:
            zero_retention.forget_summary(session, found.summary_id, tenant_id=tenant_id, now=now)
        if found.file_id is not None:
            zero_retention.forget_file(session, found.file_id, tenant_id=tenant_id, now=now)
        return gone

    try:
        await services.live.forget(await services.transactions.run(run, tenant_ids=[caller.tenant_id]))
    except LongbatchError as error:  # a worker's round removes it when its time is over
        telemetry.logger().warning(telemetry.LOOP_FAILED, loop="deliveries", error=error.code)
