"""The chart's processes with its variables, where /tmp alone can be written, and without capabilities."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx2
import pytest
import yaml
from sqlalchemy.orm import Session, sessionmaker

from chart.rendering import EXAMPLES, ROOT, Manifest, Render, Rendered
from cli.stack.servers.valkey import EmbeddedValkey
from document_support import make_pdf
from jobs.settings import ENV_PREFIX, DatabaseSettings
from support import API_KEY, PATIENCE, eventually

# Remounts all that is mounted, /tmp as a new one; /proc, /sys and /dev are the kernel's.
CONFINE = """
set -e
awk '{print $5}' /proc/self/mountinfo | grep -Ev '^/(proc|sys|dev)(/|$)' | while read -r each; do
    mount -o remount,bind,ro "$each"
done
mount -t tmpfs tmpfs /tmp
if touch "$HOME/written" 2>/dev/null; then echo "the root is not read-only" >&2; exit 9; fi
exec setpriv --no-new-privs --inh-caps=-all --bounding-set=-all "$@"
"""
CONFINED = [shutil.which("unshare") or "", "--mount", "sh", "-c", CONFINE, "sh"]
TOOLS = ("unshare", "setpriv", "mount")
pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or not all(map(shutil.which, TOOLS)), reason="needs root, and util-linux"
)

Start = Callable[[str, str, str], "Confined"]


class Confined:
    """A process of the chart that runs.

    Attributes:
        url: where it listens.
    """

    def __init__(self, command: list[str], variables: dict[str, str], *, event: str) -> None:
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(ENV_PREFIX)}
        if "LONGBATCH_CACHE_DIR" in os.environ:  # the image has one too
            inherited["LONGBATCH_CACHE_DIR"] = os.environ["LONGBATCH_CACHE_DIR"]
        self.process = subprocess.Popen(
            [*CONFINED, sys.executable, *command[1:]],
            env={**inherited, **variables},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=ROOT,
        )
        assert self.process.stdout is not None
        lines = []
        for line in self.process.stdout:
            lines.append(line)
            if f'"{event}"' in line:
                self.url = str(json.loads(line)["url"]).replace("0.0.0.0", "127.0.0.1")  # noqa: S104
                return
        self.end()
        raise AssertionError("".join(lines))

    def stop(self) -> int:
        """Ask it to stop, as Kubernetes does."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(PATIENCE)

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()


def container_of(found: Rendered, kind: str, name: str) -> Manifest:
    (container,) = found.named(kind, name)["spec"]["template"]["spec"]["containers"]
    return dict(container)


@pytest.fixture
def variables_of(
    database_settings: DatabaseSettings, valkey: EmbeddedValkey
) -> Callable[[Manifest], dict[str, str]]:
    """A container's variables, with this run's own database and broker for its secrets."""
    secrets = {
        "LONGBATCH_DATABASE__URL": database_settings.url.get_secret_value(),
        "LONGBATCH_BROKER__URL": valkey.url,
    }

    def found(container: Manifest) -> dict[str, str]:
        return {each["name"]: each.get("value", secrets.get(each["name"], "")) for each in container["env"]}

    return found


@pytest.fixture(scope="module")
def minimal(render: Render) -> Rendered:
    return render(yaml.safe_load((EXAMPLES[0].parent / "minimal.yaml").read_text()))


@pytest.fixture
def start(
    minimal: Rendered, variables_of: Callable[[Manifest], dict[str, str]], sessions: sessionmaker[Session]
) -> Iterator[Start]:
    assert sessions  # the database has its tables and the tests' key
    with ExitStack() as running:

        def started(name: str, event: str, port: str) -> Confined:
            container = container_of(minimal, "Deployment", name)
            variables = variables_of(container) | {port: "0"}  # any: others use this machine too
            process = Confined(container["command"], variables, event=event)
            running.callback(process.end)
            return process

        yield started


def test_all_processes_work_and_stop(start: Start) -> None:
    api = start("lb-api", "api.ready", "LONGBATCH_API__PORT")
    workers = [
        start(f"lb-{name}", "metrics.ready", "LONGBATCH_METRICS__PORT")
        for name in ("service-worker", "engine-triton")
    ]
    with httpx2.Client(trust_env=False, timeout=PATIENCE) as client:
        for worker in workers:
            assert client.get(worker.url).status_code == 200
        assert client.get(f"{api.url}/health/live").json() == {"status": "ok"}
        # The engine does not answer: what Kubernetes asks must not depend on it.
        ready = client.get(f"{api.url}/health/ready")
        assert ready.status_code == 503
        assert not ready.json()["components"]["engine"]["ready"]

        client.headers["Authorization"] = f"Bearer {API_KEY}"
        job = client.post(f"{api.url}/v1/jobs", json={"input": "Summarize.", "max_tokens": 9}).json()
        sent = {"file": ("report.pdf", make_pdf(["A page of text."]), "application/pdf")}
        document = client.post(f"{api.url}/v1/documents", files=sent).json()

        def state(path: str, made: dict[str, Any]) -> str:
            return str(client.get(f"{api.url}{path}/{made['id']}").json().get("state"))

        eventually(lambda: state("/v1/jobs", job) == "queued")
        eventually(lambda: state("/v1/documents", document) == "ready")
        queued = [
            each for each in client.get(f"{api.url}/metrics").text.splitlines() if "queued_jobs{" in each
        ]
        assert queued == ['longbatch_queued_jobs{model="llama-3.1-8b-instruct"} 1.0']
    assert [each.stop() for each in (*workers, api)] == [0, 0, 0]


def test_the_migration_runs_there_too(
    minimal: Rendered, variables_of: Callable[[Manifest], dict[str, str]], sessions: sessionmaker[Session]
) -> None:
    assert sessions
    container = container_of(minimal, "Job", "lb-migrate")
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(ENV_PREFIX)}
    ended = subprocess.run(
        [*CONFINED, sys.executable, *container["command"][1:]],
        env={**inherited, **variables_of(container)},
        cwd=Path(ROOT),
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
