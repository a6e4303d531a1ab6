"""The console loads at its first request, and again at the next one if that failed."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace

import pytest
from starlette.types import Receive, Scope, Send

from api.console import live, loading


class Live:
    """Live updates that run as long as the console."""

    def __init__(self, _services: object) -> None:
        """Take no services."""

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        yield


def test_a_console_that_could_not_be_loaded_is_loaded_by_the_next_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answered: list[str] = []

    async def pages(scope: Scope, _receive: Receive, _send: Send) -> None:
        answered.append(scope["path"])

    results = iter([ImportError("a file is missing"), pages, AssertionError("loaded twice")])

    def import_pages() -> object:
        found = next(results)
        if isinstance(found, Exception):
            raise found
        return found

    async def receive() -> dict[str, object]:
        return {}

    async def send(_: object) -> None:
        pass

    async def scenario() -> None:
        console = loading.LazyConsole()
        app = SimpleNamespace(state=SimpleNamespace(services=None))
        with pytest.raises(ImportError):
            await console({"path": "/console/1", "app": app}, receive, send)
        for path in ("/console/2", "/console/3"):
            await console({"path": path, "app": app}, receive, send)
        await console.close()

    monkeypatch.setattr(live, "LivePages", Live)
    monkeypatch.setattr(loading, "_import_pages", import_pages)
    asyncio.run(scenario())
    assert answered == ["/console/2", "/console/3"]
