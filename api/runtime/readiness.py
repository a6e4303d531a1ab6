"""Checks whether each component of the service works."""

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

import redis.asyncio
from sqlalchemy.orm import Session

from api.runtime.database import Transactions
from api.runtime.tokenizer import LoadedTokenizer
from jobs import queries
from jobs.database import database_now, schema
from jobs.doorbell import SERVICE
from jobs.engines import workers
from jobs.errors import LongbatchError
from jobs.settings import Settings
from jobs.tenants import isolation

# The caller of a probe (a container runtime, a load balancer) gives up after a few seconds.
_TIMEOUT_SECONDS: Final = 2.0
# An engine unseen for longer counts as missing only if jobs wait for its model.
_WANTED_FOR: Final = timedelta(minutes=10)


@dataclass(frozen=True, slots=True)
class Component:
    """One component: whether it works, and details in words."""

    ready: bool
    detail: str


class Readiness:
    """Checks all components at once, each within two seconds."""

    def __init__(self, settings: Settings, transactions: Transactions, tokenizer: LoadedTokenizer) -> None:
        self._settings = settings
        self._transactions = transactions
        self._tokenizer = tokenizer
        self._head = schema.head()

    async def check(self) -> dict[str, Component]:
        """Check every component; return them by name."""
        checks = {
            "database": self._database(),
            "broker": self._broker(),
            "engine": self._transactions.run_across(_check_engines),
            "workers": self._transactions.run_across(_check_workers),
        }
        found = dict(
            zip(checks, await asyncio.gather(*(_bounded(each) for each in checks.values())), strict=True)
        )
        loaded = self._tokenizer.current is not None
        return found | {"tokenizer": Component(loaded, self._tokenizer.detail)}

    async def _database(self) -> Component:
        revision, is_bound = await self._transactions.run_across(_check_database)
        if revision != self._head:
            return Component(ready=False, detail=f"schema is at {revision}, this version needs {self._head}")
        return Component(ready=True, detail=f"schema is at {revision}; {isolation.describe(is_bound)}")

    async def _broker(self) -> Component:
        async with redis.asyncio.Redis.from_url(
            self._settings.broker.url.get_secret_value(),
            socket_timeout=_TIMEOUT_SECONDS,
            socket_connect_timeout=_TIMEOUT_SECONDS,
        ) as broker:
            await broker.ping()
        return Component(ready=True, detail="answers")


def _check_database(session: Session) -> tuple[str | None, bool]:
    return schema.current(session), isolation.is_bound(session)


def _check_engines(session: Session) -> Component:
    """Check that each model has an engine that starts jobs, or that an operator halted.

    A model without an engine is missed while jobs wait for it.
    """
    found, now = queries.engine_usages(session), database_now(session)
    working = [each for each in found if each.not_ready_reason is None]
    waiting = queries.models_waiting(session)
    wanted = [
        each
        for each in found
        if each.engine.halt is None  # otherwise an operator took it out
        and (now - each.engine.seen_at < _WANTED_FOR or each.engine.model in waiting)
    ]
    models = {each.engine.model for each in working}
    missing = [each for each in wanted if each.engine.model not in models]
    unserved = sorted(waiting - {each.engine.model for each in found})
    reasons = [
        *(f"no engine serves the model {model!r}, for which jobs wait" for model in unserved),
        *(f"{each.engine.name}: {each.not_ready_reason}" for each in missing or found if each not in working),
    ]
    if missing or unserved or not working:
        return Component(ready=False, detail="; ".join(reasons) or "no engine has registered")
    names = ", ".join(each.engine.name for each in working)
    idle = [
        f"; {each.refused.name} feeds no engine: {each.refused.refusal}" for each in working if each.refused
    ]
    return Component(ready=True, detail=f"jobs start on {names}{''.join(idle)}")


def _check_workers(session: Session) -> Component:
    """Check that a service worker does all of its work; name every worker of which a loop is late."""
    alive = workers.alive(session)
    service = [each for each in alive if each.role == SERVICE]
    late = [
        f"{each.name} ({each.role}): {', '.join(each.late_loops)} late" for each in alive if each.late_loops
    ]
    if not service:
        return Component(ready=False, detail="no service worker has reported within 30 s")
    is_ready = any(not each.late_loops for each in service)
    return Component(is_ready, "; ".join(late) or f"{len(alive)} report that all of their loops run")


async def _bounded(check: Coroutine[None, None, Component]) -> Component:
    """Run the check within the time limit; its clean-up may take longer."""
    task = asyncio.create_task(check)
    done, _ = await asyncio.wait({task}, timeout=_TIMEOUT_SECONDS)
    if not done:
        task.add_done_callback(
            lambda late: late.cancelled() or late.exception()
        )  # retrieves its error, which asyncio would log otherwise
        task.cancel()
        return Component(ready=False, detail=f"no answer within {_TIMEOUT_SECONDS:g} s")
    try:
        return task.result()
    except LongbatchError as error:
        return Component(ready=False, detail=error.message)
    except Exception as error:  # noqa: BLE001  # each client has its own errors; all mean: not ready
        return Component(ready=False, detail=f"cannot be reached ({type(error).__name__})")
