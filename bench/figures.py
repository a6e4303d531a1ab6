"""Helpers of the small benchmarks: the lines they print, bare servers, and processes to measure."""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Final, TypeVar
from uuid import UUID

import httpx2
from pydantic import SecretStr
from rich.console import Console
from rich.table import Table
from sqlalchemy.orm import Session, sessionmaker

from bench.report import MARKS, is_met, write_json
from cli.stack.options import StackOptions
from cli.stack.servers.engine_options import EngineOptions
from cli.stack.servers.engine_size import EngineSize
from cli.stack.servers.llama_options import LlamaOptions
from cli.stack.servers.postgres import EmbeddedPostgres
from cli.stack.servers.valkey import EmbeddedValkey
from cli.stack.stack import Stack
from jobs import database, tenants
from jobs.database import database_now, schema
from jobs.engines import registry
from jobs.settings import DatabaseSettings
from jobs.tenants import keys
from jobs.tenants.keys import Scope

MODEL: Final = "bench"  # and the name of its engine
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Figure:
    """One line of the table; `goal` is empty without one, or such as `>= 0.96`."""

    name: str
    measured: float
    unit: str
    goal: str = ""
    met: bool | None = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "met", is_met(self.measured, self.goal))


@dataclass(frozen=True, slots=True)
class Servers:
    """Postgres with our schema, and a Redis-compatible server."""

    postgres_url: str
    valkey_url: str
    sessions: sessionmaker[Session]


def run(
    parser: argparse.ArgumentParser,
    measure: Callable[[Path, argparse.Namespace], list[Figure]],
    arguments: Sequence[str] | None,
) -> None:
    """Run the measurement, print its figures, and store them as JSON if asked.

    Args:
        parser: without `--json`.
        measure: receives an empty directory and the parsed arguments.
        arguments: None: the process's own.

    Raises:
        SystemExit: 1 if a goal was missed.
    """
    parser.add_argument("--json", type=Path, help="where to store the figures")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as directory:
        figures = measure(Path(directory), options)
    table = Table("figure", "measured", "goal", "met", caption=f"load average {os.getloadavg()[0]:.1f}")
    for figure in figures:
        measured = f"{figure.measured:,.2f} {figure.unit}"
        table.add_row(figure.name, measured, figure.goal, MARKS[figure.met])
    Console().print(table)
    write_json(figures, options.json)
    if any(figure.met is False for figure in figures):
        raise SystemExit(1)


@contextmanager
def servers(directory: Path, *, pool_size: int) -> Iterator[Servers]:
    """Run the servers for the block, with their data in this directory."""
    postgres = EmbeddedPostgres(directory / "postgres")
    valkey = EmbeddedValkey(directory / "valkey")
    postgres.start()
    valkey.start()
    engine = database.make_engine(DatabaseSettings(url=SecretStr(postgres.url)), pool_size=pool_size)
    try:
        schema.upgrade(engine)
        yield Servers(postgres.url, valkey.url, database.make_sessions(engine))
    finally:
        engine.dispose()
        valkey.stop()
        postgres.remove()


@contextmanager
def running_stack(
    directory: Path, engine: EngineOptions | LlamaOptions | None, **variables: str
) -> Iterator[tuple[Stack, httpx2.Client]]:
    """Run a whole stack with these settings and none of this shell's; yield it with a client of its API.

    Args:
        directory: of its data, which is removed at the end.
        engine: that it starts; None for the one that the settings name.
        variables: its settings.
    """
    inherited = {name: value for name, value in os.environ.items() if "LONGBATCH_" not in name}
    environment = {**inherited, **variables}
    stack = Stack(StackOptions(directory=directory, api_port=0, engine=engine, environment=environment))
    stack.start()
    try:
        url, headers = stack.urls.api_url or "", {"Authorization": f"Bearer {stack.urls.api_key}"}
        with httpx2.Client(base_url=url, timeout=120, trust_env=False, headers=headers) as http:
            yield stack, http
    finally:
        stack.stop()
        stack.remove_data()


def admit(session: Session, name: str, secret: str) -> UUID:
    """Make a tenant whose key has every scope."""
    tenant_id = tenants.create(session, name).id
    keys.create(session, secret=secret, tenant_id=tenant_id, name=name, scopes=list(Scope))
    return tenant_id


def register_engine(session: Session, *, slots: int) -> None:
    """Register an engine of this many slots that serves the model."""
    capacity = EngineSize(max_batch_size=slots).capacity
    registry.register(session, MODEL, MODEL, capacity, now=database_now(session))


def until(check: Callable[[], T], *, seconds: float, every: float = 0.2) -> T:
    """Poll `check` for a truthy value, and return it.

    Raises:
        TimeoutError: there was none in time.
    """
    deadline = time.monotonic() + seconds
    while not (answer := check()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"nothing within {seconds} s")
        time.sleep(every)
    return answer


def wait_for_tokenizer(port: int) -> None:
    """Wait until the API on this port has loaded its tokenizer."""

    def is_loaded() -> bool:
        answer = httpx2.get(f"http://127.0.0.1:{port}/health/ready", trust_env=False, timeout=60)
        return bool(answer.json()["components"]["tokenizer"]["ready"])

    until(is_loaded, seconds=60, every=0.1)


def batch_line(number: int, text: str, *, model: str, max_tokens: int) -> bytes:
    """Write a line of a batch's file, a chat with this text."""
    body = {"model": model, "messages": [{"role": "user", "content": text}], "max_tokens": max_tokens}
    line = {"custom_id": f"line-{number}", "method": "POST", "url": "/v1/chat/completions", "body": body}
    return json.dumps(line).encode() + b"\n"


@contextmanager
def api(servers: Servers, **variables: str) -> Iterator[tuple[int, int]]:
    """Run the API without a rate limit; yield its port and process id."""
    ours = {
        "LONGBATCH_DATABASE__URL": servers.postgres_url,
        "LONGBATCH_BROKER__URL": servers.valkey_url,
        "LONGBATCH_API__PORT": "0",
        "LONGBATCH_LIMITS__MAX_REQUESTS": "100000000",
    }
    with process([sys.executable, "-m", "api"], **ours, **variables) as (pid, log):
        for line in log:
            if '"api.ready"' in line:
                # An unread pipe would fill up and block the API.
                threading.Thread(target=log.read, daemon=True).start()
                yield int(str(json.loads(line)["url"]).rsplit(":", 1)[1]), pid
                return
        raise RuntimeError("the API did not start")


@contextmanager
def service_worker(servers: Servers, **variables: str) -> Iterator[int]:
    """Run a service worker; yield its process id, perhaps before it has started its loops."""
    ours = {"LONGBATCH_DATABASE__URL": servers.postgres_url, "LONGBATCH_BROKER__URL": servers.valkey_url}
    with process([sys.executable, "-m", "worker", "service"], **ours, **variables) as (pid, log):
        threading.Thread(target=log.read, daemon=True).start()
        yield pid


@contextmanager
def process(command: list[str], **variables: str) -> Iterator[tuple[int, IO[str]]]:
    """Run a process for the block and yield its id and output; kill it afterwards."""
    running = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env={**os.environ, **variables}
    )
    assert running.stdout is not None  # noqa: S101  # it is a pipe
    try:
        yield running.pid, running.stdout
    finally:
        running.kill()
        running.wait()
