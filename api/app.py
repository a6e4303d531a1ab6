"""The application: puts routes, errors and services together."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI
from starlette.routing import Route

from api.answers import routes as answers
from api.audit import routes as audit
from api.batches import event_routes as batch_events
from api.batches import routes as batches
from api.completions import embedding_routes as embeddings
from api.completions import model_routes as models
from api.completions import routes as completions
from api.console.headers import ConsoleHeaders
from api.console.loading import LazyConsole, failure_response
from api.description import describe
from api.documents import routes as documents
from api.engines import routes as engines
from api.extractions import routes as extractions
from api.files import routes as files
from api.http import errors
from api.http.auth import AuthMiddleware
from api.http.deliveries import DeliveryMiddleware
from api.http.metrics import HttpMetrics
from api.http.middleware import RequestMiddleware
from api.http.scopes import CONSOLE
from api.http.traces import TraceMiddleware
from api.jobs import attempt_routes, bulk_routes
from api.jobs import event_routes as events
from api.jobs import routes as jobs_routes
from api.responses import routes as response_routes
from api.runtime.body_process import BodyProcess
from api.runtime.services import open_services
from api.runtime.traces import Tracing
from api.runtime.warm_up import warm_up
from api.summaries import routes as summaries
from api.system import routes as system
from api.tenants import admin_routes, key_routes, own_queue_routes, queue_routes
from api.tenants import routes as usage
from api.webhooks import endpoint_routes as webhook_endpoints
from api.webhooks import routes as webhooks
from jobs.settings import Settings
from jobs.version import version

# How long a process that ends waits for the collector of traces.
_LAST_SPANS_SECONDS = 1.0
_DESCRIPTION = (
    "Asynchronous jobs for a long-context language model: submit a document, and fetch its summary once an"
    " engine has processed it. Every error has the shape {error: {message, type, param, code}}."
)


def create_app(
    settings: Settings, http_metrics: HttpMetrics | None = None, body_process: BodyProcess | None = None
) -> FastAPI:
    """Create the service for these settings; its services open when it starts.

    Args:
        settings: of the process.
        http_metrics: of its requests; None: new ones.
        body_process: works on long bodies; None: the first of them starts one.

    Raises:
        ValueError: traces are on, but their packages are missing.
    """
    tracing = Tracing.of(settings.traces)
    console = LazyConsole()

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with open_services(settings, body_process) as services:
            app.state.services = services
            await warm_up(services)
            try:
                yield
            finally:
                await console.close()
        if tracing is not None:
            await asyncio.to_thread(tracing.close, within=_LAST_SPANS_SECONDS)

    app = FastAPI(
        title="Longbatch",
        version=version(),
        description=_DESCRIPTION,
        lifespan=lifespan,
        redirect_slashes=False,
        telemetry={"tracing": False, "metrics": False, "logs": False},  # our middleware reports requests
        docs_url=None,  # the framework's pages load scripts from a CDN; /docs is our own
        redoc_url=None,
    )
    app.state.http_metrics = http_metrics or HttpMetrics()
    app.add_middleware(DeliveryMiddleware)
    app.add_middleware(AuthMiddleware)
    if tracing is not None:
        app.add_middleware(TraceMiddleware, tracing=tracing)
    app.add_middleware(RequestMiddleware, metrics=app.state.http_metrics, failure=failure_response)
    app.add_middleware(ConsoleHeaders)
    errors.add_handlers(app)
    for router in (
        bulk_routes.router,
        jobs_routes.router,
        attempt_routes.router,
        files.router,
        batches.router,
        summaries.router,
        answers.router,
        extractions.router,
        documents.router,
        events.router,
        batch_events.router,
        completions.router,
        embeddings.router,
        response_routes.router,
        models.router,
        usage.router,
        engines.router,
        queue_routes.router,
        own_queue_routes.router,
        admin_routes.router,
        key_routes.router,
        audit.router,
        webhook_endpoints.router,
        webhooks.router,
        system.router,
    ):
        # Not `include_router`, which analyses each route again, for options of routers that we do not use.
        app.router.routes.extend(router.routes)
    if settings.console.enabled:
        if settings.oidc.is_on:
            # The extra `oidc` is needed only here.
            from api.console.oidc.routes import oidc_router

            app.include_router(oidc_router(settings.oidc))
        for path in (CONSOLE, f"{CONSOLE}/{{path:path}}"):
            app.router.routes.append(Route(path, console, include_in_schema=False))
    app.openapi = lambda: describe(app)  # type: ignore[method-assign]  # FastAPI documents this way
    return app
