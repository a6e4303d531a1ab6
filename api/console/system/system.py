"""The system, for operators: what `longbatch doctor` checks of the server, versions, settings."""

import platform
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import redis.asyncio
from fastapi import Request
from redis.exceptions import RedisError
from sqlalchemy import text
from sqlalchemy.orm import Session
from starlette.responses import Response

from api.console.error_pages import page_router
from api.console.page import render
from api.console.session import OperatorDep
from api.console.system.settings import list_settings
from api.http.dependencies import ServicesDep
from api.runtime.services import Services
from jobs import diagnostics
from jobs.database import schema
from jobs.diagnostics import Finding
from jobs.settings import BrokerSettings
from jobs.version import version

router = page_router()

_TIMEOUT_SECONDS: Final = 2.0


@dataclass(frozen=True, slots=True)
class DatabaseVersions:
    """What the database runs.

    Attributes:
        revision: of the schema; None: it has none.
    """

    server: str
    revision: str | None


@router.get("/system")
async def show_system(request: Request, services: ServicesDep, viewer: OperatorDep) -> Response:  # noqa: ARG001  # operators alone
    """Show whether each component works, what versions run, and this process's settings without secrets."""
    found = await services.transactions.run_across(read_versions)
    versions = [
        ("Longbatch", version()),
        ("Python", platform.python_version()),
        ("Postgres", found.server),
        ("Broker", await _broker_version(services.settings.broker)),
        ("Schema of the database", found.revision or "none"),
        ("Schema that this version needs", schema.head()),
    ]
    return render(
        request,
        "system.html",
        title="System",
        findings=await check(services),
        versions=versions,
        groups=list_settings(services.settings),
    )


async def check(services: Services) -> Sequence[Finding]:
    """Check each component as this process sees it, each within two seconds."""
    components = await services.readiness.check()
    settings = services.settings
    limits = {
        "max_connections": settings.api.max_connections,
        "pool_size": settings.database.pool_size,
    }
    return [
        *(
            diagnostics.of_component(name, is_ready=each.ready, detail=each.detail)
            for name, each in components.items()
        ),
        *diagnostics.of_webhooks(settings.webhooks),
        diagnostics.of_open_files(**limits),
    ]


def read_versions(session: Session) -> DatabaseVersions:
    """Read the versions of the server and of the schema."""
    server = session.scalar(text("SHOW server_version"))
    return DatabaseVersions(str(server), schema.current(session))


async def _broker_version(settings: BrokerSettings) -> str:
    url = settings.url.get_secret_value()
    async with redis.asyncio.Redis.from_url(
        url, socket_timeout=_TIMEOUT_SECONDS, socket_connect_timeout=_TIMEOUT_SECONDS
    ) as broker:
        try:
            found = await broker.info("server")
        except (RedisError, OSError, TimeoutError):  # the check says why
            return "unknown"
    kind = str(found.get("server_name", "redis")).capitalize()
    return f"{kind} {found.get(f'{kind.lower()}_version', found.get('redis_version', ''))}"
