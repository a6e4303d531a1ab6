"""What is installed from a wheel, away from the repository, has all that its commands read."""

import os
import re
import secrets
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest

from jobs.settings import DatabaseSettings

ROOT = Path(__file__).resolve().parents[3]
CODE = "longbatch_server/code"
PACKED = ("jobs", "worker", "api", "cli", "migrations", "triton", "server", "client")
NAMED = ("pyproject.toml", "README.md", "LICENSE", "NOTICE")


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Built of a copy, as `make wheel` does: a build leaves folders behind."""
    source, built = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("built")
    left_out = shutil.ignore_patterns("__pycache__", "*.egg-info", "build")
    for folder in PACKED:
        shutil.copytree(ROOT / folder, source / folder, symlinks=True, ignore=left_out)
    for name in NAMED:
        shutil.copy(ROOT / name, source)
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation"]
    places = ["-w", str(built), str(source / "client"), str(source)]
    subprocess.run([*command, *places], check=True, capture_output=True)
    return {each.name.partition("-")[0]: each for each in built.glob("*.whl")}


@pytest.fixture(scope="module")
def wheel(wheels: dict[str, Path]) -> Path:
    return wheels["longbatch_server"]


@pytest.fixture(scope="module")
def installed(wheels: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("installed")
    for wheel in wheels.values():
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(folder)
    return folder


def run(installed: Path, code: str, *arguments: object) -> str:
    """What this code says, run with the installed packages first."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    asked = subprocess.run(
        [sys.executable, "-P", "-c", code, *map(str, arguments)],
        cwd=installed.parent,
        env=environment | {"PYTHONPATH": str(installed)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert asked.returncode == 0, asked.stderr
    return asked.stdout


def names_in(wheel: Path) -> list[str]:
    with zipfile.ZipFile(wheel) as archive:
        return archive.namelist()


def test_each_wheel_has_one_package_and_no_file_of_the_other(wheels: dict[str, Path]) -> None:
    tops = {
        name: {each.partition("/")[0] for each in names_in(wheel)} - {f"{name}-0.2.0.dist-info"}
        for name, wheel in wheels.items()
    }
    assert tops == {"longbatch": {"longbatch"}, "longbatch_server": {"longbatch_server"}}


def test_the_client_requires_three_packages(wheels: dict[str, Path]) -> None:
    with zipfile.ZipFile(wheels["longbatch"]) as archive:
        (name,) = [each for each in archive.namelist() if each.endswith("/METADATA")]
        metadata = archive.read(name).decode()
    required = re.findall(r"(?m)^Requires-Dist: ([\w-]+)(?!.*extra)", metadata)
    assert sorted(required) == ["httpx2", "pydantic", "typer"]
    assert "Requires-Python: >=3.10" in metadata


def test_nothing_of_the_server_can_be_imported_by_its_short_name(installed: Path) -> None:
    code = """
import importlib.util as u
print([name for name in ("api", "cli", "jobs", "worker", "migrations", "triton") if u.find_spec(name)])
"""
    # Without the checkout, which a developer's environment has.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    asked = subprocess.run(
        [sys.executable, "-S", "-P", "-c", code],
        cwd=installed.parent,
        env=environment | {"PYTHONPATH": str(installed)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert asked.stdout == "[]\n"


def test_every_file_of_the_folder_triton_is_in_it_and_scripts_can_be_run(wheel: Path) -> None:
    files = {
        str(file.relative_to(ROOT)): file.stat().st_mode & 0o111
        for file in (ROOT / "triton").rglob("*")
        if file.is_file() and "__pycache__" not in file.parts
    }
    with zipfile.ZipFile(wheel) as archive:
        packed = {
            each.filename.removeprefix(f"{CODE}/cli/"): each.external_attr >> 16 & 0o111
            for each in archive.infolist()
            if each.filename.startswith(f"{CODE}/cli/triton/")
        }
    assert packed == files


def test_every_module_of_the_product_is_in_one_of_them(wheels: dict[str, Path]) -> None:
    modules = {
        f"{CODE}/{file.relative_to(ROOT)}" for folder in PACKED[:5] for file in (ROOT / folder).rglob("*.py")
    }
    modules |= {f"longbatch_server/{file.name}" for file in (ROOT / "server").glob("*.py")}
    assert sorted(modules - set(names_in(wheels["longbatch_server"]))) == []
    client = ROOT / "client"
    modules = {str(file.relative_to(client)) for file in (client / "longbatch").rglob("*.py")}
    assert sorted(modules - set(names_in(wheels["longbatch"]))) == []


def test_torch_still_finds_its_own_triton(installed: Path) -> None:
    code = "import importlib.util as u, longbatch_server, cli; print(cli.__file__, u.find_spec('triton'))"
    said = run(installed, code)
    assert said == f"{installed}/{CODE}/cli/__init__.py None\n"


def test_a_database_is_migrated_from_the_wheel(installed: Path, database_settings: DatabaseSettings) -> None:
    name = f"wheel_{secrets.token_hex(4)}"
    url = database_settings.url.get_secret_value()
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}".encode())
    environment = {"LONGBATCH_DATABASE__URL": urlunsplit(urlsplit(url)._replace(path=f"/{name}"))}
    code = f"import os; os.environ |= {environment!r}; from longbatch.cli import main; main()"
    try:
        with pytest.raises(AssertionError):
            run(installed, code, "migrate", "--check")
        assert run(installed, code, "migrate").startswith("The database is at ")
        assert run(installed, code, "migrate", "--check") == run(installed, code, "migrate")
    finally:
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())


def test_an_engine_is_planned_and_rendered(installed: Path, tmp_path: Path) -> None:
    longbatch = "from longbatch.cli import main; main()"
    assert "llama-3.1-8b-a6000" in run(installed, longbatch, "engine", "plan", "llama-3.1-8b-a6000")
    run(installed, longbatch, "engine", "render", "llama-3.1-8b-a6000", tmp_path / "rendered")
    assert (tmp_path / "rendered" / "worker.env").is_file()
    assert "--requests" in run(installed, longbatch, "bench", "engine", "--help")


def test_the_local_engines_models_are_there(installed: Path, tmp_path: Path) -> None:
    code = """
import sys, pathlib, longbatch_server
from cli.stack.servers.engine_options import EngineOptions
from cli.stack.servers.model_repository import render
render(EngineOptions(mode="synthetic"), 1, pathlib.Path(sys.argv[1]))
"""
    run(installed, code, tmp_path)
    modules = {file.name for file in (tmp_path / "models" / "tensorrt_llm" / "1").iterdir()}
    assert modules == {file.name for file in (ROOT / "triton/local/tensorrt_llm/1").glob("*.py")}
