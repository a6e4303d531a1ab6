"""What is installed from a wheel, away from the repository, has all that its commands read."""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PACKED = ("jobs", "worker", "api", "cli", "migrations", "triton")
NAMED = ("pyproject.toml", "README.md", "LICENSE", "NOTICE")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built of a copy: a build leaves folders behind."""
    source, built = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("built")
    for folder in PACKED:
        shutil.copytree(
            ROOT / folder, source / folder, symlinks=True, ignore=shutil.ignore_patterns("__pycache__")
        )
    for name in NAMED:
        shutil.copy(ROOT / name, source)
    subprocess.run(
        [
            sys.executable,
            "-m",
            "pip",
            "wheel",
            "-q",
            "--no-deps",
            "--no-build-isolation",
            "-w",
            built,
            source,
        ],
        check=True,
        capture_output=True,
    )
    (made,) = built.glob("*.whl")
    return made


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("installed")
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


def test_every_file_of_the_folder_triton_is_in_it_and_scripts_can_be_run(wheel: Path) -> None:
    files = {
        str(file.relative_to(ROOT)): file.stat().st_mode & 0o111
        for file in (ROOT / "triton").rglob("*")
        if file.is_file() and "__pycache__" not in file.parts
    }
    with zipfile.ZipFile(wheel) as archive:
        packed = {
            each.filename.removeprefix("cli/"): each.external_attr >> 16 & 0o111
            for each in archive.infolist()
            if each.filename.startswith("cli/triton/")
        }
    assert packed == files


def test_every_module_of_the_product_is_in_it(wheel: Path) -> None:
    modules = {
        str(file.relative_to(ROOT)) for folder in PACKED[:-1] for file in (ROOT / folder).rglob("*.py")
    }
    with zipfile.ZipFile(wheel) as archive:
        assert sorted(modules - {each.filename for each in archive.infolist()}) == []


def test_torch_still_finds_its_own_triton(installed: Path) -> None:
    assert not (installed / "triton").exists()
    said = run(
        installed,
        "import importlib.util as u, cli; print(cli.__file__); print(u.find_spec('triton'))",
    )
    assert str(installed) in said
    assert said.count(str(installed)) == 1
    assert str(ROOT) not in said


def test_an_engine_is_planned_and_rendered(installed: Path, tmp_path: Path) -> None:
    longbatch = "from cli.main import main; main()"
    assert "llama-3.1-8b-a6000" in run(installed, longbatch, "engine", "plan", "llama-3.1-8b-a6000")
    run(installed, longbatch, "engine", "render", "llama-3.1-8b-a6000", tmp_path / "rendered")
    assert (tmp_path / "rendered" / "worker.env").is_file()
    assert "--requests" in run(installed, longbatch, "bench", "engine", "--help")


def test_the_local_engines_models_are_there(installed: Path, tmp_path: Path) -> None:
    code = """
import sys, pathlib
from cli.stack.servers.engine_options import EngineOptions
from cli.stack.servers.model_repository import render
render(EngineOptions(mode="synthetic"), 1, pathlib.Path(sys.argv[1]))
"""
    run(installed, code, tmp_path)
    modules = {file.name for file in (tmp_path / "models" / "tensorrt_llm" / "1").iterdir()}
    assert modules == {file.name for file in (ROOT / "triton/local/tensorrt_llm/1").glob("*.py")}
