"""A forked program behaves as one that is started: its output, its exit code, its signals, its end."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import zygote
from support import PATIENCE, eventually

# No server has to be there yet.
ENVIRONMENT = {
    "LONGBATCH_DATABASE__URL": "postgresql://nobody@127.0.0.1:1/none",
    "LONGBATCH_BROKER__URL": "redis://127.0.0.1:1/0",
    "LONGBATCH_API__PORT": "0",
}


def started(log: Path, **variables: str) -> zygote.ForkedProcess:
    with log.open("ab") as output:
        return zygote.start(zygote.API, env=ENVIRONMENT | variables, cwd=log.parent, stdout=output)


def test_its_exit_code_and_output_are_those_of_the_program(tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert started(log, LONGBATCH_API__PORT="no number").wait(PATIENCE) == 2
    assert log.read_text().startswith("settings: api.port: ")


def test_it_gets_signals_and_ends_by_them(tmp_path: Path) -> None:
    asked, killed = (started(tmp_path / name) for name in ("asked", "killed"))
    for name in ("asked", "killed"):
        eventually(lambda: '"api.ready"' in (tmp_path / name).read_text())  # noqa: B023
    assert (asked.poll(), killed.poll()) == (None, None)
    with pytest.raises(subprocess.TimeoutExpired):
        asked.wait(0.01)
    asked.terminate()
    killed.kill()
    assert (asked.wait(PATIENCE), killed.wait(PATIENCE)) == (0, -signal.SIGKILL)
    assert (asked.poll(), killed.poll()) == (0, -signal.SIGKILL)


def test_it_has_the_folder_and_the_session_that_were_asked_for(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with log.open("ab") as output:
        process = zygote.start(
            zygote.API,
            env=ENVIRONMENT,
            cwd=tmp_path,
            stdout=output,
            start_new_session=True,
        )
    proc = Path(f"/proc/{process.pid}")
    eventually(lambda: '"api.ready"' in log.read_text())
    assert (proc / "cwd").readlink() == tmp_path
    assert os.getsid(process.pid) == process.pid != os.getsid(0)
    process.kill()
    process.wait(PATIENCE)


def test_it_ends_with_the_process_that_asked_for_it(tmp_path: Path) -> None:
    log = tmp_path / "log"
    code = (
        f"import pathlib, signal, zygote; log = pathlib.Path('log').open('ab'); env = {ENVIRONMENT!r};"
        "print(zygote.start(zygote.API, env=env, cwd=pathlib.Path(), stdout=log).pid, flush=True);"
        "signal.pause()"
    )
    asking = subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(Path(zygote.__file__).parent)},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert asking.stdout is not None
    with asking.stdout:
        pid = int(asking.stdout.readline())
    eventually(lambda: '"api.ready"' in log.read_text())
    asking.kill()
    asking.wait()
    eventually(lambda: not Path(f"/proc/{pid}").exists())
