"""`longbatch up`: what it tells, what it survives, and that nothing is left when it ends."""

import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import pytest

from cli.stack.ports import LOOPBACK, free_port, release
from cli.stack.servers.postgres import EmbeddedPostgres
from cli.stack.servers.valkey import EmbeddedValkey
from support import PATIENCE, eventually

# One test starts a stack, kills all of it and waits until it is back.
pytestmark = pytest.mark.timeout(300)

_COMMAND = (sys.executable, "-P", "-c", "from longbatch.cli import main; main()", "up", "--time-scale", "20")
_SERVING = {
    "api": "-m longbatch_server api",
    "inference_worker": "-m longbatch_server worker inference",
    "service_worker": "-m longbatch_server worker service",
    "postgres": "bin/postgres",
    "redis": "valkey-server",
    "triton": "bin/tritonserver",
}


@dataclass
class Up:
    """A running `longbatch up`."""

    process: "subprocess.Popen[bytes]"
    ready_file: Path
    console: Path

    @property
    def ready(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.ready_file.read_text())
        return found

    @property
    def pids(self) -> dict[str, int | None]:
        found: dict[str, int | None] = self.ready["pids"]
        return found

    def wait_ready(self) -> dict[str, Any]:
        def look() -> dict[str, Any] | None:
            assert self.process.poll() is None, self.console.read_text()
            return self.ready if self.ready_file.exists() else None

        return eventually(look, timeout=90) or {}


def command(directory: Path, *arguments: str) -> list[str]:
    return [*_COMMAND, "--data-dir", str(directory), *arguments]


@contextmanager
def up(directory: Path, *, port: int = 0, **variables: str) -> Iterator[Up]:
    """A started `longbatch up`, stopped and with its files gone at the end."""
    directory.mkdir(exist_ok=True)
    console, ready_file = directory.with_suffix(".console"), directory.with_suffix(".json")
    arguments = command(directory, "--port", str(port), "--ready-file", str(ready_file))
    with console.open("ab") as output:
        process = subprocess.Popen(
            arguments, env={**os.environ, **variables}, stdout=output, stderr=subprocess.STDOUT
        )
    try:
        yield Up(process, ready_file, console)
    finally:
        process.terminate()
        process.wait(PATIENCE)


@contextmanager
def running_valkey(directory: Path) -> Iterator[EmbeddedValkey]:
    server = EmbeddedValkey(directory)
    server.start()
    try:
        yield server
    finally:
        server.stop()


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    made = tmp_path_factory.mktemp("home")
    yield made
    EmbeddedPostgres(made / "data" / "postgres").remove()


@pytest.fixture(scope="module")
def first(home: Path) -> Iterator[Up]:
    """A stack that runs until a test kills it."""
    with up(home / "data") as made:
        made.wait_ready()
        yield made


@pytest.fixture(scope="module")
def servers(home: Path) -> Iterator[dict[str, Any]]:
    """A Postgres and a Valkey of the user's own, as the stack is told of them."""
    postgres = EmbeddedPostgres(home / "postgres")
    with running_valkey(home / "redis") as valkey:
        try:
            yield {"LONGBATCH_DATABASE__URL": postgres.start(), "LONGBATCH_BROKER__URL": valkey.url}
        finally:
            postgres.remove()


@pytest.fixture(scope="module")
def beside(home: Path, servers: dict[str, Any]) -> Iterator[Up]:
    """A stack on the user's own servers."""
    with up(home / "beside", **servers) as made:
        made.wait_ready()
        yield made


