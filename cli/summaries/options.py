"""What the verbs that summarize are told, and what of it the server is sent."""

import hashlib
import json
from collections.abc import Sequence
from enum import StrEnum
from typing import Annotated, Final

import typer

from cli.output import Priority
from jobs.states.summary import OnGap, Style

__all__ = ["OnGap", "Priority", "Style"]


class Format(StrEnum):
    """How summaries are printed or written."""

    MD = "md"
    JSON = "json"
    CSV = "csv"


# The server's own defaults hold for whatever is not given.
StyleOption = Annotated[Style | None, typer.Option("--style", help="Form of the summary.")]
LengthOption = Annotated[
    int | None,
    typer.Option(
        "--length",
        min=16,
        max=8192,
        help="Tokens that the summary should have, roughly.",
        show_default="400",
    ),
]
LanguageOption = Annotated[
    str | None, typer.Option("--language", help="Of the summary.", show_default="the document's")
]
FocusOption = Annotated[str | None, typer.Option("--focus", help="What to look for above all.")]
InstructionsOption = Annotated[str | None, typer.Option("--instructions", help="More for the model to heed.")]
OnGapOption = Annotated[
    OnGap | None, typer.Option("--on-gap", help="A part fails: leave it out and name it, or fail.")
]
ChunkOption = Annotated[
    int | None,
    typer.Option(
        "--chunk-tokens",
        min=64,
        max=131_072,
        help="Tokens of a part of a long document.",
        show_default="what suits the engine",
    ),
]
OverlapOption = Annotated[
    int | None, typer.Option("--overlap-tokens", min=0, help="Tokens that neighbours have in common.")
]
ModelOption = Annotated[
    str | None, typer.Option("--model", help="Which reads.", show_default="the one served")
]
PriorityOption = Annotated[
    Priority | None, typer.Option("--priority", help="Among your own.", show_default="normal")
]
FormatOption = Annotated[Format, typer.Option("--format", help="What is printed or written.")]
ConcurrencyOption = Annotated[
    int, typer.Option("--concurrency", min=1, max=64, help="Documents at the server at once.")
]
DEFAULT_CONCURRENCY: Final = 16  # four times a batch of 4: packing has something to choose from

# What changes when and how a summary is made, but not what it says.
_NOT_OF_THE_RESULT: Final = frozenset({"priority"})


def request(**given: object) -> dict[str, object]:
    """The fields of a request for summaries that were given, in the order of their names."""
    return {
        name: str(value) if isinstance(value, StrEnum) else value
        for name, value in sorted(given.items())
        if value is not None
    }


def digest(contents: Sequence[str], fields: dict[str, object], *, model: str) -> str:
    """The same for the same files (by their SHA-256), options and served model; names a run."""
    kept = {name: value for name, value in fields.items() if name not in _NOT_OF_THE_RESULT}
    whole = json.dumps([1, contents, kept, model], sort_keys=True, ensure_ascii=True)
    return "cli-" + hashlib.sha256(whole.encode()).hexdigest()[:40]
