"""`longbatch service`: run `longbatch up` as a systemd service."""

import os
import pwd
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Annotated, Final

import typer

from cli.commands import up as up_command
from cli.systemd_unit import NAME, SYSTEM_UNITS, Unit, user_units
from longbatch.cli.output import notes, print_error, print_text

_PREFIX: Final = "LONGBATCH_"
_EXIT_FAILED: Final = 1

app = typer.Typer(no_args_is_help=True, help="Run `longbatch up` as a systemd service.")

OfSystem = Annotated[
    bool, typer.Option("--system", help="A service of the system instead of your own; needs root.")
]


def register(parent: typer.Typer) -> None:
    """Add the commands to the application."""
    parent.add_typer(app, name="service")


@app.command()
def install(
    up_options: Annotated[
        list[str] | None,
        typer.Argument(metavar="[-- UP OPTIONS]", help="Options of `longbatch up`, after --."),
    ] = None,
    *,
    system: OfSystem = False,
    user: Annotated[str | None, typer.Option("--user", help="With --system: who runs it.")] = None,
    only_print: Annotated[
        bool, typer.Option("--print", help="Print the unit; write and start nothing.")
    ] = False,
) -> None:
    """Write a unit for `longbatch up`, enable it and start it; an earlier one is replaced."""
    if system != (user is not None):
        raise typer.BadParameter("--system needs --user NAME, and --user needs --system.")
    options = up_options or []
    _check_options(options)
    unit = Unit([*_program(), "up", *options], user)
    if only_print:
        print_text(unit.text())
        return
    if user is not None:
        _check_user(user)
    file = _write(unit.text(), system=system)
    print_text(f"Wrote {file}.")
    given = sorted(name for name in os.environ if name.startswith(_PREFIX))
    settings = unit.settings_file.replace("%E", str(user_units(os.environ).parents[1]))
    if given:
        notes.print(f"The service does not see {', '.join(given)} of this shell: put them into {settings}.")
    if not _systemctl(["daemon-reload"], ["enable", NAME], ["restart", NAME], system=system):
        return
    print_text(f"Enabled and started {NAME}; its log: {_journal(system=system)}")
    if not system:
        notes.print("It runs while you are signed in; `loginctl enable-linger` lets it start at boot.")


@app.command()
def uninstall(*, system: OfSystem = False) -> None:
    """Stop and disable the service, and delete its unit; data and settings stay."""
    file = _installed(system=system)
    _systemctl(["disable", "--now", NAME], system=system)
    try:
        file.unlink()
    except OSError as error:
        raise _failed(f"cannot delete {file}: {error.strerror}") from error
    _systemctl(["daemon-reload"], system=system)
    print_text(f"Deleted {file}; the data stays.")


@app.command()
def status(*, system: OfSystem = False) -> None:
    """Show the service's state, as `systemctl status` does, with its exit code."""
    _installed(system=system)
    if (program := shutil.which("systemctl")) is None:
        raise _failed("there is no systemctl on this machine")
    command = [program, *_scope(system=system), "status", "--no-pager", NAME]
    raise typer.Exit(subprocess.run(command, check=False).returncode)


def _check_options(options: list[str]) -> None:
    """Parse the options as `longbatch up` will, which runs nothing.

    Raises:
        UsageError: they are wrong, or a path depends on the current directory.
    """
    parent = typer.Typer()
    up_command.register(parent)
    context = typer.main.get_command(parent).make_context("longbatch up", [*options])
    for name, value in context.params.items():
        for each in value if isinstance(value, list) else [value]:
            if isinstance(each, Path) and not each.is_absolute():
                hint = f"--{name.replace('_', '-')}"
                raise typer.BadParameter(f"{each} must be an absolute path in a service.", param_hint=hint)


def _check_user(user: str) -> None:
    try:
        pwd.getpwnam(user)
    except KeyError as error:
        advice = f"there is no user {user}: `useradd --system --create-home {user}` creates one"
        raise typer.BadParameter(advice, param_hint="--user") from error


def _program() -> list[str]:
    """Return how to start this installation's `longbatch`."""
    script = Path(sys.executable).with_name("longbatch")
    return [str(script)] if script.exists() else [sys.executable, "-P", "-m", "longbatch.cli"]


def _folder(*, system: bool) -> Path:
    return SYSTEM_UNITS if system else user_units(os.environ)


def _write(text: str, *, system: bool) -> Path:
    file = _folder(system=system) / NAME
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    except OSError as error:
        raise _failed(f"cannot write {file}: {error.strerror}") from error
    return file


def _installed(*, system: bool) -> Path:
    file = _folder(system=system) / NAME
    if not file.exists():
        raise _failed(f"there is no {file}: `longbatch service install` writes it")
    return file


def _systemctl(*commands: list[str], system: bool) -> bool:
    """Run these commands of systemctl; return False if there is none, having said what to run."""
    scope = _scope(system=system)
    program = shutil.which("systemctl")
    if program is None:
        left = "; ".join(shlex.join(["systemctl", *scope, *each]) for each in commands)
        notes.print(f"There is no systemctl here. Run: {left}")
        return False
    for each in commands:
        done = subprocess.run([program, *scope, *each], capture_output=True, text=True, check=False)
        if done.returncode:
            command = shlex.join(["systemctl", *scope, *each])
            raise _failed(f"`{command}` failed: {' '.join((done.stderr or done.stdout).split())}")
    return True


def _scope(*, system: bool) -> list[str]:
    return [] if system else ["--user"]


def _journal(*, system: bool) -> str:
    return shlex.join(["journalctl", *_scope(system=system), "--unit", NAME])


def _failed(message: str) -> typer.Exit:
    print_error(message)
    return typer.Exit(_EXIT_FAILED)
