"""Tests that run in lanes are reported as if one process had run them, whatever ends a lane."""

import os
import subprocess
import sys
from pathlib import Path

SUPPORT = Path(__file__).resolve().parents[2] / "support"
CONFTEST = """
import os, pathlib, pytest, lanes

def pytest_addoption(parser):
    lanes.add_option(parser)

def pytest_configure(config):
    lanes.register(config)

@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item, nextitem):
    yield
    if not isinstance(nextitem, pytest.Function):
        (item.path.parent / "last").open("a").write(item.name + " ")

@pytest.fixture(scope="session")
def server():
    place = pathlib.Path(__file__).parent / f"server-{os.getpid()}"
    place.write_text("runs")
    yield place
    place.write_text("stopped")
"""
FILES = {
    "test_a.py": """
def test_one(server): assert server.read_text() == "runs"
def test_two(server): assert server.read_text() == "not this", "a reason"
""",
    "test_b.py": """
import os, signal
def test_before(): pass
def test_that_dies(): os.kill(os.getpid(), signal.SIGKILL)
def test_after(server): assert server.read_text() == "runs"
""",
    "test_c.py": """
import pytest, warnings
@pytest.fixture
def broken(): raise OSError("no disk")
def test_warns(): warnings.warn("look out")
def test_error(broken): pass
@pytest.mark.skip
def test_skipped(): pass
@pytest.mark.xfail
def test_xfail(tmp_path): assert not tmp_path.is_dir()
def test_prints(capfd, server):
    print("hidden")
    assert capfd.readouterr().out == "hidden\\n"
""",
}


def pytest_in(folder: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(SUPPORT)},
        capture_output=True,
        text=True,
        check=False,
    )


def write(folder: Path) -> None:
    (folder / "pytest.ini").write_text("[pytest]\n")
    (folder / "conftest.py").write_text(CONFTEST)
    for name, text in FILES.items():
        (folder / name).write_text(text)


def test_all_outcomes_arrive_also_from_lanes_that_die(tmp_path: Path) -> None:
    write(tmp_path)
    ended = pytest_in(tmp_path, "--lanes", "2")
    last = ended.stdout.strip().splitlines()[-1]
    assert "2 failed, 5 passed, 1 skipped, 1 xfailed, 1 warning, 1 error" in last, ended.stdout + ended.stderr
    assert ended.returncode == 1
    assert "AssertionError: a reason" in ended.stdout
    assert "the process of the test ended: SIGKILL" in ended.stdout
    assert "UserWarning: look out" in ended.stdout
    assert "hidden" not in ended.stdout
    assert "runs" not in {each.read_text() for each in tmp_path.glob("server-*")}, "fixtures are torn down"


def test_hooks_see_the_test_that_follows_in_another_file(tmp_path: Path) -> None:
    write(tmp_path)
    (tmp_path / "test_b.py").unlink()
    pytest_in(tmp_path, "--lanes", "1")
    assert (tmp_path / "last").read_text() == "test_prints "


def test_the_first_failure_ends_the_run_if_that_is_asked_for(tmp_path: Path) -> None:
    write(tmp_path)
    ended = pytest_in(tmp_path, "--lanes", "1", "--exitfirst")
    assert "1 failed, 1 passed" in ended.stdout.strip().splitlines()[-1], ended.stdout + ended.stderr
    assert {each.read_text() for each in tmp_path.glob("server-*")} == {"stopped"}
