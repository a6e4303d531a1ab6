"""One run: each service starts, each of our processes is killed under load, and all promises are judged."""

import base64
import os
import secrets
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

from bench.images.services import ContainerError, Containers, Service, podman, read
from bench.soak import receiver
from bench.soak.caller import Caller, Repeats
from bench.soak.checker import Checker
from bench.soak.journal import Journal
from bench.soak.judged import JudgedReport
from bench.soak.load import ENDPOINT, HOOK, Load
from bench.soak.stacks import subscribe

COMPOSE: Final = Path(__file__).resolve().parents[2] / "docker-compose.yml"
API_URL: Final = "http://127.0.0.1:8080"
# In the order of their starts; the first two are stand-ins for images that cannot be fetched.
SERVERS: Final = ("postgres", "valkey")
OWN: Final = ("triton-cpu", "api", "worker", "service-worker")
KILLED: Final = ("api", "worker", "triton-cpu", "service-worker")
_IMAGES: Final = {
    "triton-cpu": "localhost/longbatch-engine",
    "postgres": "localhost/longbatch-postgres",
    "valkey": "localhost/longbatch-valkey",
}
_SERVER_IMAGE: Final = "localhost/longbatch-server"
_UID: Final = 10001


@dataclass(frozen=True, slots=True)
class Plan:
    """How long a run takes.

    Attributes:
        rounds: how often each process is killed.
        between_s: load before each kill, and after the last one.
        drain_s: how long to wait at the end for what is under way.
        rate: 1 is about 1.2 jobs a second.
    """

    seed: int
    rounds: int = 1
    between_s: float = 10
    drain_s: float = 300
    rate: float = 1


@dataclass
class Report(JudgedReport):
    """What a run showed.

    Attributes:
        healthy_after_s: from the start of a container until its health check succeeded.
        back_after_s: from each kill until the restarted container was healthy.
        processes: what the kernel says of each of our containers' first processes.
        promised: objects that were accepted.
    """

    plan: Plan
    healthy_after_s: dict[str, float] = field(default_factory=dict)
    migrated_s: float = 0
    back_after_s: list[tuple[str, float]] = field(default_factory=list)
    processes: dict[str, dict[str, str]] = field(default_factory=dict)
    promised: int = 0

    @property
    def is_good(self) -> bool:
        """True if something was promised, nothing was lost or doubled, and every request was accepted."""
        return bool(self.promised) and super().is_good


def prove(plan: Plan, directory: Path, *, say: Callable[[str], None]) -> Report:
    """Run the plan; logs go to this empty directory.

    Raises:
        ContainerError: a service did not start, or is not what it should be.
    """
    report, repeats = Report(plan), Repeats()
    journal, log = Journal(directory / "journal.jsonl"), directory / "webhooks.jsonl"
    hook_secret = f"whsec_{base64.b64encode(secrets.token_bytes(32)).decode()}"
    keys: dict[str, str] = {HOOK: hook_secret}
    containers = Containers(_services(hook_secret), ["postgres", "valkey", "triton"])
    containers.remove()
    try:
        api_key = _start(containers, report, say)
        with receiver.receiving(log, keys) as port:
            hook = f"http://127.0.0.1:{port}"
            keys[ENDPOINT] = subscribe(API_URL, api_key, hook + ENDPOINT)
            load = Load(
                partial(Caller, [API_URL], api_key, repeats), journal, hook + HOOK, plan.seed, plan.rate
            )
            checker = Checker(load.call())
            with load.running():
                _kill_each(containers, report, say)
            say("the load is over; waiting for what is under way")
            report.drain(checker, load, log, drain_s=plan.drain_s)
        report.promised, report.repeats = len(journal.read()), repeats.counted
        return report
    finally:
        journal.close()
        containers.remove()


def _services(hook_secret: str) -> dict[str, Service]:
    passwords = {"POSTGRES_PASSWORD": secrets.token_hex(16), "VALKEY_PASSWORD": secrets.token_hex(16)}
    declared = read(COMPOSE, passwords)
    settings = {
        "LONGBATCH_WEBHOOKS__SECRET": hook_secret,
        "LONGBATCH_WEBHOOKS__ENCRYPTION_KEY": base64.b64encode(secrets.token_bytes(32)).decode(),
        "LONGBATCH_WEBHOOKS__ALLOWED_HOSTS": '["127.0.0.1"]',
        "LONGBATCH_JOBS__LEASE_SECONDS": "9",
        "LONGBATCH_JOBS__RENEW_SECONDS": "3",
    }
    # One network for all: two workers cannot have the port that Compose gives each.
    ports = {"worker": "9464", "service-worker": "9465"}
    found = {}
    for name in (*SERVERS, "migrate", *OWN):
        own = {**settings} if declared[name]["image"] == "longbatch-server" else {}
        own |= {"LONGBATCH_METRICS__PORT": ports[name]} if name in ports else {}
        found[name] = Service(name, declared[name], _IMAGES.get(name, _SERVER_IMAGE), own)
    return found


def _start(containers: Containers, report: Report, say: Callable[[str], None]) -> str:
    """Start everything in Compose's order; return an API key."""
    for name in SERVERS:
        report.healthy_after_s[name] = round(containers.start(name), 2)
    began = time.monotonic()
    containers.complete("migrate")
    report.migrated_s = round(time.monotonic() - began, 2)
    say(f"migrated in {report.migrated_s} s")
    api_key = containers.complete("api", "python", "-m", "cli", "keys", "create").splitlines()[0]
    for name in OWN:
        report.healthy_after_s[name] = round(containers.start(name), 2)
        report.processes[name] = _facts(containers, name)
        say(f"{name} is healthy after {report.healthy_after_s[name]} s")
    return api_key


def _facts(containers: Containers, name: str) -> dict[str, str]:
    """Check that a container's first process has no rights and cannot write its files.

    Raises:
        ContainerError: it has more than it should.
    """
    lines = Path(f"/proc/{containers.pid(name)}/status").read_text().splitlines()
    status = {key: value.strip() for key, _, value in (line.partition(":") for line in lines)}
    found = {key: status[key] for key in ("Uid", "CapEff", "CapBnd", "NoNewPrivs")}
    if set(found["Uid"].split()) != {str(_UID)} or int(found["CapBnd"], 16) or found["NoNewPrivs"] != "1":
        raise ContainerError(f"{name} runs with {found}")
    try:
        podman("exec", name, "python", "-c", "open('/app/written', 'w')")
    except ContainerError as error:
        found["writing"] = str(error).rpartition("\n")[2]
    else:
        raise ContainerError(f"{name} can write into its image")
    return found


def _kill_each(containers: Containers, report: Report, say: Callable[[str], None]) -> None:
    """Kill the first process of each container in turn; wait until it is healthy again."""
    for _ in range(report.plan.rounds):
        for name in KILLED:
            time.sleep(report.plan.between_s)
            pid = containers.pid(name)
            began = time.monotonic()
            os.kill(pid, signal.SIGKILL)
            containers.start_again(name)
            containers.until_healthy(name)
            seconds = round(time.monotonic() - began, 2)
            report.back_after_s.append((name, seconds))
            say(f"killed {name}; healthy again after {seconds} s")
    time.sleep(report.plan.between_s)
