"""All routes of the console. Every page is a route of `pages`, and thus behind the session."""

from typing import Annotated, Final

from fastapi import APIRouter, Depends, Path
from starlette.responses import Response

from api.console import (
    answers,
    audit,
    batches,
    documents,
    extractions,
    job,
    job_cancel,
    jobs,
    overview,
    sign_in,
    summaries,
    system,
    tenants,
    usage,
    webhooks,
)
from api.console.assets import assets
from api.console.engines import engine, engines, orders
from api.console.error_pages import PageRoute
from api.console.page import HOME, redirect
from api.console.session import find_viewer
from api.http.scopes import CONSOLE
from jobs.errors import NotFoundError

_FOREVER: Final = "public, max-age=31536000, immutable"

router = APIRouter(include_in_schema=False, route_class=PageRoute, redirect_slashes=False)
pages = APIRouter(dependencies=[Depends(find_viewer)], include_in_schema=False, route_class=PageRoute)
# A family of pages adds its router here, and its entry to `page.NAVIGATION`.
for family in (overview.router, summaries.router, answers.router, extractions.router, documents.router):
    pages.include_router(family)
for family in (batches.router, webhooks.router):
    pages.include_router(family)
for family in (jobs.router, job_cancel.router, job.router):
    pages.include_router(family)
for family in (engines.router, engine.router, orders.router):
    pages.include_router(family)
for family in (tenants.router, usage.router, audit.router, system.router):
    pages.include_router(family)


@pages.api_route(f"{CONSOLE}/{{path:path}}", methods=["GET", "POST", "PUT", "PATCH", "DELETE"])
async def unknown_page(path: Annotated[str, Path()]) -> Response:  # noqa: ARG001  # of any length
    """Answer what no other route does; without a session as every page, so that nothing can be guessed."""
    raise NotFoundError("There is no such page.")


@router.get(CONSOLE)
async def enter() -> Response:
    """Lead to the first page."""
    return redirect(HOME)


@router.get(f"{CONSOLE}/assets/{{name}}")
async def serve_asset(name: str) -> Response:
    """Serve an asset; it needs no session and may be kept for ever."""
    for asset in assets().values():
        if asset.address.endswith(f"/{name}"):
            return Response(asset.content, media_type=asset.media_type, headers={"Cache-Control": _FOREVER})
    raise NotFoundError("There is no such file.")


for part in (sign_in.router, sign_in.codes, pages):
    router.include_router(part)
