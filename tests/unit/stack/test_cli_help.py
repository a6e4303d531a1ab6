"""Help texts show what their authors wrote, and the command says which release it is."""

from collections.abc import Iterator

import pytest
import typer
from typer.testing import CliRunner

from cli.main import app
from jobs.version import version


def helps(command: object, path: str = "longbatch") -> Iterator[tuple[str, str]]:
    for option in getattr(command, "params", ()):
        yield f"{path} {option.name}", getattr(option, "help", None) or ""
    for name, below in getattr(command, "commands", {}).items():
        yield from helps(below, f"{path} {name}")


@pytest.mark.parametrize(
    "text", [pytest.param(text, id=name) for name, text in helps(typer.main.get_command(app))]
)
def test_no_help_text_names_its_default_by_hand(text: str) -> None:
    assert "[default" not in text, "it is taken for markup and not shown: use show_default"


def test_the_command_says_which_release_it_is() -> None:
    done = CliRunner().invoke(app, ["--version"])
    assert (done.exit_code, done.stdout) == (0, f"longbatch {version()}\n")
