"""Help texts show what their authors wrote, and the command says which release it is."""

import subprocess
import sys
from collections.abc import Iterator

import pytest
from typer.testing import CliRunner

from cli.table import COMMANDS
from commands import whole_command
from jobs.version import version
from longbatch.cli.main import application
from longbatch.cli.table import CLIENT_COMMANDS, SERVER_COMMANDS


def helps(command: object, path: str = "longbatch") -> Iterator[tuple[str, str]]:
    for option in getattr(command, "params", ()):
        yield f"{path} {option.name}", getattr(option, "help", None) or ""
    for name, below in getattr(command, "commands", {}).items():
        yield from helps(below, f"{path} {name}")


@pytest.mark.parametrize("text", [pytest.param(text, id=name) for name, text in helps(whole_command())])
def test_no_help_text_names_its_default_by_hand(text: str) -> None:
    assert "[default" not in text, "it is taken for markup and not shown: use show_default"


def test_the_command_says_which_release_it_is() -> None:
    done = CliRunner().invoke(application(), ["--version"])
    assert (done.exit_code, done.stdout) == (0, f"longbatch {version()}, server {version()}\n")


def test_the_help_has_each_command_with_the_first_sentence_of_its_own_help() -> None:
    lines = {**CLIENT_COMMANDS, **SERVER_COMMANDS}
    for name, command in whole_command().commands.items():
        assert (command.help or "").startswith(lines[name].rstrip(".")), name
    shown = CliRunner().invoke(application(), ["--help"]).stdout
    assert all(f"  {name} " in shown for name in lines)


def test_the_server_has_exactly_the_commands_that_the_client_names() -> None:
    assert COMMANDS.keys() == SERVER_COMMANDS.keys()


def test_without_the_server_its_commands_tell_what_to_install() -> None:
    done = without_server("up")
    assert done.returncode == 2
    assert done.stderr == (
        "error: `longbatch up` is part of longbatch-server: pipx install 'longbatch-server[local]'\n"
    )
    assert "Server commands (pipx install" in without_server("--help").stdout


def without_server(*arguments: str) -> "subprocess.CompletedProcess[str]":
    """Run the command where no entry point adds any."""
    script = (
        "import importlib.metadata as m, sys; m.entry_points = lambda **_: [];"
        "from longbatch.cli import main; main()"
    )
    return subprocess.run(
        [sys.executable, "-c", script, *arguments], capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("arguments", [["--help"], ["--version"]])
def test_help_and_version_import_no_command_and_nothing_of_the_server(arguments: list[str]) -> None:
    script = """
import sys
from longbatch.cli import main
try:
    main()
except SystemExit:
    pass
heavy = {"httpx2", "pydantic", "sqlalchemy", "numpy", "rich.markdown", "longbatch.client", "jobs"}
heavy &= sys.modules.keys()
heavy |= {name for name in sys.modules if name.startswith("longbatch.cli.commands")}
assert not heavy, heavy
assert len(sys.modules) < 400, len(sys.modules)
"""
    subprocess.run([sys.executable, "-c", script, *arguments], check=True, capture_output=True)


def test_completion_of_a_name_imports_no_command() -> None:
    script = """
import os, sys
os.environ |= {"_LONGBATCH_COMPLETE": "complete_bash", "COMP_WORDS": "longbatch su", "COMP_CWORD": "1"}
from longbatch.cli import main
try:
    main()
except SystemExit:
    pass
assert not {name for name in sys.modules if name.startswith("longbatch.cli.commands.")}
"""
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    assert done.stdout.split() == ["summarize", "submit"]


def test_importing_the_package_loads_neither_the_client_nor_anything_of_the_server() -> None:
    script = """
import sys
import longbatch
assert not {"httpx2", "pydantic", "typer", "sqlalchemy", "numpy", "fastapi"} & sys.modules.keys()
from longbatch import Client
assert not {"typer", "rich", "pydantic", "sqlalchemy", "numpy", "fastapi"} & sys.modules.keys()
"""
    subprocess.run([sys.executable, "-c", script], check=True)
