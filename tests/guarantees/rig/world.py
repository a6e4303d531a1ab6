"""The product as a caller meets it: one API and one service worker, and inference workers that tests kill."""

import base64
import json
import os
import secrets
import signal
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit, urlunsplit

import httpx2
import psycopg

from rig import http_engine, oracle, triton_engine
from rig.engines import Script, ScriptedEngine
from rig.processes import Process
from rig.proxy import Gate, PostgresProxy
from rig.receiver import Receiver, receiving
from rig.sql import TERMINAL, Rows
from rig.waiting import PATIENCE, START_PATIENCE, eventually

TOKENS_PER_BLOCK: Final = 16
SLOTS: Final = 4
BLOCKS: Final = 120
# Seconds without a sign of life after which another worker takes a job over.
LEASE_SECONDS: Final = 6
_DATABASE: Final = "guarantees"
_TIMEOUT: Final = httpx2.Timeout(PATIENCE)
_MAX_FREEZES: Final = 50
_FROZEN_SECONDS: Final = 0.5  # far longer than any transaction of a worker that runs


@dataclass(frozen=True)
class Job:
    """A job that was accepted, and what it must end with.

    Attributes:
        length: tokens of its whole answer.
        is_told: its end is told to a receiver.
        version: of its answer.
        ends: the states in which it may end.
    """

    id: str
    mark: int
    max_tokens: int
    length: int
    caller: "Caller"
    is_told: bool = True
    version: int = 0
    ends: Sequence[str] = ("completed",)

    @property
    def text(self) -> str:
        """The answer of the oracle."""
        return oracle.text_of(self.mark, self.length, version=self.version)[: self.max_tokens]

    def now(self) -> dict[str, Any]:
        """Read the job as its caller sees it."""
        return self.caller.read(f"/v1/jobs/{self.id}")

    def ended(self) -> dict[str, Any]:
        """Wait for its end."""

        def look() -> dict[str, Any] | None:
            found = self.now()
            return found if found["state"] in TERMINAL else None

        return eventually(look, what=f"job {self.mark} ends")

    def is_in(self, state: str) -> None:
        """Wait until it is in this state."""
        eventually(lambda: self.now()["state"] == state, what=f"job {self.mark} is {state}")

    def output(self) -> str:
        """Read its result."""
        return str(self.caller.read(f"/v1/jobs/{self.id}/result")["output"])

    def ending(self, *states: str) -> "Job":
        """Return the job with other states in which it may end."""
        return replace(self, ends=states)

    def cancel(self) -> dict[str, Any]:
        """Cancel it."""
        answer = self.caller.http.post(f"/v1/jobs/{self.id}/cancel")
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found


@dataclass
class Caller:
    """One tenant's client."""

    http: httpx2.Client
    world: "World"
    tenant: str = "default"
    _secret: str = ""

    @property
    def webhook_secret(self) -> str:
        """The secret by which its webhooks are signed."""
        self._secret = self._secret or str(self.read("/v1/webhook_secret")["secret"])
        return self._secret

    def read(self, path: str) -> dict[str, Any]:
        """Read an object."""
        answer = self.http.get(path)
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found

    def submit(
        self,
        script: Script | None = None,
        *,
        engine: "FedEngine | None" = None,
        max_tokens: int = 64,
        words: int = 0,
        ends: Sequence[str] = ("completed",),
        key: str | None = None,
        hook: str | None = "/hook",
        **fields: object,
    ) -> Job:
        """Submit a job and remember it for the audit.

        Args:
            script: how the engine treats it; None: as by default.
            engine: whose model it asks for; None: the shared one's.
            max_tokens: of its answer.
            words: of its prompt, besides the mark.
            ends: the states in which it may end.
            key: its idempotency key.
            hook: path of the receiver that is notified; None: nothing is.
            fields: of the request.
        """
        world = self.world
        engine = engine or world.engine
        mark = world.next_mark()
        script = script or engine.scripted.default
        engine.scripted.scripts[mark] = script
        body = self.body(mark, engine=engine, max_tokens=max_tokens, words=words, hook=hook, **fields)
        answer = self.http.post("/v1/jobs", json=body, headers={"Idempotency-Key": key} if key else {})
        assert answer.status_code == 202, answer.text
        job = Job(
            answer.json()["id"],
            mark,
            max_tokens,
            script.length,
            self,
            is_told=hook is not None,
            version=script.versions[-1],
            ends=ends,
        )
        world.jobs.append(job)
        return job

    def chat(self, script: Script | None = None, *, max_tokens: int = 16) -> str:
        """Ask the shared engine interactively; return the answer, which must be the oracle's."""
        world = self.world
        mark, script = world.next_mark(), script or Script()
        world.engine.scripted.scripts[mark] = script
        world.other_marks.add(mark)
        body = {
            "model": world.engine.model,
            "messages": [{"role": "user", "content": oracle.prompt_of(mark)}],
            "max_tokens": max_tokens,
        }
        answer = self.http.post("/v1/chat/completions", json=body)
        assert answer.status_code == 200, answer.text
        said = str(answer.json()["choices"][0]["message"]["content"])
        assert said == oracle.text_of(mark, script.length)[:max_tokens]
        return said

    def body(
        self,
        mark: int,
        *,
        engine: "FedEngine",
        max_tokens: int,
        words: int,
        hook: str | None,
        **fields: object,
    ) -> dict[str, object]:
        """Write a request."""
        body: dict[str, object] = {
            "input": oracle.prompt_of(mark, words=words),
            "max_tokens": max_tokens,
            "model": engine.model,
            **fields,
        }
        if hook is not None:
            body["webhook_url"] = self.world.receiver.url(hook)
        return body


