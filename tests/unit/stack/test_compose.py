"""The compose file names only commands, settings and ports that exist in the code."""

import importlib.util
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from cli.stack.servers.valkey import CONFIG
from cli.triton_files import TRITON_FILES
from jobs.settings import ENV_PREFIX, Settings
from worker.engine.triton.server_flags import KEEPALIVE

ROOT = Path(__file__).resolve().parents[3]
OWN_SERVICES = ("migrate", "api", "worker", "service-worker", "triton-cpu", "engine-check")


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
    return loaded


def test_the_example_of_env_names_every_variable_that_the_compose_files_leave_open() -> None:
    open_files = (ROOT / "docker-compose.yml", TRITON_FILES / "templates" / "compose.override.yml")
    variables = {name for file in open_files for name in re.findall(r"\$\{(\w+)", file.read_text())}
    named = re.findall(r"^#?(\w+)=", (ROOT / ".env.example").read_text(), re.MULTILINE)
    assert sorted(named) == sorted(variables)


def test_the_profile_url_feeds_the_same_services_from_an_engine_of_the_environment(
    compose: dict[str, Any],
) -> None:
    services = compose["services"]
    always = {name for name, each in services.items() if "profiles" not in each}
    assert always == {"postgres", "valkey", "migrate", "api", "worker", "service-worker"}
    added = {name for name, each in services.items() if "url" in each.get("profiles", ())}
    assert added == {"engine-check"}
    assert services["engine-check"]["command"][2:] == ["cli", "engine", "inspect"]
    folder = "${LONGBATCH_TOKENIZER__PATH"
    for name in (*added, "api", "worker", "service-worker"):
        each = services[name]
        taken = {setting for setting, value in each["environment"].items() if value is None}
        assert {"LONGBATCH_ENGINE__URL", "LONGBATCH_ENGINE__API_KEY", "LONGBATCH_TOKENIZER__PATH"} <= taken
        assert each["extra_hosts"] == ["host.docker.internal:host-gateway"]
        assert each["volumes"] == [f"{folder}:-./triton}}:{folder}:-/tokenizer}}:ro"]


def test_triton_is_started_with_the_keepalive_flags_of_our_own_launches(compose: dict[str, Any]) -> None:
    assert set(KEEPALIVE) <= set(compose["services"]["triton"]["command"])


def test_valkey_has_the_settings_of_the_one_that_we_start(compose: dict[str, Any]) -> None:
    shell, option, script = compose["services"]["valkey"]["command"]
    assert (shell, option) == ("sh", "-c")
    *_, server = script.split("; ")
    words = shlex.split(server)
    assert words[:2] == ["exec", "valkey-server"]
    options = {name.removeprefix("--"): value for name, value in zip(words[3::2], words[4::2], strict=True)}
    lines = [shlex.split(line) for line in CONFIG.splitlines() if not line.startswith("#")]
    embedded = {name: value for name, value in lines if name not in {"bind", "port", "dir", "requirepass"}}
    assert options == embedded


@pytest.mark.parametrize("service", OWN_SERVICES)
def test_every_command_of_ours_is_a_module_that_exists(compose: dict[str, Any], service: str) -> None:
    python, flag, module, *_ = compose["services"][service]["command"]
    assert (python, flag) == ("python", "-m")
    assert importlib.util.find_spec(module) is not None
    if module in ("api", "worker"):
        assert importlib.util.find_spec(f"{module}.__main__") is not None


@pytest.mark.parametrize("service", OWN_SERVICES)
def test_every_setting_is_known(compose: dict[str, Any], service: str) -> None:
    for name in compose["services"][service].get("environment", {}):
        group, _, field = name.removeprefix(ENV_PREFIX).lower().partition("__")
        assert group in Settings.model_fields, name
        annotation = Settings.model_fields[group].annotation
        assert annotation is not None
        assert field in annotation.model_fields, name


def test_every_port_is_published_on_loopback_only(compose: dict[str, Any]) -> None:
    published = [port for each in compose["services"].values() for port in each.get("ports", [])]
    assert published
    assert all(port.startswith("127.0.0.1:") for port in published)


def test_the_ports_that_settings_name_are_the_ports_that_services_listen_on(compose: dict[str, Any]) -> None:
    services = compose["services"]
    api = services["api"]
    assert api["ports"] == [f"127.0.0.1:8080:{api['environment']['LONGBATCH_API__PORT']}"]
    engine = services["triton-cpu"]["command"]
    listening = {engine[engine.index(f"--{name}-port") + 1] for name in ("grpc", "http", "metrics")}
    worker = services["worker"]["environment"]
    named = {
        worker["LONGBATCH_TRITON__URL"].rpartition(":")[2],
        worker["LONGBATCH_TRITON__HTTP_URL"].rpartition(":")[2],
        worker["LONGBATCH_TRITON__METRICS_URL"].rpartition(":")[2].partition("/")[0],
    }
    assert listening == named


def test_images_copy_packages_by_name_and_never_the_folder_that_would_shadow_torch_s() -> None:
    dockerfile = (Path(__file__).resolve().parents[3] / "Dockerfile").read_text()
    copied = [line.split()[1:-1] for line in dockerfile.splitlines() if line.startswith("COPY")]
    sources = {source for each in copied for source in each}
    assert "." not in sources
    assert "triton" not in sources


@pytest.mark.parametrize("service", ["api", "worker", "service-worker", "postgres", "valkey", "triton"])
def test_long_running_services_restart_and_have_health_checks(compose: dict[str, Any], service: str) -> None:
    found = compose["services"][service]
    assert found["restart"] == "unless-stopped"
    assert "healthcheck" in found


def test_an_installed_longbatch_does_not_make_the_folder_triton_importable(repository: Path) -> None:
    assert not list((repository / "triton").rglob("__init__.py"))
    look = "import importlib.util as u; spec = u.find_spec('triton'); print(spec)"
    found = subprocess.run(
        [sys.executable, "-I", "-c", look], cwd="/", capture_output=True, text=True, check=True
    ).stdout
    assert str(repository) not in found
