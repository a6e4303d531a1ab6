"""An upgrade under load, from the build before the newest migration: each API beside the other's workers.

No request fails, nothing is lost, nothing is there twice. `make prove-upgrade` runs it, and the same from the
build before that; it takes minutes and the repository's history, so `make test` does not.
"""

import io
import json
import os
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import httpx2
import pytest
from alembic.config import Config
from alembic.script import ScriptDirectory

from api_server import WEBHOOK_SECRET
from bench.drill.relay import Relay, relaying
from bench.soak import receiver
from bench.soak.caller import Caller, Repeats
from bench.soak.checker import Checker
from bench.soak.journal import Journal
from bench.soak.load import ENDPOINT, HOOK, Load
from bench.soak.verdict import judge
from cli.stack import programs
from cli.stack.api_address import ApiAddress
from cli.stack.ports import LOOPBACK, free_port
from cli.stack.ready import API, INFERENCE_WORKER, SERVICE_WORKER, Urls
from cli.stack.servers.engine_options import EngineOptions
from cli.stack.servers.postgres import EmbeddedPostgres
from cli.stack.servers.triton import EmbeddedTriton
from cli.stack.servers.valkey import EmbeddedValkey
from cli.stack.supervised import DEFAULT_BACKOFF, SupervisedServer
from jobs.prompts.tokenizer_files import tokenizer_directory
from jobs.sealing.keys import new_key
from support import eventually
from system_support import OF_TESTS

ROOT = Path(__file__).resolve().parents[3]
IS_PROOF = os.environ.get("LONGBATCH_PROVE") == "1"
STEPS = 2
# Jobs that end in each phase before the next begins.
PER_PHASE = 40
RATE = 6.0

pytestmark = [
    pytest.mark.timeout(1500),
    pytest.mark.skipif(not IS_PROOF, reason="takes minutes: make prove-upgrade"),
]


def git(*arguments: str) -> bytes:
    return subprocess.run(["git", "-C", str(ROOT), *arguments], check=True, capture_output=True).stdout  # noqa: S607


def newest_migrations() -> list[Path]:
    """The migrations of which this build has most recently got one, the newest first."""
    scripts = ScriptDirectory.from_config(Config(str(ROOT / "alembic.ini")))
    return [Path(each.path) for each in scripts.walk_revisions()][:STEPS]


def build_before(migration: Path, directory: Path) -> Path:
    """The files of the last commit without this migration."""
    try:
        added = git("log", "--diff-filter=A", "--format=%H", "--", str(migration.relative_to(ROOT))).split()
        archive = git("archive", f"{added[-1].decode()}~1")
    except (OSError, subprocess.CalledProcessError, IndexError):
        pytest.skip(f"this copy of the repository has no commit before {migration.name}")
    made = directory / f"before-{migration.name[:4]}"
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        tar.extractall(made, filter="data")
    return made


