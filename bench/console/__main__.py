"""`python -m bench.console`: what each page of the console costs a database of a million jobs.

Fills an embedded Postgres, opens every page by its links and filters as an operator, as the tenant with half
of all rows and as one with twenty jobs, and explains each statement that a page sent. Then some watch each
page that follows its rows, and the statements a second are counted.
"""

import argparse
import asyncio
import json
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import httpx2
import uvicorn
from pydantic import SecretStr
from rich.console import Console
from rich.table import Table
from sqlalchemy.orm import Session

from api.app import create_app
from bench.console import rows
from bench.console.pages import Visited, Visitor, kinds
from bench.console.statements import Cost, Recorder, explain, recording
from cli.stack.servers.postgres import EmbeddedPostgres
from cli.stack.servers.valkey import EmbeddedValkey
from jobs import database, tenants
from jobs.database import schema
from jobs.prompts.messages import Message, canonical
from jobs.prompts.tokenizer import pack_text
from jobs.settings import BrokerSettings, DatabaseSettings, LimitSettings, Settings
from jobs.tenants import keys
from jobs.tenants.keys import Scope

_GOAL_MS: Final = 50.0
_GOAL_RATE: Final = 1.0
_WATCH_SECONDS: Final = 10.0
# Some of what it reads is read less often.
_WATCH_LONGER: Final = {"/console/engines/{engine:path}": 60.0}


@dataclass(frozen=True, slots=True)
class PageCost:
    """What a page cost the database."""

    viewer: str
    kind: str
    address: str
    status: int
    num_statements: int
    total_ms: float
    slowest_ms: float
    widest: str
    scans: Sequence[str]
    sql: str


@dataclass(frozen=True, slots=True)
class WatchCost:
    """What those who watch a page cost the database.

    Attributes:
        reads: statements a second that read rows.
    """

    viewer: str
    kind: str
    num_watchers: int
    reads: float


