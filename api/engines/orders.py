"""Orders to an engine: halt, resume."""

from typing import Any

from sqlalchemy.orm import Session

from api.engines.replies import engine_object
from api.http.halts import operator_of
from api.runtime.api_keys import Caller
from api.runtime.services import Services
from jobs import queries, telemetry
from jobs.doorbell import INFERENCE
from jobs.errors import NotFoundError
from jobs.scheduling import halts
from jobs.states.halt import HaltKind


async def order_halt(
    services: Services, caller: Caller, name: str, kind: HaltKind, *, reason: str
) -> dict[str, Any]:
    """Start no job on the engine; return it as operators see it."""

    def halt(session: Session) -> dict[str, Any]:
        halts.halt_engine(session, name, kind, reason=reason, by=operator_of(caller))
        return read_engine(session, name=name)

    found = await services.transactions.run_as_operator(halt)
    ordered = {"engine": name, "kind": kind.value, "key": caller.key, "reason": reason}
    telemetry.logger().info(telemetry.ENGINE_HALTED, **ordered)
    return found


async def order_resumption(
    services: Services, caller: Caller, name: str, *, reason: str | None = None
) -> dict[str, Any]:
    """Let the engine start jobs again; return it as operators see it."""

    def resume(session: Session) -> dict[str, Any]:
        halts.resume_engine(session, name)
        return read_engine(session, name=name)

    found = await services.transactions.run_as_operator(resume)
    services.doorbell.ring(INFERENCE)
    telemetry.logger().info(telemetry.ENGINE_RESUMED, engine=name, key=caller.key, reason=reason)
    return found


def read_engine(session: Session, *, name: str) -> dict[str, Any]:
    """Read one engine as operators see it.

    Raises:
        NotFoundError: no engine of this name has registered.
    """
    for usage in queries.engine_usages(session, name=name):
        return engine_object(usage)
    raise NotFoundError("There is no such engine.")
