"""A process of ours may open as many files as its account allows."""

import json
import subprocess
import sys

import pytest

from api_server import REPOSITORY

RAISE = "from jobs import open_files; print(open_files.raise_limit(), open_files.limits())"
RAISE_FOR = (
    "from jobs import open_files, telemetry; telemetry.configure(); open_files.raise_for('api', needed={})"
)


def run(code: str, *, soft: int, hard: int) -> str:
    """What a Python prints that starts under these limits."""
    limited = f'ulimit -Sn {soft}; ulimit -Hn {hard}; exec "$@"'
    command = ["/bin/sh", "-c", limited, "sh", sys.executable, "-c", code]
    return subprocess.run(command, check=True, capture_output=True, text=True, cwd=REPOSITORY).stdout


def test_the_soft_limit_is_raised_to_the_hard_one() -> None:
    assert run(RAISE, soft=256, hard=2000) == "2000 (2000, 2000)\n"
    assert run(RAISE, soft=300, hard=300) == "300 (300, 300)\n"


@pytest.mark.parametrize(("needed", "is_logged"), [(936, False), (937, True)])
def test_a_limit_that_is_too_low_for_the_settings_is_logged(needed: int, *, is_logged: bool) -> None:
    logged = run(RAISE_FOR.format(needed), soft=256, hard=1000)
    assert bool(logged) == is_logged
    if is_logged:
        event = json.loads(logged)
        assert (event["event"], event["process"]) == ("open_files.limit_low", "api")
        assert (event["needed"], event["available"]) == (1001, 1000)
