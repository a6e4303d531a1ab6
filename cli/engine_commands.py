"""The verbs for engines: what a profile holds, and the files that are derived from it."""

import typer

app = typer.Typer(no_args_is_help=True, help="Plan, render and examine a TensorRT-LLM engine.")


def register(parent: typer.Typer) -> None:
    """The application has the verbs."""
    for name, verb in _VERBS.items():
        app.command(name)(verb)
    parent.add_typer(app, name="engine")


def plan() -> None:
    """Say what fits into the engine of a profile."""


def render() -> None:
    """Write everything that is derived from a profile."""


_VERBS = {"plan": plan, "render": render}
