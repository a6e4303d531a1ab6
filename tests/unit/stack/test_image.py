"""What the Dockerfile copies and runs is there, and the health check asks the process that runs."""

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
import yaml

from cli.alive import Probe, answers, container_command, probe_of

ROOT = Path(__file__).resolve().parents[3]
LINES = (ROOT / "Dockerfile").read_text().replace("\\\n", " ").splitlines()
COMPOSE = yaml.safe_load((ROOT / "docker-compose.yml").read_text())


def instructions(name: str) -> list[str]:
    return [line.removeprefix(f"{name} ") for line in LINES if line.startswith(f"{name} ")]


def test_what_is_copied_reaches_the_builder() -> None:
    """`.dockerignore` leaves out all but what it names."""
    first, *rest = (ROOT / ".dockerignore").read_text().split()
    assert first == "*"
    named = {line.removeprefix("!") for line in rest if line.startswith("!")}
    sources = [each.removeprefix("./") for line in instructions("COPY") for each in line.split()[:-1]]
    assert len(sources) > 10
    assert set(sources) <= named
    assert all((ROOT / each).exists() for each in sources)


def test_processes_run_as_one_user_by_its_number() -> None:
    (made,) = [line for line in instructions("RUN") if "useradd" in line]
    numbers = set(re.findall(r"--[ug]id (\d+)", made))
    assert set(instructions("USER")) == {f"{number}:{number}" for number in numbers}
    assert numbers != {"0"}


def test_every_image_is_labelled_and_checked() -> None:
    images = [line for line in instructions("FROM") if not line.endswith("AS base")]
    assert [line.split()[0] for line in images] == ["base", "base"]
    assert len(instructions("LABEL")) == len(instructions("HEALTHCHECK")) == len(images)
    for label in instructions("LABEL"):
        names = {word.split("=")[0].rpartition(".")[2] for word in shlex.split(label)}
        assert names >= {"title", "description", "licenses", "version", "revision"}
    for check in instructions("HEALTHCHECK"):
        assert check.endswith('CMD ["python", "-m", "cli.alive"]')


def test_an_image_tells_the_release_that_it_was_built_as(tmp_path: Path) -> None:
    assert "LONGBATCH_VERSION=${VERSION}" in instructions("ENV")
    told = "from version import version; print(version())"
    (tmp_path / "version.py").write_text((ROOT / "jobs" / "version.py").read_text())
    for given, expected in (("1.2.3", "1.2.3"), ("", "0+source")):
        # Without the folder of installed packages: in the image Longbatch is none of them.
        python = [sys.executable, "-S", "-c", told]
        found = subprocess.run(
            python, cwd=tmp_path, env={"LONGBATCH_VERSION": given}, capture_output=True, text=True, check=True
        )
        assert found.stdout.strip() == expected


def test_the_base_and_its_digest_are_arguments() -> None:
    arguments = instructions("ARG")
    assert {"BASE_IMAGE=python:3.12-slim-trixie", "BASE_DIGEST="} <= set(arguments)
    assert instructions("FROM")[0] == "${BASE_IMAGE}${BASE_DIGEST:+@${BASE_DIGEST}} AS base"


@pytest.mark.parametrize(
    ("service", "probe"),
    [
        ("api", Probe("127.0.0.1", 8080, "/health/live")),
        ("worker", Probe("127.0.0.1", 9464, "/metrics")),
        ("service-worker", Probe("127.0.0.1", 9464, "/metrics")),
        ("triton-cpu", Probe("127.0.0.1", 8000, "/v2/health/ready")),
        ("migrate", None),
    ],
)
def test_the_health_check_asks_each_service_of_the_compose_file(service: str, probe: Probe | None) -> None:
    described = COMPOSE["services"][service]
    assert probe_of(described["command"][2:], described.get("environment", {})) == probe


def test_a_worker_without_a_known_port_is_not_asked() -> None:
    assert probe_of(["worker", "service"], {}) is None
    assert probe_of(["worker", "service"], {"LONGBATCH_METRICS__PORT": "0"}) is None
    assert probe_of([], {}) is None
    elsewhere = {"LONGBATCH_API__HOST": "10.0.0.7", "LONGBATCH_API__PORT": "81"}
    assert probe_of(["api"], elsewhere) == Probe("10.0.0.7", 81, "/health/live")


def test_the_command_is_found_behind_an_init(tmp_path: Path) -> None:
    commands = {1: "tini\0--\0sh", 7: "python\0-m\0worker\0service\0", 40: "python\0-m\0cli.alive\0"}
    for number, command in commands.items():
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / "cmdline").write_text(command)
    (tmp_path / "meminfo").touch()
    (tmp_path / "3").mkdir()  # it has ended
    assert container_command(tmp_path)[:2] == ["worker", "service"]


class OneStatus(BaseHTTPRequestHandler):
    """Answers the status that its path names."""

    def do_GET(self) -> None:
        self.send_response(int(self.path.removeprefix("/")))
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def port() -> Iterator[int]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), OneStatus)
    thread = Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def test_only_200_is_an_answer(port: int) -> None:
    assert answers(Probe("127.0.0.1", port, "/200"))
    assert not answers(Probe("127.0.0.1", port, "/503"))


def test_a_port_that_nobody_listens_on_is_none() -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), OneStatus)
    server.server_close()
    assert not answers(Probe("127.0.0.1", server.server_port, "/200"))


def test_the_check_imports_nothing_of_ours() -> None:
    code = "import sys, cli.alive; print(*{name.split('.')[0] for name in sys.modules})"
    loaded = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert not {"jobs", "api", "worker", "pydantic", "typer", "sqlalchemy"} & set(loaded.stdout.split())
