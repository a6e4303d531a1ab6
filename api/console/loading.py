"""The console loads at its first request: most API processes serve no page, and all of them start."""

import asyncio
from contextlib import AsyncExitStack
from contextvars import Context

from fastapi import FastAPI
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from api.http.errors import internal_response
from api.http.scopes import is_console


class LazyConsole:
    """ASGI application of all pages. The first request imports them in a thread, and starts live updates."""

    def __init__(self) -> None:
        self._loading: asyncio.Task[ASGIApp] | None = None
        self._running = AsyncExitStack()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer the request."""
        if self._loading is None or _has_failed(self._loading):
            # Live updates outlast this request: they must not run as its tenant, or in its trace.
            self._loading = asyncio.create_task(self._load(scope["app"]), context=Context())
        pages = await asyncio.shield(self._loading)
        await pages(scope, receive, send)

    async def close(self) -> None:
        """End live updates."""
        if self._loading is not None:
            self._loading.cancel()
            await asyncio.gather(self._loading, return_exceptions=True)
        await self._running.aclose()

    async def _load(self, app: FastAPI) -> ASGIApp:
        pages = await asyncio.to_thread(_import_pages)
        # Imported by then.
        from api.console.live import LivePages

        app.state.live_pages = live_pages = LivePages(app.state.services)
        await self._running.enter_async_context(live_pages.running())
        return pages


def failure_response(scope: Scope) -> Response:
    """Make the 500 of a request that nothing else answered: a page for the console, JSON for all others."""
    if not is_console(scope["path"]):
        return internal_response()
    from api.console.error_pages import failure_page

    return failure_page(scope)


def _has_failed(loading: asyncio.Task[ASGIApp]) -> bool:
    """Return True if the next request must load the pages again."""
    return loading.done() and not loading.cancelled() and loading.exception() is not None


def _import_pages() -> ASGIApp:
    from api.console.routes import router

    return router
