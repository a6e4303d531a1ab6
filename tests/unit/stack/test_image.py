"""The health check of the images asks the process that runs."""

import ssl
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from pytest_httpserver import HTTPServer

from cli.alive import Probe, answers, container_command, probe_of
from cli.stack.ports import free_port
from tls_support import make_pair

ROOT = Path(__file__).resolve().parents[3]
COMPOSE = yaml.safe_load((ROOT / "docker-compose.yml").read_text())


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
    secured = elsewhere | {"LONGBATCH_API__TLS_CERTIFICATE": "/tls/tls.crt"}
    assert probe_of(["api"], secured) == Probe("10.0.0.7", 81, "/health/live", is_tls=True)


def test_the_command_is_found_behind_an_init(tmp_path: Path) -> None:
    commands = {1: "tini\0--\0sh", 7: "python\0-m\0worker\0service\0", 40: "python\0-m\0cli.alive\0"}
    for number, command in commands.items():
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / "cmdline").write_text(command)
    (tmp_path / "meminfo").touch()
    (tmp_path / "3").mkdir()  # it has ended
    assert container_command(tmp_path)[:2] == ["worker", "service"]


def test_triton_is_asked_once_its_launcher_has_become_it(tmp_path: Path) -> None:
    commands = {1: "/opt/x/tritonserver\0--http-port=8010\0", 40: "python\0-m\0cli.alive\0"}
    for number, command in commands.items():
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / "cmdline").write_text(command)
    assert probe_of(container_command(tmp_path), {}) == Probe("127.0.0.1", 8010, "/v2/health/ready")


def test_an_image_tells_the_release_that_it_was_built_as(tmp_path: Path) -> None:
    assert "ENV LONGBATCH_VERSION=${VERSION}" in (ROOT / "Dockerfile").read_text().splitlines()
    told = "from version import version; print(version())"
    (tmp_path / "version.py").write_text((ROOT / "jobs" / "version.py").read_text())
    for given, expected in (("1.2.3", "1.2.3"), ("", "0+source")):
        # Without the folder of installed packages: in the image Longbatch is none of them.
        python = [sys.executable, "-S", "-c", told]
        found = subprocess.run(
            python, cwd=tmp_path, env={"LONGBATCH_VERSION": given}, capture_output=True, text=True, check=True
        )
        assert found.stdout.strip() == expected


def test_only_200_is_an_answer(httpserver: HTTPServer) -> None:
    for status in (200, 503):
        httpserver.expect_request(f"/{status}").respond_with_data(status=status)
    assert answers(Probe(httpserver.host, httpserver.port, "/200"))
    assert not answers(Probe(httpserver.host, httpserver.port, "/503"))


def test_a_port_that_nobody_listens_on_is_none() -> None:
    assert not answers(Probe("127.0.0.1", free_port(), "/200"))


def test_the_check_imports_nothing_of_ours() -> None:
    code = "import sys, cli.alive; print(*{name.split('.')[0] for name in sys.modules})"
    loaded = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert not {"jobs", "api", "worker", "pydantic", "typer", "sqlalchemy"} & set(loaded.stdout.split())


def test_a_process_that_speaks_tls_is_asked_over_tls(tmp_path: Path) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*make_pair(tmp_path, "box.example.com"))
    with HTTPServer(host="127.0.0.1", ssl_context=context) as server:
        server.expect_request("/200").respond_with_data("")
        assert answers(Probe(server.host, server.port, "/200", is_tls=True))
        assert not answers(Probe(server.host, server.port, "/200"))
