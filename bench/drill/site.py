"""The machines of the drill: which process runs where, by which clock, and how each is reached."""

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Final

import httpx2

from bench.drill.hosts import HUB, Host, Network
from bench.drill.relay import relaying
from cli.stack import programs
from cli.stack.api_address import ApiAddress
from cli.stack.database import first_key, migrated
from cli.stack.ports import LOOPBACK
from cli.stack.processes import Launch
from cli.stack.ready import API, INFERENCE_WORKER, SERVICE_WORKER, Urls
from cli.stack.server import EmbeddedServer, Program, StackServer
from cli.stack.servers.engine_options import EngineOptions
from cli.stack.servers.postgres import EmbeddedPostgres
from cli.stack.servers.triton import EmbeddedTriton
from cli.stack.servers.valkey import EmbeddedValkey
from cli.stack.supervised import Backoff, SupervisedServer
from jobs.prompts.tokenizer_files import tokenizer_directory
from jobs.sealing.keys import new_key

POSTGRES, REDIS, ENGINE = "postgres", "redis", "engine"
# What runs on the other hosts, and how many seconds their clocks are off.
PROGRAMS: Final[Mapping[str, tuple[str, int]]] = {
    "api-1": (API, 300),
    "api-2": (API, -240),
    "worker-1": (INFERENCE_WORKER, -420),
    "worker-2": (INFERENCE_WORKER, 360),
    "worker-3": (SERVICE_WORKER, 180),
}
NAMES: Final = (POSTGRES, REDIS, ENGINE, *PROGRAMS)
LEASE_S: Final = 9
# What Python needs there.
_CLOCKS: Final = Path(__file__).with_name("clocks").absolute()
# Before each piece in each direction; what a network within a city takes.
_DELAY_S: Final = 0.002
_API_PORT: Final = 8080
_START: Final = timedelta(seconds=400)  # on a machine at work
_SECRET: Final = "whsec_" + "YSBkcmlsbCBoYXMgbm8gc2VjcmV0cyB0byBrZWVw"


@dataclass(frozen=True)
class Placed:
    """A server on a host."""

    server: StackServer
    host: Host

    @property
    def name(self) -> str:
        """Name of its log."""
        return self.host.name

    def launch(self) -> Launch:
        """Move the thread that starts it to the host, and return how to start it."""
        self.host.enter()
        return self.server.launch()

    def is_ready(self) -> bool:
        """Return True if it answers on its host."""
        return self.host.call(self.server.is_ready)

    def release(self) -> None:
        """Release what it held."""
        self.server.release()


@dataclass
class Site:
    """The running site.

    Attributes:
        api_urls: of both APIs.
        key: of the tenant with the load.
        webhook_secret: signs webhooks without a secret of their own.
        running: processes by host.
    """

    network: Network
    api_urls: list[str]
    key: str = ""
    webhook_secret: str = _SECRET
    running: dict[str, SupervisedServer] = field(default_factory=dict)