def main() -> None:
    """Fill, open, watch, and print the tables."""
    parser = argparse.ArgumentParser(prog="python -m bench.console", description=__doc__)
    parser.add_argument("--ended", type=int, default=1_000_000, help="jobs that have ended")
    parser.add_argument("--queued", type=int, default=200_000, help="jobs that wait")
    parser.add_argument("--watchers", type=int, default=20, help="of each page that is live; 0: none")
    parser.add_argument("--only", default="", help="measure pages whose path has this alone")
    parser.add_argument("--directory", type=Path, help="keep the database here, and use what is there")
    parser.add_argument("--json", type=Path, help="where to store what was measured")
    asked = parser.parse_args()
    size = rows.Size(ended=asked.ended, queued=asked.queued, documents=max(20, asked.ended // 20))
    with _servers(asked.directory) as settings, recording() as recorder:
        secrets = _prepare(settings, size)
        pages, watched = asyncio.run(
            _measure(settings, secrets, recorder, num_watchers=asked.watchers, only=asked.only)
        )
    _print(pages, watched, only=asked.only)
    if asked.json:
        asked.json.write_text(json.dumps([*map(asdict, pages), *map(asdict, watched)], indent=1))
    slow = [each for each in pages if each.slowest_ms > _GOAL_MS]
    if slow or any(each.reads > _GOAL_RATE for each in watched) or any(each.status >= 500 for each in pages):
        raise SystemExit(1)


async def _measure(
    settings: Settings, secrets: dict[str, str], recorder: Recorder, *, num_watchers: int, only: str
) -> tuple[list[PageCost], list[WatchCost]]:
    pages: list[PageCost] = []
    watched: list[WatchCost] = []
    async with _serving(settings) as url:
        for viewer, secret in secrets.items():
            async with httpx2.AsyncClient(base_url=url, timeout=60, trust_env=False) as client:
                visitor = Visitor(client)
                await visitor.sign_in(secret)
                streams: dict[str, Visited] = {}
                recorder.take()
                async for page in visitor.visit_all():
                    found = recorder.take()
                    if only not in page.kind:
                        continue
                    costs = await asyncio.to_thread(explain, settings.database.url.get_secret_value(), found)
                    pages.append(_page_cost(viewer, page, costs))
                    if page.stream and num_watchers:
                        streams.setdefault(page.kind, page)
                    recorder.take()
                watched += [
                    await _watch(client, viewer, page, recorder, num_watchers=num_watchers)
                    for page in streams.values()
                ]
    return pages, watched


async def _watch(
    client: httpx2.AsyncClient, viewer: str, page: Visited, recorder: Recorder, *, num_watchers: int
) -> WatchCost:
    """Count what so many watchers of the page make the process read, once all have connected."""
    limits = httpx2.Limits(max_connections=None)
    async with httpx2.AsyncClient(
        base_url=client.base_url, cookies=client.cookies, timeout=60, trust_env=False, limits=limits
    ) as watching:
        connected = asyncio.Semaphore(0)

        async def follow() -> None:
            async with watching.stream("GET", page.stream or "") as answer:
                connected.release()
                async for _ in answer.aiter_raw():
                    pass

        tasks = [asyncio.create_task(follow()) for _ in range(num_watchers)]
        for _ in tasks:
            await connected.acquire()
        await asyncio.sleep(3)
        recorder.take()
        await asyncio.sleep(seconds := _WATCH_LONGER.get(page.kind, _WATCH_SECONDS))
        reads = [each for each in recorder.take() if not each.is_entrance]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return WatchCost(viewer, page.kind, num_watchers, len(reads) / seconds)


def _page_cost(viewer: str, page: Visited, costs: Sequence[Cost]) -> PageCost:
    slowest = max(costs, key=lambda each: each.ms)
    return PageCost(
        viewer=viewer,
        kind=page.kind,
        address=page.address,
        status=page.status,
        num_statements=len(costs),
        total_ms=sum(each.ms for each in costs),
        slowest_ms=slowest.ms,
        widest=slowest.widest,
        scans=sorted({scan for each in costs for scan in each.scans}),
        sql=slowest.sql,
    )


def _print(pages: Sequence[PageCost], watched: Sequence[WatchCost], *, only: str) -> None:
    console = Console(width=None if Console().is_terminal else 200)
    headings = ("viewer", "address", "status", "statements", "all ms", "slowest ms", "its widest step, rows")
    table = Table(*headings, title="What pages cost the database")
    for each in sorted(pages, key=lambda page: (page.kind, page.viewer, page.address)):
        table.add_row(
            each.viewer,
            each.address[:70],
            str(each.status),
            str(each.num_statements),
            f"{each.total_ms:.1f}",
            f"{each.slowest_ms:.1f}{' MISSED' if each.slowest_ms > _GOAL_MS else ''}",
            each.widest,
        )
    console.print(table)
    for each in pages:
        if each.slowest_ms > _GOAL_MS:
            console.print(
                f"{each.viewer} {each.address}: {each.slowest_ms:.1f} ms: {each.sql}\n", highlight=False
            )
    big = Counter(
        scan for each in pages for scan in each.scans if int(scan.split()[1].replace(",", "")) > 1000
    )
    console.print(f"Tables read whole: {dict(big)}")
    missing = sorted({each for each in kinds() if only in each} - {each.kind for each in pages})
    console.print(f"Pages that no link led to: {missing}")
    table = Table("viewer", "page", "watchers", "reads a second", title="What watchers cost the database")
    for watch in watched:
        table.add_row(watch.viewer, watch.kind, str(watch.num_watchers), f"{watch.reads:.2f}")
    console.print(table)


def _prepare(settings: Settings, size: rows.Size) -> dict[str, str]:
    """Fill the database; return the key of each viewer."""
    engine = database.make_engine(settings.database, pool_size=1)
    schema.upgrade(engine)
    began = time.monotonic()
    body = pack_text(canonical([Message(role="user", content="How are you?")]))
    if rows.fill(settings.database.url.get_secret_value(), size, body=body):
        Console().print(f"filled in {time.monotonic() - began:.0f} s")
    secrets = {}
    with Session(engine) as session, session.begin():
        for viewer, name, scopes in (
            ("operator", rows.LIGHT, (Scope.READ, Scope.SUBMIT, Scope.OPERATOR)),
            ("heavy", rows.HEAVY, (Scope.READ, Scope.SUBMIT)),
            ("light", rows.LIGHT, (Scope.READ, Scope.SUBMIT)),
        ):
            tenant_id = tenants.named(session, name).id
            secrets[viewer] = keys.create(session, tenant_id=tenant_id, name="bench", scopes=scopes).secret
    engine.dispose()
    return secrets


@contextmanager
def _servers(directory: Path | None) -> Iterator[Settings]:
    with tempfile.TemporaryDirectory(prefix="longbatch-bench-") as temporary:
        postgres = EmbeddedPostgres(directory or Path(temporary) / "postgres")
        valkey = EmbeddedValkey(Path(temporary) / "valkey")
        postgres.start()
        valkey.start()
        try:
            yield Settings(
                database=DatabaseSettings(url=SecretStr(postgres.url)),
                broker=BrokerSettings(url=SecretStr(valkey.url)),
                limits=LimitSettings(max_requests=10_000_000),
            )
        finally:
            valkey.stop()
            if directory is None:
                postgres.remove()
            else:
                postgres.stop()


@asynccontextmanager
async def _serving(settings: Settings) -> AsyncIterator[str]:
    """Serve the API within this process, so that its statements can be recorded."""
    config = uvicorn.Config(create_app(settings), host="127.0.0.1", port=0, log_config=None, access_log=False)
    server = uvicorn.Server(config)
    task = asyncio.create_task(server.serve())
    while not server.started:  # noqa: ASYNC110  # uvicorn has no event for it
        await asyncio.sleep(0.05)
    host, port = server.servers[0].sockets[0].getsockname()[:2]
    try:
        yield f"http://{host}:{port}"
    finally:
        server.should_exit = True
        await task


if __name__ == "__main__":
    main()