@dataclass
class FedEngine:
    """A scripted engine, and the workers that feed it by way of a proxy.

    Attributes:
        most_reserved: the most requests and blocks that were reserved whenever a request arrived.
    """

    name: str
    model: str
    where: Mapping[str, str]
    scripted: ScriptedEngine
    proxy: PostgresProxy
    world: "World"
    worker: Process | None = None
    most_reserved: tuple[int, int] = (0, 0)
    environment: dict[str, str] = field(default_factory=dict)

    def feed(self) -> Process:
        """Return the worker; start one if none runs, and wait until it looks for jobs."""
        if self.worker is None or not self.worker.is_running:
            self.world.rows.forget_ticks(self.name)
            self.worker = self.start_worker(self.proxy)
            self.wait_for_tick()
        return self.worker

    def start_worker(self, proxy: PostgresProxy) -> Process:
        """Start a worker whose connections to Postgres go by way of this proxy."""
        return self.world.start(
            ["worker", "inference"], {**self.world.settings(proxy), **self.settings(), **self.environment}
        )

    def wait_for_tick(self) -> None:
        """Wait until the worker looks for jobs again."""
        self.world.rows.forget_ticks(self.name)
        eventually(self._has_ticked, what=f"a worker feeds {self.name}", timeout=START_PATIENCE)

    def kill_worker(self) -> None:
        """Kill the worker."""
        if self.worker is not None:
            self.worker.kill()

    def settings(self) -> dict[str, str]:
        """Return the settings of its workers."""
        return {
            **self.where,
            "LONGBATCH_ENGINE__NAME": self.name,
            "LONGBATCH_ENGINE__MODEL": self.model,
            "LONGBATCH_ENGINE__MAX_BATCH_SIZE": str(self.scripted.slots),
            "LONGBATCH_ENGINE__MAX_BLOCKS": str(self.scripted.blocks),
            "LONGBATCH_ENGINE__TOKENS_PER_BLOCK": str(self.scripted.tokens_per_block),
            "LONGBATCH_ENGINE__MAX_INPUT_LEN": "3000",
            "LONGBATCH_ENGINE__MAX_SEQ_LEN": "4096",
            # As slow as the slowest: a held request is no silence.
            "LONGBATCH_ENGINE__TIME_SCALE": "0.01",
            "LONGBATCH_JOBS__LEASE_SECONDS": str(LEASE_SECONDS),
            "LONGBATCH_JOBS__RENEW_SECONDS": "1",
            "LONGBATCH_JOBS__CHECKPOINT_SECONDS": "0.2",
            "LONGBATCH_JOBS__STOP_POLL_SECONDS": "0.2",
            "LONGBATCH_JOBS__SHUTDOWN_GRACE_SECONDS": "0.5",
        }

    def note_reserved(self) -> None:
        """Remember what is reserved now, as a request arrives."""
        found = self.world.rows.reserved(self.name)
        requests, blocks = self.most_reserved
        self.most_reserved = max(requests, found.requests), max(blocks, found.blocks)

    def _has_ticked(self) -> bool:
        if self.worker is not None and not self.worker.is_running:
            raise AssertionError(self.worker.log.read_text()[-4000:])
        return self.world.rows.has_ticked(self.name)


