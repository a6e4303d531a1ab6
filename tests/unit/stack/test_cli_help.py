"""Help texts show what their authors wrote, and the command says which release it is."""

import subprocess
import sys
from collections.abc import Iterator

import pytest
import typer
from typer.testing import CliRunner

from cli.main import application
from jobs.version import version


def helps(command: object, path: str = "longbatch") -> Iterator[tuple[str, str]]:
    for option in getattr(command, "params", ()):
        yield f"{path} {option.name}", getattr(option, "help", None) or ""
    for name, below in getattr(command, "commands", {}).items():
        yield from helps(below, f"{path} {name}")


@pytest.mark.parametrize(
    "text", [pytest.param(text, id=name) for name, text in helps(typer.main.get_command(application()))]
)
def test_no_help_text_names_its_default_by_hand(text: str) -> None:
    assert "[default" not in text, "it is taken for markup and not shown: use show_default"


def test_the_command_says_which_release_it_is() -> None:
    done = CliRunner().invoke(application(), ["--version"])
    assert (done.exit_code, done.stdout) == (0, f"longbatch {version()}\n")


def test_every_command_is_the_same_alone_as_among_all() -> None:
    every = typer.main.get_command(application())
    names = list(getattr(every, "commands", {}))
    assert len(names) == len(set(names)) > 15
    for name in names:
        alone = typer.main.get_command(application(name))
        assert name in getattr(alone, "commands", {})
        assert dict(helps(alone)).items() <= dict(helps(every)).items()
    unknown = typer.main.get_command(application("sumarize"))
    assert list(getattr(unknown, "commands", {})) == names


def test_commands_are_defined_without_an_import_of_the_database_or_the_tokenizer() -> None:
    names = [
        "up",
        "demo",
        "submit",
        "watch",
        "documents",
        "webhooks",
        "summarize",
        "estimate",
        "ask",
        "extract",
        "watch-folder",
    ]
    script = """
import sys
from cli.main import application
for name in sys.argv[1:]:
    application(name)
    heavy = {"sqlalchemy", "tokenizers", "numpy"} & sys.modules.keys()
    assert not heavy, (name, heavy)
"""
    subprocess.run([sys.executable, "-c", script, *names], check=True)
