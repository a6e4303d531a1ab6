"""The options of the commands that summarize, and the request fields made of them."""

import functools
import inspect
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Annotated, Final

import typer

from longbatch.cli.result_files import Format
from longbatch.cli.templates import read_template
from longbatch.options import Attachments, OnGap, Priority, Style
from longbatch.runs import DEFAULT_CONCURRENCY

__all__ = ["DEFAULT_CONCURRENCY", "Format"]

FormatOption = Annotated[Format, typer.Option("--format", help="Output format.")]
ConcurrencyOption = Annotated[
    int, typer.Option("--concurrency", min=1, max=64, help="Documents to process at once.")
]
ModelOption = Annotated[
    str | None, typer.Option("--model", help="Model to use.", show_default="the one served")
]
PriorityOption = Annotated[
    Priority | None,
    typer.Option("--priority", help="Priority among your own jobs.", show_default="normal"),
]
TemplateOption = Annotated[
    Path | None,
    typer.Option(
        "--template",
        metavar="FILE",
        help="Your own words for what is asked, a TOML file of whole, map and reduce.",
        show_default="the product's own",
    ),
]
EncodingOption = Annotated[
    str | None,
    typer.Option(
        "--encoding",
        help="Encoding of the texts among the documents, such as shift_jis.",
        show_default="detected for each",
    ),
]
AttachmentsOption = Annotated[
    Attachments | None,
    typer.Option(
        "--attachments",
        help="Read files attached to documents as documents of their own, or only name them in a warning.",
        show_default="read",
    ),
]
FollowLinksOption = Annotated[
    bool,
    typer.Option(
        "--follow-links",
        help="Read what symbolic links in a folder lead to outside of it; they are skipped otherwise.",
    ),
]

# The server's own defaults apply to options that are not given.
_FIELDS: Final[Mapping[str, object]] = {
    "style": Annotated[Style | None, typer.Option("--style", help="Form of the summary.")],
    "length": Annotated[
        int | None,
        typer.Option(
            "--length",
            min=16,
            max=8192,
            help="Approximate length of the summary in tokens.",
            show_default="400",
        ),
    ],
    "language": Annotated[
        str | None, typer.Option("--language", help="Language of the summary.", show_default="the document's")
    ],
    "focus": Annotated[str | None, typer.Option("--focus", help="What to concentrate on.")],
    "instructions": Annotated[
        str | None, typer.Option("--instructions", help="Further instructions for the model.")
    ],
    "on_gap": Annotated[
        OnGap | None, typer.Option("--on-gap", help="If a part fails: leave it out and list it, or fail.")
    ],
    "chunk_tokens": Annotated[
        int | None,
        typer.Option(
            "--chunk-tokens",
            min=64,
            max=131_072,
            help="Chunk size in tokens for long documents.",
            show_default="to suit the engine",
        ),
    ],
    "overlap_tokens": Annotated[
        int | None, typer.Option("--overlap-tokens", min=0, help="Tokens that neighbouring chunks share.")
    ],
    "template": TemplateOption,
    "attachments": AttachmentsOption,
    "encoding": EncodingOption,
    "model": ModelOption,
    "priority": PriorityOption,
}


def with_fields(*, left_out: Collection[str] = ()) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command an option for each field of a summary request, in place of its parameter `fields`.

    Args:
        left_out: fields that the command has no option for.
    """
    names = [name for name in _FIELDS if name not in left_out]

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(command)
        def run(**given: object) -> None:
            command(fields=request(**{name: given.pop(name) for name in names}), **given)

        own = inspect.signature(command)
        shown = [each for each in own.parameters.values() if each.name != "fields"]
        place = list(own.parameters).index("fields")
        shown[place:place] = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=_FIELDS[name])
            for name in names
        ]
        run.__signature__ = own.replace(parameters=shown)  # type: ignore[attr-defined]  # inspect reads it
        return run

    return decorate


def request(**given: object) -> dict[str, object]:
    """Collect the given fields of a summary request, sorted by name; read the template's file."""
    known = {name: value for name, value in sorted(given.items()) if value is not None}
    return {name: read_template(value) if isinstance(value, Path) else value for name, value in known.items()}
