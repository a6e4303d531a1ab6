"""What counts as a result that was handed to its owner: all of it, on a connection that is open."""

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any
from uuid import UUID, uuid4

import pytest
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Message, Receive, Scope, Send

from api.http import deliveries
from api.http.deliveries import DeliveryMiddleware, HandedOver

TENANT = uuid4()
JOB = uuid4()
Route = Callable[[Scope, Receive, Send], Awaitable[None]]


class Service:
    """What the middleware asks of the service: whose content goes, and that it goes."""

    def __init__(self, *tenants: UUID) -> None:
        self._tenants = frozenset(tenants)
        self.num_removals = 0
        self.without_retention = self.transactions = self.live = self

    async def get(self) -> frozenset[UUID]:
        return self._tenants

    async def run(self, verb: object, *, tenant_ids: list[UUID]) -> list[UUID]:  # noqa: ARG002
        assert tenant_ids == [TENANT]
        self.num_removals += 1
        return [JOB]

    async def forget(self, job_ids: list[UUID]) -> None:
        assert job_ids == [JOB]


def handing_over(response: Response) -> Route:
    async def route(scope: Scope, receive: Receive, send: Send) -> None:
        deliveries.note(Request(scope), HandedOver([JOB]))
        await response(scope, receive, send)

    return route


def asked(route: Route, *, leaves: bool = False, tenants: tuple[UUID, ...] = (TENANT,)) -> tuple[int, bytes]:
    """How often something was removed, and the body that was sent."""
    service, sent = Service(*tenants), bytearray()

    async def receive() -> Message:
        if not leaves:
            await asyncio.Event().wait()
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        sent.extend(message.get("body", b""))

    scope: dict[str, Any] = {
        "type": "http",
        "method": "GET",
        "path": "/",
        "headers": [],
        "app": SimpleNamespace(state=SimpleNamespace(services=service)),
        "state": {"caller": SimpleNamespace(tenant_id=TENANT)},
    }

    async def answer() -> None:
        async with asyncio.timeout(30):
            await DeliveryMiddleware(route)(scope, receive, send)

    asyncio.run(answer())
    return service.num_removals, bytes(sent)


def test_a_whole_response_on_an_open_connection_delivers() -> None:
    assert asked(handing_over(Response(b"all of it"))) == (1, b"all of it")
    assert asked(handing_over(StreamingResponse(iter([b"all ", b"of it"])))) == (1, b"all of it")


def test_a_caller_that_left_before_the_last_byte_may_ask_again() -> None:
    assert asked(handing_over(Response(b"all of it")), leaves=True)[0] == 0


def test_an_error_hands_nothing_over() -> None:
    assert asked(handing_over(Response(b"no", status_code=404)))[0] == 0


def test_what_a_tenant_with_retention_reads_stays() -> None:
    assert asked(handing_over(Response(b"all of it")), tenants=()) == (0, b"all of it")


def test_a_response_that_breaks_off_hands_nothing_over() -> None:
    class BrokenError(Exception):
        pass

    async def route(scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG001
        deliveries.note(Request(scope), HandedOver([JOB]))
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"half", "more_body": True})
        raise BrokenError

    with pytest.raises(BrokenError):
        asked(route)
