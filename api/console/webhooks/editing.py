"""Endpoints made and changed: a form for each, the secret on the page that answers, and nowhere again."""

import json
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Final, get_args
from uuid import UUID

from fastapi import Request
from sqlalchemy.orm import Session
from starlette.responses import Response

from api.console.error_pages import page_router
from api.console.forms import ChangeDep, check_may_change
from api.console.page import redirect, render
from api.console.reading import read_for
from api.console.session import Viewer, ViewerDep
from api.console.webhooks.endpoints import LIST, address_of
from api.http.body import parse
from api.http.dependencies import ServicesDep
from api.http.errors import status_of
from api.http.identifiers import EndpointIdDep
from api.webhooks import verbs
from api.webhooks.schemas import DEFAULT_OVERLAP_SECONDS, EndpointRequest, EndpointUpdate, EventType
from jobs.errors import LongbatchError
from jobs.models.webhook import WebhookEndpoint
from jobs.webhooks import endpoints, queries

router = page_router()

_NEW: Final = f"{LIST}/new"
_EVENTS: Final[tuple[str, ...]] = tuple(each for each in get_args(EventType) if each != "*")
_EMPTY: Final[Mapping[str, str]] = {"all": "1"}


@router.get("/webhooks/new")
async def show_new(request: Request, viewer: ViewerDep) -> Response:
    """Show the form of a new endpoint."""
    check_may_change(viewer)
    return _form(request, _NEW, title="New endpoint", filled=_EMPTY)


@router.post("/webhooks/new")
async def create_endpoint(
    request: Request, services: ServicesDep, viewer: ViewerDep, form: ChangeDep
) -> Response:
    """Create the endpoint and show its secret, which no other page and no reload has."""
    try:
        asked = parse(EndpointRequest, json.dumps(_asked(form)).encode())
        endpoint, secret = await verbs.create(services, asked, tenant_id=viewer.caller.tenant_id)
    except LongbatchError as error:
        return _form(request, _NEW, title="New endpoint", filled=form, error=error)
    return _secret(request, endpoint, secret, title="A new endpoint")


@router.get("/webhooks/endpoints/{endpoint_id}/edit")
async def show_edit(
    request: Request, endpoint_id: EndpointIdDep, services: ServicesDep, viewer: ViewerDep
) -> Response:
    """Show the form with what the endpoint has."""
    endpoint = await _find(services, viewer, endpoint_id)
    filled = {
        "url": endpoint.url,
        "description": endpoint.description,
        **({"all": "1"} if "*" in endpoint.events else {}),
        **{f"on {each}": "1" for each in endpoint.events},
        **({"outputs": "1"} if endpoint.includes_output else {}),
    }
    return _form(request, f"{address_of(endpoint_id)}/edit", title="Change the endpoint", filled=filled)


@router.post("/webhooks/endpoints/{endpoint_id}/edit")
async def change_endpoint(
    request: Request, endpoint_id: EndpointIdDep, services: ServicesDep, viewer: ViewerDep, form: ChangeDep
) -> Response:
    """Change the endpoint."""
    await _find(services, viewer, endpoint_id)
    try:
        asked = parse(EndpointUpdate, json.dumps(_asked(form)).encode())
        await verbs.change(services, endpoint_id, asked, tenant_id=viewer.caller.tenant_id)
    except LongbatchError as error:
        address = f"{address_of(endpoint_id)}/edit"
        return _form(request, address, title="Change the endpoint", filled=form, error=error)
    return redirect(address_of(endpoint_id), done="The endpoint is changed.")


@router.get("/webhooks/endpoints/{endpoint_id}/rotate")
async def confirm_rotate(
    request: Request, endpoint_id: EndpointIdDep, services: ServicesDep, viewer: ViewerDep
) -> Response:
    """Ask before the secret is replaced."""
    await _find(services, viewer, endpoint_id)
    question = (
        "The next page shows the new secret, once. For a day both sign what is sent; then the new one alone."
    )
    return _confirm(request, endpoint_id, verb="rotate", title="Replace the secret", question=question)


@router.post("/webhooks/endpoints/{endpoint_id}/rotate")
async def rotate_secret(
    request: Request, endpoint_id: EndpointIdDep, services: ServicesDep, viewer: ViewerDep, _form: ChangeDep
) -> Response:
    """Replace the secret and show the new one."""
    endpoint, _, secret = await verbs.rotate(
        services,
        endpoint_id,
        tenant_id=viewer.caller.tenant_id,
        overlap=timedelta(seconds=DEFAULT_OVERLAP_SECONDS),
    )
    return _secret(request, endpoint, secret, title="A new secret")


@router.get("/webhooks/endpoints/{endpoint_id}/delete")
async def confirm_delete(
    request: Request, endpoint_id: EndpointIdDep, services: ServicesDep, viewer: ViewerDep
) -> Response:
    """Ask before the endpoint is deleted."""
    await _find(services, viewer, endpoint_id)
    question = "Nothing more is sent to it, not even what is queued. The log of its deliveries stays."
    return _confirm(request, endpoint_id, verb="delete", title="Delete the endpoint", question=question)


@router.post("/webhooks/endpoints/{endpoint_id}/delete")
async def delete_endpoint(
    endpoint_id: EndpointIdDep, services: ServicesDep, viewer: ViewerDep, _form: ChangeDep
) -> Response:
    """Delete the endpoint."""
    tenant_id = viewer.caller.tenant_id
    await services.transact(endpoints.remove, endpoint_id=endpoint_id, tenant_id=tenant_id)
    return redirect(LIST, done="The endpoint is deleted.")


async def _find(services: ServicesDep, viewer: Viewer, endpoint_id: UUID) -> WebhookEndpoint:
    """Find the endpoint of the viewer's own tenant, before it is changed.

    Raises:
        ForbiddenError: the viewer may only read.
        NotFoundError: the tenant has no such endpoint.
    """
    check_may_change(viewer)

    def find(session: Session) -> WebhookEndpoint:
        return queries.find_endpoint(session, endpoint_id, tenant_id=viewer.caller.tenant_id)

    return await read_for(viewer, services, find)


def _asked(form: Mapping[str, str]) -> dict[str, Any]:
    """Translate the form to the body of `POST /v1/webhook_endpoints`."""
    chosen = [each for each in _EVENTS if form.get(f"on {each}")]
    return {
        "url": form.get("url", "").strip(),
        "description": form.get("description", "").strip(),
        "events": ["*"] if form.get("all") else chosen,
        "include_output": bool(form.get("outputs")),
    }


def _form(
    request: Request,
    address: str,
    *,
    title: str,
    filled: Mapping[str, str],
    error: LongbatchError | None = None,
) -> Response:
    return render(
        request,
        "webhooks/edit.html",
        title=title,
        status=status_of(error) if error else 200,
        problem=error and error.message,
        filled=filled,
        types=_EVENTS,
        address=address,
        back=address.removesuffix("/edit").removesuffix("/new"),
    )


def _secret(request: Request, endpoint: WebhookEndpoint, secret: str, *, title: str) -> Response:
    address = address_of(endpoint.id)
    return render(
        request, "webhooks/secret.html", title=title, url=endpoint.url, secret=secret, address=address
    )


def _confirm(request: Request, endpoint_id: UUID, *, verb: str, title: str, question: str) -> Response:
    address = address_of(endpoint_id)
    return render(request, "confirm.html", title=title, question=question, address=address, verb=verb)