@dataclass
class Site:
    """Servers of this build, and processes of any."""

    directory: Path
    urls: Urls
    environment: dict[str, str]
    running: dict[str, SupervisedServer] = field(default_factory=dict)
    ports: dict[str, int] = field(default_factory=dict)

    def variables(self, build: Path, *, port: int = 0) -> dict[str, str]:
        made = programs.environment(self.environment, self.urls, api=ApiAddress(port), time_scale=8)
        return {**made, "PYTHONPATH": str(build)}

    def command(self, build: Path, *arguments: str) -> str:
        """What a command of a build prints."""
        done = subprocess.run(
            [sys.executable, "-P", *arguments],
            env=self.variables(build),
            cwd=build,
            check=False,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr[-2000:]
        return done.stdout

    def start(self, name: str, build: Path, kind: str) -> None:
        """Start a process, and wait until it works."""
        port = self.ports[name] = free_port()
        program = programs.program(
            kind, self.variables(build, port=port), api=ApiAddress(port), directory=self.directory
        )
        log = self.directory / f"{name}.log"
        made = self.running[name] = SupervisedServer(
            program, log, report=lambda _: None, backoff=DEFAULT_BACKOFF
        )
        made.start()
        made.wait_ready(timedelta(seconds=60))
        if kind == API:
            eventually(lambda: not programs.not_ready(ApiAddress(port)))
        if kind == INFERENCE_WORKER:
            eventually(lambda: '"engine.ready"' in log.read_text())

    def stop(self, name: str) -> None:
        """Ask it to stop, and let it take its time."""
        self.running.pop(name).stop()


@contextmanager
def site(directory: Path) -> Iterator[Site]:
    """Postgres, empty; Valkey; Triton with the local engine."""
    with ExitStack() as stack:
        postgres, valkey = EmbeddedPostgres(directory / "postgres"), EmbeddedValkey(directory / "redis")
        engine = EngineOptions(tokenizer_dir=tokenizer_directory(None), time_scale=8)
        triton = EmbeddedTriton(directory / "triton", engine)
        for server in (postgres, valkey, triton):
            server.start()
            stack.callback(postgres.remove if server is postgres else server.stop)
        urls = Urls(
            database_url=postgres.url,
            broker_url=valkey.url,
            triton_grpc=triton.url,
            triton_http=triton.http_url,
            triton_metrics=triton.metrics_url,
        )
        inherited = {name: value for name, value in os.environ.items() if name not in OF_TESTS}
        made = Site(
            directory,
            urls,
            {
                **inherited,
                "LONGBATCH_WEBHOOKS__ALLOWED_HOSTS": '["127.0.0.1"]',
                "LONGBATCH_WEBHOOKS__SECRET": WEBHOOK_SECRET,
                "LONGBATCH_WEBHOOKS__ENCRYPTION_KEY": new_key(),
            },
        )
        try:
            yield made
        finally:
            for name in list(made.running):
                made.stop(name)


class Upgrade:
    """The load, and what it saw."""

    def __init__(self, directory: Path, here: Site, relay: Relay, key: str) -> None:
        self.here, self.relay = here, relay
        self.repeats = Repeats()
        self.journal = Journal(directory / "journal.jsonl")
        self.url = f"http://{LOOPBACK}:{relay.port}"
        # A connection of its own for each request, as a balancer that moves requests to another server needs.
        self.call = partial(Caller, [self.url], key, self.repeats, keeps_connections=False)
        self.checker = Checker(self.call())

    def some_end(self) -> None:
        """Jobs that were submitted from now on have ended."""
        before = len(self.journal.read())

        def ended() -> bool:
            self.checker.look(self.journal.read())
            since = [each for each in self.journal.read()[before:] if each.kind == "job"]
            return sum(1 for each in since if each.id in self.checker.seen.jobs) >= PER_PHASE

        eventually(ended, timeout=300, interval=0.5)

    def move_to(self, name: str) -> None:
        """Send requests to this API, and wait until the other one has answered all of its own."""
        before = self.relay.target
        self.relay.target = (LOOPBACK, self.here.ports[name])
        eventually(lambda: not self.relay.num_open.get(before))


@pytest.mark.parametrize("step", range(STEPS), ids=lambda step: f"newest-{step}")
def test_an_upgrade_under_load_fails_no_request(step: int, tmp_path: Path) -> None:
    old, new = build_before(newest_migrations()[step], tmp_path), ROOT
    secrets: dict[str, str] = {}
    log = tmp_path / "webhooks.jsonl"
    with site(tmp_path) as here, receiver.receiving(log, secrets) as port:
        here.command(old, "-m", "alembic", "upgrade", "head")
        key = json.loads(here.command(old, "-m", "cli", "keys", "create", "--json"))["api_key"]
        for kind in (INFERENCE_WORKER, SERVICE_WORKER, API):
            here.start(f"old {kind}", old, kind)
        with relaying((LOOPBACK, here.ports[f"old {API}"])) as relay:
            upgrade = Upgrade(tmp_path, here, relay, key)
            load = Load(upgrade.call, upgrade.journal, f"http://127.0.0.1:{port}{HOOK}", seed=step, rate=RATE)
            subscribe(upgrade.url, key, secrets, port)
            with load.running():
                walk(upgrade, old, new)
            judged = partial(judge_all, upgrade, load, log)
            eventually(lambda: judged().is_good, timeout=400, interval=1)
        assert load.faults == []
        assert upgrade.repeats.counted == {}, "a request failed"
        number = len(upgrade.checker.seen.jobs)
        print(f"upgrade from {old.name}: {load.counted} requests, {number} jobs, 0 failed, 0 lost, 0 twice")  # noqa: T201  # the figures of the proof


def walk(upgrade: Upgrade, old: Path, new: Path) -> None:
    """Upgrade in the order that the manual tells, and go back on the way."""
    here = upgrade.here
    upgrade.some_end()
    here.command(new, "-m", "alembic", "upgrade", "head")
    upgrade.some_end()  # the old build alone, on the new schema: also what going back needs
    for kind in (INFERENCE_WORKER, SERVICE_WORKER):
        here.start(f"new {kind}", new, kind)
        here.stop(f"old {kind}")
    upgrade.some_end()  # the old API beside new workers
    here.start(f"new {API}", new, API)
    for kind in (INFERENCE_WORKER, SERVICE_WORKER):
        here.start(f"old {kind}", old, kind)
        here.stop(f"new {kind}")
    upgrade.move_to(f"new {API}")
    upgrade.some_end()  # the new API beside old workers
    upgrade.move_to(f"old {API}")
    upgrade.some_end()  # back where it was, on the new schema
    for kind in (INFERENCE_WORKER, SERVICE_WORKER):
        here.start(f"new {kind}", new, kind)
        here.stop(f"old {kind}")
    upgrade.move_to(f"new {API}")
    here.stop(f"old {API}")
    upgrade.some_end()  # the new build alone


def judge_all(upgrade: Upgrade, load: Load, log: Path) -> Any:  # noqa: ANN401  # a Verdict
    upgrade.checker.look(upgrade.journal.read())
    upgrade.checker.read_usage()
    return judge(upgrade.journal.read(), upgrade.checker.seen, receiver.read(log), chats=load.chats)


def subscribe(url: str, key: str, secrets: dict[str, str], port: int) -> None:
    """Tell an endpoint of everything, and learn what signs events."""
    headers = {"Authorization": f"Bearer {key}"}
    with httpx2.Client(base_url=url, headers=headers, trust_env=False) as http:
        made = http.post("/v1/webhook_endpoints", json={"url": f"http://127.0.0.1:{port}{ENDPOINT}"}).json()
        secrets |= {HOOK: http.get("/v1/webhook_secret").json()["secret"], ENDPOINT: made["secret"]}