def is_alive(pid: int | None) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def descendants(pid: int) -> set[int]:
    """Every process below this one."""
    parents: dict[int, int] = {}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            parents[int(process.name)] = int((process / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
    found = {pid}
    while more := {child for child, parent in parents.items() if parent in found} - found:
        found |= more
    return found - {pid}


def call(ready: dict[str, Any], path: str, body: object = None, *, key: str | None = None) -> dict[str, Any]:
    data = None if body is None else json.dumps(body).encode()
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {key or ready['api_key']}"}
    request = urllib.request.Request(ready["api_url"] + path, data, headers)  # noqa: S310 loopback
    with urllib.request.urlopen(request, timeout=70) as answer:  # noqa: S310 loopback
        found: dict[str, Any] = json.load(answer)
        return found


def submit(ready: dict[str, Any]) -> str:
    body = {"input": "The stack came up. It will go down. Then it comes up again.", "task": "summarize"}
    return str(call(ready, "/v1/jobs", body)["id"])


def submitted(ready: dict[str, Any]) -> str | None:
    """A new job's id; None while the API is not there."""
    try:
        return submit(ready)
    except OSError:
        return None


def completes(ready: dict[str, Any], job_id: str) -> bool:
    return bool(call(ready, f"/v1/jobs/{job_id}?wait=60")["state"] == "completed")


def test_every_part_is_listed_and_a_key_opens_the_api(first: Up) -> None:
    ready = first.ready
    assert list(ready) == [
        "api_url",
        "console_url",
        "api_key",
        "database_url",
        "broker_url",
        "triton_grpc",
        "triton_http",
        "triton_metrics",
        "pids",
    ]
    eventually(lambda: ready["api_key"] in first.console.read_text())
    printed = first.console.read_text()
    assert str(first.ready_file) in printed, "paths are printed whole"
    assert "…" not in "".join(line for line in printed.splitlines() if "://" in line)
    assert ready["console_url"] == f"{ready['api_url']}/console/"
    eventually(lambda: f"{ready['console_url']}sign-in?code=" in first.console.read_text())
    with pytest.raises(HTTPError, match="401"):
        call(ready, "/v1/jobs", key="lb_wrong")
    assert list(ready["pids"]) == list(_SERVING)
    for name, words in _SERVING.items():
        arguments = Path(f"/proc/{ready['pids'][name]}/cmdline").read_bytes().replace(b"\0", b" ")
        assert words in arguments.decode(), name


def test_servers_of_the_users_own_take_the_place_of_embedded_ones(
    beside: Up, servers: dict[str, str]
) -> None:
    ready = beside.ready
    assert [ready["database_url"], ready["broker_url"]] == list(servers.values())
    assert [name for name, pid in ready["pids"].items() if pid is None] == ["postgres", "redis"]
    assert completes(ready, submit(ready))


def test_a_directory_is_used_once_but_another_stack_runs_beside_it(home: Path, first: Up, beside: Up) -> None:
    assert not set(first.pids.values()) & set(beside.pids.values())
    refused = subprocess.run(command(home / "data"), check=False, capture_output=True, text=True, timeout=60)
    assert refused.returncode == 1
    told = refused.stderr.strip().splitlines()[-1]
    assert told.startswith(f"error: {home / 'data'} is in use by process {first.process.pid};")
    assert all(completes(each.ready, submit(each.ready)) for each in (first, beside))


def test_what_was_killed_leaves_no_process_and_the_next_run_has_its_jobs_and_survives_kills(
    home: Path, first: Up
) -> None:
    ready = first.ready
    job_id = submit(ready)
    everything = descendants(first.process.pid)
    first.process.kill()
    first.process.wait()
    eventually(lambda: not [pid for pid in everything if is_alive(pid)])

    port = free_port()
    release(port)  # the command reserves it itself
    with up(home / "data", port=port) as running:
        eventually(lambda: running.ready_file.exists() and running.ready != ready, timeout=90)
        assert running.ready["api_key"] == ready["api_key"]
        assert running.ready["api_url"] == f"http://{LOOPBACK}:{port}"
        assert completes(running.ready, job_id)
        survives_a_kill_of_every_part(running)
        everything = descendants(running.process.pid)
        assert everything.issuperset(pid for pid in running.pids.values() if pid)
        running.process.send_signal(signal.SIGTERM)
        assert running.process.wait(PATIENCE) == 0
        assert not [pid for pid in everything if is_alive(pid)]
        assert not running.ready_file.exists()


def survives_a_kill_of_every_part(running: Up) -> None:
    """All start again, where they were, and do what they are asked."""
    ready, killed = running.ready, dict(running.pids)
    for pid in killed.values():
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
    eventually(lambda: all(new != killed[name] for name, new in running.pids.items()))
    assert {**running.ready, "pids": None} == {**ready, "pids": None}
    assert all(f"{name} ended (SIGKILL)" in running.console.read_text() for name in _SERVING)
    job_id = eventually(lambda: submitted(ready), timeout=2 * PATIENCE)  # all start at once
    assert completes(ready, job_id)


def test_a_service_writes_no_key_into_its_journal(home: Path) -> None:
    with up(home / "journal", JOURNAL_STREAM="8:1") as started:
        key = started.wait_ready()["api_key"]
        printed = eventually(lambda: "Next" in (text := started.console.read_text()) and text)
        assert key not in printed
        assert "sign-in?code=" not in printed
        assert (home / "journal" / "api-key").read_text().strip() == key


def test_a_taken_port_is_one_clear_line(tmp_path: Path) -> None:
    with running_valkey(tmp_path / "redis") as taken:
        refused = subprocess.run(
            command(tmp_path, "--port", str(taken.port)),
            check=False,
            capture_output=True,
            text=True,
            timeout=60,
        )
    assert refused.returncode == 1
    assert refused.stderr.strip() == (
        f"error: Port {taken.port} is taken; choose another --port, or omit it for a free one."
    )