class World:
    """A database, a broker, an API, a service worker, a receiver of webhooks and one fed engine.

    Attributes:
        jobs: accepted since the last audit.
        other_marks: of requests that are no jobs of their callers.
    """

    def __init__(self, postgres_url: str, broker_url: str, directory: Path) -> None:
        self._directory = directory
        self._exits = ExitStack()
        parts = urlsplit(broker_url)
        self.broker_gate = Gate(parts.hostname or "", parts.port or 0)
        self._exits.callback(self.broker_gate.close)
        netloc = f"{parts.netloc.rpartition('@')[0]}@127.0.0.1:{self.broker_gate.port}"
        self._broker_url = urlunsplit(parts._replace(netloc=netloc))
        self._postgres_url = postgres_url
        self._marks = count(1)
        self._numbers = count(1)
        self._lock = threading.Lock()
        self._key = base64.b64encode(secrets.token_bytes(32)).decode()
        self.webhook_secret = "whsec_" + base64.b64encode(secrets.token_bytes(32)).decode()
        self.jobs: list[Job] = []
        self.other_marks: set[int] = set()
        self._callers: dict[str, Caller] = {}
        self._processes: list[Process] = []
        self.rows = Rows(self._make_database())

    def start_all(self) -> None:
        """Migrate, and start what all tests share."""
        self.receiver: Receiver = self._exits.enter_context(receiving())
        parts = urlsplit(self.rows.url)
        self._host, self._port = parts.hostname or "", parts.port or 0
        direct = {"LONGBATCH_DATABASE__URL": self.rows.url}
        self.start(["alembic", "upgrade", "head"], direct).succeed()
        self.service_proxy = self.new_proxy()
        self.api_proxy = self.new_proxy()
        self.api = self.start(["api"], self._api_settings())
        self.service = self._start_service()
        self.engine = self.add_engine("vllm")
        making = self.start(
            ["cli", "keys", "create", *_scopes("submit", "read", "operator"), "--json"], direct
        )
        self.api_url = eventually(self._find_api_url, what="the API listens", timeout=START_PATIENCE)
        self.caller = self._caller("default", json.loads(making.succeed())["api_key"])
        eventually(lambda: self.caller.http.get("/health/live").status_code == 200, timeout=START_PATIENCE)
        self.engine.feed()

    def freeze(self, worker: Process) -> None:
        """Stop an inference worker between two transactions: the locks of one would outlast its stop."""
        for _ in range(_MAX_FREEZES):
            worker.send(signal.SIGSTOP)
            with suppress(AssertionError):
                eventually(partial(self._have_ended, self.rows.transactions()), timeout=_FROZEN_SECONDS)
                return
            worker.send(signal.SIGCONT)
        raise AssertionError("the worker is never between two transactions")

    def _have_ended(self, transactions: frozenset[tuple[Any, ...]]) -> bool:
        return not transactions & self.rows.transactions()

    def stop(self) -> None:
        """End everything."""
        for each in self._processes:
            each.send(signal.SIGCONT)
            each.send(signal.SIGKILL)
        for each in self._processes:
            each.wait()
        for caller in self._callers.values():
            caller.http.close()
        self._exits.close()
        with psycopg.connect(self._postgres_url, autocommit=True) as connection:
            connection.execute(f"DROP DATABASE IF EXISTS {self._name} WITH (FORCE)".encode())

    def at_rest(self) -> None:
        """Make up for what a failed test has left behind."""
        self.jobs.clear()
        self.rows.lift_refusal()
        for proxy in (self.engine.proxy, self.service_proxy, self.api_proxy):
            proxy.disarm()
            proxy.thaw()
            proxy.refuse(is_refusing=False)
            proxy.delay_seconds = 0.0
        if not self.api.is_running:
            self.restart_api()
        if not self.service.is_running:
            self.restart_service()
        self.broker_gate.refuse(is_refusing=False)
        self.engine.scripted.is_down = False
        self.engine.scripted.release_all()
        for caller in self._callers.values():
            caller.http.post("/v1/jobs/cancel", json={"task": "generate"})
        eventually(lambda: not self.rows.unfinished(), what="all earlier jobs have ended")
        eventually(lambda: not self.rows.reserved(self.engine.name).requests, what="nothing is reserved")
        self.engine.scripted.reset()
        self.receiver.refusals.clear()

    def next_mark(self) -> int:
        """Return a mark that no other job has."""
        return next(self._marks)

    def tenant(self, name: str, *limits: str) -> Caller:
        """Return the caller of a tenant, which is made if it is new.

        Args:
            name: of the tenant.
            limits: options of `longbatch tenants create`.
        """
        if name not in self._callers:
            direct = {"LONGBATCH_DATABASE__URL": self.rows.url}
            self.start(["cli", "tenants", "create", name, *limits], direct).succeed()
            made = self.start(["cli", "keys", "create", "--tenant", name, "--json"], direct).succeed()
            self._caller(name, json.loads(made)["api_key"])
        return self._callers[name]

    def start(self, arguments: Sequence[str], environment: Mapping[str, str]) -> Process:
        """Start a process of the product, with a log of its own."""
        log = self._directory / f"{next(self._numbers)}-{'-'.join(arguments[:2])}.log"
        process = Process(arguments, environment, log)
        self._processes.append(process)
        return process

    def new_proxy(self) -> PostgresProxy:
        """Make a proxy to the database."""
        proxy = PostgresProxy(self._host, self._port)
        self._exits.callback(proxy.close)
        return proxy

    def add_engine(self, kind: str, *, slots: int = SLOTS, blocks: int = BLOCKS) -> FedEngine:
        """Make an engine of this kind; nothing feeds it yet."""
        scripted = ScriptedEngine(slots, blocks, TOKENS_PER_BLOCK)
        number = next(self._numbers)
        serving = triton_engine.serving(scripted) if kind == "triton" else http_engine.serving(scripted, kind)
        where = self._exits.enter_context(serving)
        name = f"engine-{number}"
        fed = FedEngine(name, f"model-{number}", where, scripted, self.new_proxy(), self)
        scripted.watch = fed.note_reserved
        return fed

    def settings(self, proxy: PostgresProxy | None = None) -> dict[str, str]:
        """Return the settings that all processes have."""
        parts = urlsplit(self.rows.url)
        if proxy is not None:
            user, _, _ = parts.netloc.rpartition("@")
            parts = parts._replace(netloc=f"{user}@127.0.0.1:{proxy.port}")
        return {
            "LONGBATCH_DATABASE__URL": urlunsplit(parts),
            "LONGBATCH_BROKER__URL": self._broker_url,
            "LONGBATCH_WEBHOOKS__SECRET": self.webhook_secret,
            "LONGBATCH_WEBHOOKS__ENCRYPTION_KEY": self._key,
            "LONGBATCH_WEBHOOKS__ALLOWED_HOSTS": '["127.0.0.1"]',
            "TOKENIZERS_PARALLELISM": "false",
        }

    def restart_service(self) -> None:
        """Kill the service worker if it runs, and start another one."""
        self.service.kill()
        self.service = self._start_service()

    def restart_api(self) -> None:
        """Kill the API, and start another one on the same port."""
        self.api.kill()
        port = str(urlsplit(self.api_url).port)
        self.api = self.start(["api"], self._api_settings() | {"LONGBATCH_API__PORT": port})
        eventually(self._find_api_url, what="the API listens again", timeout=START_PATIENCE)

    def _start_service(self) -> Process:
        settings = self.settings(self.service_proxy) | {
            "LONGBATCH_MAINTENANCE__RESCUE_SECONDS": "0.5",
            "LONGBATCH_MAINTENANCE__EXPIRE_SECONDS": "0.5",
            "LONGBATCH_MAINTENANCE__LEASE_SECONDS": "5",
        }
        return self.start(["worker", "service"], settings)

    def _api_settings(self) -> dict[str, str]:
        # Quotas must hold whatever a process believes that it may give away.
        return self.settings(self.api_proxy) | {
            "LONGBATCH_API__PORT": "0",
            "LONGBATCH_API__ENGINE_CACHE_SECONDS": "0",
            "LONGBATCH_API__INLINE_COUNT_CHARS": "16384",
        }

    def _caller(self, tenant: str, secret: str) -> Caller:
        http = httpx2.Client(
            base_url=self.api_url,
            timeout=_TIMEOUT,
            trust_env=False,
            headers={"Authorization": f"Bearer {secret}"},
            limits=httpx2.Limits(max_connections=64),
        )
        self._callers[tenant] = Caller(http, self, tenant)
        return self._callers[tenant]

    def _find_api_url(self) -> str | None:
        return _url_of(self.api)

    @contextmanager
    def another_api(self, caller: Caller) -> Iterator[Caller]:
        """Run another API process for the block; yields the same caller there."""
        process = self.start(["api"], self._api_settings())
        url = eventually(lambda: _url_of(process), what="the other API listens", timeout=START_PATIENCE)
        headers = {"Authorization": caller.http.headers["Authorization"]}
        with httpx2.Client(base_url=url, timeout=_TIMEOUT, trust_env=False, headers=headers) as http:
            yield Caller(http, self, caller.tenant)
        assert process.stop() == 0

    def _make_database(self) -> str:
        """Create an empty database; return its URL."""
        self._name = f"{_DATABASE}_{os.getpid()}_{secrets.token_hex(3)}"
        with psycopg.connect(self._postgres_url, autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {self._name}".encode())
            connection.execute(f"ALTER DATABASE {self._name} SET synchronous_commit = off".encode())
        return urlunsplit(urlsplit(self._postgres_url)._replace(path=f"/{self._name}"))


def _url_of(api: Process) -> str | None:
    """Return where the API listens; None until it does."""
    assert api.is_running, api.log.read_text()
    for line in api.log.read_text().splitlines():
        if '"api.ready"' in line:
            return str(json.loads(line)["url"])
    return None


def _scopes(*names: str) -> list[str]:
    return [each for name in names for each in ("--scope", name)]


@contextmanager
def running(postgres_url: str, broker_url: str, directory: Path) -> Iterator[World]:
    """Run a world for the block."""
    world = World(postgres_url, broker_url, directory)
    try:
        world.start_all()
        yield world
    finally:
        world.stop()
