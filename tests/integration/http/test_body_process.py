"""The process that parses long bodies: it is forked before the API serves, and ends with the API."""

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from sqlalchemy import Engine

from api_server import ApiProcess, Serve
from cli.stack.servers.valkey import EmbeddedValkey
from jobs.settings import DatabaseSettings
from support import eventually

LONG = {"input": "long " * 100_000}


def child_of(process: ApiProcess) -> int:
    """The process that parses long bodies; a replacement of it comes with a helper that tracks semaphores."""
    pid = process.process.pid
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    (found,) = (int(child) for child in children if "resource_tracker" not in _command_of(child))
    return found


def _command_of(pid: str) -> str:
    return Path(f"/proc/{pid}/cmdline").read_text()


def has_ended(pid: int) -> bool:
    try:
        return "\nState:\tZ" in Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return True


def replaced_child_of(process: ApiProcess) -> int:
    with process.client() as http:
        killed = child_of(process)
        os.kill(killed, signal.SIGKILL)
        eventually(lambda: has_ended(killed))
        eventually(lambda: http.post("/v1/jobs", json=LONG).status_code == 202)
    return child_of(process)


def test_it_runs_once_the_api_is_ready_and_shares_its_memory(serve: Serve) -> None:
    with serve() as process:
        rollup = Path(f"/proc/{child_of(process)}/smaps_rollup").read_text().splitlines()
    kilobytes = {line.split(":")[0]: int(line.split()[1]) for line in rollup[1:]}
    own = kilobytes["Private_Clean"] + kilobytes["Private_Dirty"]
    assert own < kilobytes["Rss"] / 2


def test_signals_to_the_whole_group_leave_it_to_the_api_which_ends_it(serve: Serve) -> None:
    with serve() as process, process.client() as http:
        child = child_of(process)
        for number in (signal.SIGINT, signal.SIGTERM):
            os.kill(child, number)
        assert http.post("/v1/jobs", json=LONG).status_code == 202
        assert child_of(process) == child
    assert process.process.returncode == 0
    assert has_ended(child)


@pytest.mark.parametrize("find", [child_of, replaced_child_of])
def test_it_dies_with_a_killed_api(
    engine: Engine,  # noqa: ARG001  # the database is migrated
    database_settings: DatabaseSettings,
    valkey: EmbeddedValkey,
    find: Callable[[ApiProcess], int],
) -> None:
    process = ApiProcess(database_settings, valkey.url)
    child = find(process)
    process.process.kill()
    process.stop()
    eventually(lambda: has_ended(child))


def test_long_bodies_go_to_a_new_one_once_it_died(serve: Serve) -> None:
    with serve() as process, process.client() as http:
        child = child_of(process)
        assert replaced_child_of(process) != child
        assert http.post("/v1/jobs", json=LONG).status_code == 202
