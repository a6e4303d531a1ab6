"""Checks whether each component of the service works."""

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

import httpx2
import redis.asyncio
from sqlalchemy.orm import Session

from api.runtime.database import Transactions
from api.runtime.tokenizer import LoadedTokenizer
from jobs import queries
from jobs.database import database_now, schema
from jobs.errors import LongbatchError
from jobs.settings import Settings
from jobs.tenants import isolation

# The caller of a probe (a container runtime, a load balancer) gives up after a few seconds.
_TIMEOUT_SECONDS: Final = 2.0
# Inference workers record every few seconds that they saw their engine.
_SEEN_WITHIN: Final = timedelta(seconds=30)


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
        # An engine that is no Triton has no such address, whatever is left in the environment.
        is_triton = not (self._settings.engine.url or "grpc://").startswith("http")
        has_address = is_triton and self._settings.triton.http_url is not None
        triton = self._triton_over_http() if has_address else self._transactions.run_across(_engines_seen)
        checks = {"database": self._database(), "broker": self._broker(), "triton": triton}
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

    async def _triton_over_http(self) -> Component:
        url = f"{(self._settings.triton.http_url or '').rstrip('/')}/v2/health/ready"
        async with httpx2.AsyncClient(timeout=_TIMEOUT_SECONDS, trust_env=False) as client:
            answer = await client.get(url)
        ready = answer.status_code == httpx2.codes.OK
        return Component(ready, "ready" if ready else f"answers {answer.status_code}")


def _check_database(session: Session) -> tuple[str | None, bool]:
    return schema.current(session), isolation.is_bound(session)


def _engines_seen(session: Session) -> Component:
    """Check the engines as their workers last recorded them; one working is enough."""
    now = database_now(session)
    engines = [load.engine for load in queries.engine_usages(session)]
    for engine in engines:
        if engine.paused_reason is None and now - engine.seen_at < _SEEN_WITHIN:
            return Component(ready=True, detail=f"engine {engine.name} was seen by its worker")
    reasons = [f"{each.name}: {each.paused_reason or 'not seen lately'}" for each in engines]
    return Component(ready=False, detail="; ".join(reasons) or "no engine has registered")


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
