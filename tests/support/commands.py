"""The command `longbatch` with all of its commands loaded, to look at them."""

from functools import cache
from typing import Any

import typer

from longbatch.cli.main import Commands, application


@cache
def whole_command() -> Any:  # noqa: ANN401  # of a class that Typer keeps to itself
    """Load every command, as running it would."""
    group = typer.main.get_group(application())
    assert isinstance(group, Commands)
    for name in [*group.commands]:
        group.commands[name] = group.load(name)
    return group
