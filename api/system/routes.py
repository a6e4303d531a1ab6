"""Health, metrics, version and documentation over HTTP."""

import contextlib
from dataclasses import asdict

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse, JSONResponse
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.responses import Response

from api.http import errors
from api.http.dependencies import ServicesDep
from api.http.metrics import HttpMetrics
from api.system import docs_page, metrics
from api.system.replies import LiveReply, ReadyReply, VersionReply
from jobs.errors import UnavailableError

router = APIRouter(tags=["system"])


@router.get("/health/live", summary="Check liveness")
async def live() -> LiveReply:
    """Confirm that the process answers, whatever the state of its components."""
    return LiveReply(status="ok")


@router.get(
    "/health/ready",
    summary="Check readiness",
    responses={
        200: {"model": ReadyReply, "description": "Every component is ready"},
        503: {"model": ReadyReply, "description": "A component is not ready; `components` shows which"},
    },
)
async def ready(services: ServicesDep) -> JSONResponse:
    """Check the database (at the newest revision), broker, Triton and tokenizer."""
    components = await services.readiness.check()
    missing = [name for name, component in components.items() if not component.ready]
    body: dict[str, object] = {
        "ready": not missing,
        "components": {name: asdict(component) for name, component in components.items()},
    }
    if not missing:
        return JSONResponse(body)
    message = f"Not ready: {', '.join(missing)}."
    return JSONResponse(body | errors.envelope(503, UnavailableError.code, message), 503)


@router.get(
    "/metrics",
    summary="Get metrics for Prometheus",
    response_class=Response,
    responses={200: {"content": {"text/plain": {"example": 'longbatch_jobs{state="queued"} 3.0'}}}},
)
async def scrape(request: Request, services: ServicesDep) -> Response:
    """Get metrics of this process's requests and, from Postgres, queue and engines."""
    counted: HttpMetrics = request.app.state.http_metrics
    snapshot: metrics.MetricsSnapshot | None = None
    with contextlib.suppress(UnavailableError):
        snapshot = await services.transactions.run_across(metrics.read_snapshot)
    return Response(counted.exposition() + metrics.queue_exposition(snapshot), media_type=CONTENT_TYPE_LATEST)


@router.get("/v1/version", summary="Get the version")
async def version(request: Request, services: ServicesDep) -> VersionReply:
    """Get the version of Longbatch and the model it serves."""
    return VersionReply(
        version=request.app.version,
        model=services.settings.engine.model,
        token_counts=services.tokenizer.counts,
    )


@router.get("/docs", include_in_schema=False)
async def documentation(request: Request) -> HTMLResponse:
    """Serve the OpenAPI document as a page that needs nothing from other servers."""
    return HTMLResponse(docs_page.page(request.app.openapi()))
