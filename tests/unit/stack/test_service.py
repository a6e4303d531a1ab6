"""`longbatch service`: the unit that systemd reads, and what happens to it."""

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cli.systemd_unit import Unit, quoted

_LONGBATCH = (sys.executable, "-P", "-c", "from longbatch.cli import main; main()")
# What systemctl does on a machine with systemd is systemd's: this one writes down what it was asked.
_SYSTEMCTL = '#!/bin/sh\necho "$@" >> "$SYSTEMCTL_LOG"\nexit ${SYSTEMCTL_STATUS:-0}\n'


def sections(text: str) -> dict[str, dict[str, str]]:
    """The assignments of a unit by section; each name is there once."""
    found: dict[str, dict[str, str]] = {}
    current: dict[str, str] = {}
    for line in text.splitlines():
        if line.startswith("["):
            current = found.setdefault(line.strip("[]"), {})
        elif line:
            name, mark, value = line.partition("=")
            assert mark, line
            assert name not in current, line
            current[name] = value
    return found


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """A home with a systemctl in it."""
    (tmp_path / "bin").mkdir()
    systemctl = tmp_path / "bin" / "systemctl"
    systemctl.write_text(_SYSTEMCTL)
    systemctl.chmod(0o755)
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("LONGBATCH_")}
    return {
        **inherited,
        "XDG_CONFIG_HOME": str(tmp_path / "config"),
        "SYSTEMCTL_LOG": str(tmp_path / "log"),
        "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}",
    }


def service(environment: dict[str, str], *arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [*_LONGBATCH, "service", *arguments],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def test_a_service_is_installed_replaced_shown_and_removed(
    environment: dict[str, str], tmp_path: Path
) -> None:
    unit, log = tmp_path / "config/systemd/user/longbatch.service", tmp_path / "log"
    done = service(environment | {"LONGBATCH_ENGINE__URL": "http://127.0.0.1:8000"}, "install")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"Wrote {unit}.\nEnabled and started longbatch.service")
    assert f"LONGBATCH_ENGINE__URL of this shell: put them into {tmp_path}/config/longbatch" in done.stderr
    asked = ["--user daemon-reload", "--user enable longbatch.service", "--user restart longbatch.service"]
    assert log.read_text().splitlines() == asked
    assert service(environment, "install", "--", "--port", "8081").returncode == 0
    assert sections(unit.read_text())["Service"]["ExecStart"].endswith("longbatch up --port 8081")
    assert service(environment | {"SYSTEMCTL_STATUS": "3"}, "status").returncode == 3
    done = service(environment, "uninstall")
    assert (done.returncode, unit.exists()) == (0, False)
    assert "--user disable --now longbatch.service" in log.read_text()
    assert service(environment, "status").returncode == service(environment, "uninstall").returncode == 1


def test_print_writes_and_starts_nothing(environment: dict[str, str], tmp_path: Path) -> None:
    done = service(environment, "install", "--print", "--system", "--user", "nobody-yet")
    assert done.returncode == 0, done.stderr
    assert sections(done.stdout)["Service"]["User"] == "nobody-yet"
    assert not (tmp_path / "config").exists()
    assert not (tmp_path / "log").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--", "--prot", "8080"], "No such option: --prot"),
        (["--", "--tls-key", "key.pem"], "key.pem must be an absolute path"),
        (["--system"], "--system needs --user NAME"),
        (["--user", "root"], "--user needs --system"),
        (["--system", "--user", "no-such-user"], "there is no user no-such-user"),
    ],
)
def test_what_could_not_run_is_refused(
    environment: dict[str, str], tmp_path: Path, arguments: list[str], words: str
) -> None:
    done = service(environment, "install", *arguments)
    assert done.returncode == 2
    assert words in " ".join(done.stderr.replace("│", " ").split())
    assert not (tmp_path / "log").exists()


def test_a_failure_of_systemctl_and_its_absence_are_told(environment: dict[str, str], tmp_path: Path) -> None:
    done = service(environment | {"SYSTEMCTL_STATUS": "1"}, "install")
    assert done.returncode == 1
    assert "`systemctl --user daemon-reload` failed" in done.stderr
    done = service(environment | {"PATH": str(tmp_path)}, "install")
    assert done.returncode == 0
    assert "There is no systemctl here. Run: systemctl --user daemon-reload; systemctl --user" in done.stderr


@pytest.mark.parametrize("user", [None, "root"])
def test_systemd_accepts_the_unit(tmp_path: Path, user: str | None) -> None:
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("this machine has no systemd-analyze")
    file = tmp_path / "longbatch.service"
    awkward = ["--data-dir", '/srv/a "b" $c %d \\e']
    file.write_text(Unit([sys.executable, "up", *awkward], user).text())
    done = subprocess.run([analyze, "verify", str(file)], capture_output=True, text=True, check=False)
    about_it = [line for line in done.stderr.splitlines() if "longbatch" in line]
    assert (done.returncode, about_it) == (0, [])


def test_the_unit_stops_the_stack_in_order_and_starts_it_again() -> None:
    for user in (None, "longbatch"):
        found = sections(Unit(["/opt/longbatch/bin/longbatch", "up"], user).text())
        part = found["Service"]
        assert (part["KillMode"], part["KillSignal"], part["Restart"]) == ("mixed", "SIGTERM", "on-failure")
        assert int(part["TimeoutStopSec"]) > 10  # what `up` takes at most
        assert part["NoNewPrivileges"] == "yes"
        assert found.keys() == {"Unit", "Service", "Install"}
        assert found["Unit"]["StartLimitIntervalSec"] == "0", "however long the engine loads"
    assert part["ProtectSystem"] == "full"
    assert "LONGBATCH_WEBHOOKS__ALLOWED_HOSTS=[]" in part["Environment"].split()
    assert part["EnvironmentFile"] == "-/etc/longbatch/longbatch.env"


@given(argument=st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E), min_size=1))
def test_an_argument_is_read_back_as_it_was(argument: str) -> None:
    """By a shell's rules, which these quotes share, once the doubled signs are single again."""
    (read,) = shlex.split(quoted(argument))
    assert read.replace("%%", "%").replace("$$", "$") == argument