@contextmanager
def site(directory: Path, network: Network, *, faketime: Path | None) -> Iterator[Site]:
    """Run the site for the block.

    Args:
        directory: for all data; removed by the caller.
        network: not built yet.
        faketime: the library that makes clocks wrong; None: they are right.
    """
    directory.mkdir(parents=True, exist_ok=True)
    network.build(NAMES)
    hosts = network.hosts
    made = Site(network, [f"http://{hosts[name].address}:{_API_PORT}" for name in ("api-1", "api-2")])
    postgres, valkey = EmbeddedPostgres(directory / POSTGRES), EmbeddedValkey(directory / REDIS)
    options = EngineOptions(tokenizer_dir=tokenizer_directory(None), time_scale=2, tokens_per_response=4)
    triton = EmbeddedTriton(directory / ENGINE, options)
    with ExitStack() as stack:
        stack.callback(postgres.remove)
        stack.callback(_stop_all, made)
        for name, server in ((POSTGRES, postgres), (REDIS, valkey), (ENGINE, triton)):
            _start(made, directory, name, server)
        ports = {
            POSTGRES: [postgres.port],
            REDIS: [valkey.port],
            ENGINE: [triton.grpc_port, triton.http_port, triton.metrics_port],
        }
        for name, each in ((name, each) for name, found in ports.items() for each in found):
            host = hosts[name]
            relay = relaying(
                (LOOPBACK, each), delay_s=_DELAY_S, port=each, host=host.address, enter=host.enter
            )
            stack.enter_context(relay)
        urls = Urls(
            database_url=_reached(postgres, hosts[POSTGRES]),
            broker_url=_reached(valkey, hosts[REDIS]),
            triton_grpc=_reached(triton, hosts[ENGINE]),
            triton_http=triton.http_url.replace(LOOPBACK, hosts[ENGINE].address),
            triton_metrics=triton.metrics_url.replace(LOOPBACK, hosts[ENGINE].address),
        )
        with migrated(urls.database_url or "") as engine:
            made.key = first_key(engine, directory)
        _start_programs(made, directory, urls, faketime)
        yield made


def _reached(server: EmbeddedServer, host: Host) -> str:
    return server.url.replace(LOOPBACK, host.address)


def _start(site: Site, directory: Path, name: str, server: StackServer) -> None:
    backoff = Backoff(first=timedelta(seconds=0.5), ceiling=timedelta(seconds=2))
    placed = Placed(server, site.network.hosts[name])
    log = directory / "logs" / f"{name}.log"
    site.running[name] = SupervisedServer(placed, log, report=lambda _event: None, backoff=backoff)
    site.running[name].start()
    site.running[name].wait_ready(_START)


def _start_programs(site: Site, directory: Path, urls: Urls, faketime: Path | None) -> None:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("LONGBATCH_")}
    base = {
        **inherited,
        "LONGBATCH_JOBS__LEASE_SECONDS": str(LEASE_S),
        "LONGBATCH_JOBS__RENEW_SECONDS": "3",
        "LONGBATCH_WEBHOOKS__ALLOWED_HOSTS": f'["{HUB}"]',
        "LONGBATCH_WEBHOOKS__SECRET": site.webhook_secret,
        "LONGBATCH_WEBHOOKS__ENCRYPTION_KEY": new_key(),
    }
    for name, (kind, skew_s) in PROGRAMS.items():
        env = programs.environment(base, urls, api=ApiAddress(_API_PORT), time_scale=2)
        env["LONGBATCH_API__HOST"] = site.network.hosts[name].address
        if faketime is not None:
            env |= {
                "LD_PRELOAD": str(faketime),
                "FAKETIME": f"{skew_s:+d}s",
                "FAKETIME_DONT_FAKE_MONOTONIC": "1",
                "PYTHONPATH": str(_CLOCKS),
            }
        plain = programs.program(kind, env, api=ApiAddress(_API_PORT), directory=directory)
        _start(site, directory, name, _unprobed(plain))
    deadline = time.monotonic() + _START.total_seconds()
    for url in site.api_urls:
        while not _is_ready(url):
            if time.monotonic() > deadline:
                raise TimeoutError(f"{url} is not ready")
            time.sleep(0.2)


def _unprobed(program: Program) -> Program:
    """Leave out the probe of the API, which answers on the address of its host alone."""
    return Program(program.name, program.argv, program.env, program.directory, program.grace, lambda: True)


def _is_ready(url: str) -> bool:
    try:
        return httpx2.get(f"{url}/health/ready", timeout=5, trust_env=False).status_code == httpx2.codes.OK
    except httpx2.TransportError:
        return False


def _stop_all(site: Site) -> None:
    for name in [*PROGRAMS, ENGINE, REDIS, POSTGRES]:
        if name in site.running:
            site.running[name].stop()
