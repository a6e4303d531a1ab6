"""The command `estimate`: what summaries of documents would cost, before any is made."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final

import typer
from rich.markup import escape
from rich.table import Table

from longbatch import calls
from longbatch.cli import locations
from longbatch.cli.commands.summarize import Group, Paths, Tally, conclude, report_skipped, stopping
from longbatch.cli.options import DEFAULT_CONCURRENCY, ConcurrencyOption, FollowLinksOption, with_fields
from longbatch.cli.output import EXIT_CODES, ApiUrl, AsJson, client_of, notes, output, print_json
from longbatch.cli.progress import progress
from longbatch.cli.queue_text import about
from longbatch.documents import sources
from longbatch.documents.locations import find
from longbatch.documents.run import DocumentFailure, DocumentRun
from longbatch.documents.sources import Skipped
from longbatch.documents.trees import SUMMARIES, Kind, Trees

_OF_ANSWERS: Final = "read_tokens"
_MAX_DOCUMENTS: Final = 1000  # in one request
_EXACT: Final = "exact"
_SUMMED: Final = ("chunks", "jobs", "prompt_tokens", "read_tokens")


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command("estimate", epilog=EXIT_CODES)(estimate)


@with_fields(left_out={"on_gap", "priority"})
def estimate(
    paths: Paths,
    *,
    fields: dict[str, object],
    combine: Annotated[
        bool, typer.Option("--combine", help="Estimate one summary of all documents.")
    ] = False,
    follow_links: FollowLinksOption = False,
    concurrency: ConcurrencyOption = DEFAULT_CONCURRENCY,
    as_json: AsJson = False,
    api_url: ApiUrl = None,
) -> None:
    """Upload documents and estimate their summaries; `summarize` does not upload them again."""
    if combine:
        fields["combine"] = True
    locations.check_paths(paths)
    estimate_all(
        paths,
        fields,
        combine=combine,
        follow_links=follow_links,
        concurrency=concurrency,
        as_json=as_json,
        api_url=api_url,
    )


def estimate_all(
    paths: Sequence[str],
    fields: dict[str, object],
    *,
    kind: Kind = SUMMARIES,
    combine: bool = False,
    follow_links: bool,
    concurrency: int,
    as_json: bool = False,
    api_url: str | None,
) -> None:
    """Upload the documents, estimate what would be made of them, and print it.

    Raises:
        typer.BadParameter: there is no document.
        typer.Exit: a document cannot be read.
    """
    skipped = Skipped()
    found = list(find(paths, skipped=skipped, follow_links=follow_links))
    if not found:
        raise typer.BadParameter(sources.NOTHING, param_hint="PATH")
    report_skipped(skipped)
    with client_of(api_url) as client, stopping() as stop:
        shown, trees = progress(notes, total=len(found), live=False), Trees(kind)
        model = client.run(calls.served_model())
        run = DocumentRun(trees, fields, model=model, observer=shown)
        group = Group(client, run, concurrency=concurrency, stop=stop)
        with shown:
            read = dict(group.each(run.read, found))
        documents = {source: read[place] for place, source in enumerate(found)}
        ready = {source: each for source, each in documents.items() if isinstance(each, dict)}
        ids = list(dict.fromkeys(each["id"] for each in ready.values()))
        # A combined summary of more documents than a request may have is refused, as `summarize` would.
        step = max(1, len(ids)) if combine else _MAX_DOCUMENTS
        batches = [ids[at : at + step] for at in range(0, len(ids), step)]
        parts = [group.perform(trees.estimate(each, fields)) for each in batches]
        queued = group.perform(trees.queued_seconds(fields)) if len(parts) > 1 else None
        paths_of = {each["id"]: source.shown for source, each in ready.items()}
        whole = joined(parts, paths_of, queued_seconds=queued)
        failures = {
            source.shown: each.result.error
            for source, each in documents.items()
            if isinstance(each, DocumentFailure)
        }
        if as_json:
            failed = [{"path": path, "error": error} for path, error in failures.items()]
            print_json({**whole, "failed": failed, "skipped": skipped.as_json()})
        else:
            _show(whole, counts=str(client.run(calls.version()).get("token_counts", _EXACT)))
        num_warned = sum(bool(each["warnings"]) for each in ready.values())
        conclude(run, Tally(len(ready), num_warned, len(found)))


def joined(
    parts: Sequence[Mapping[str, Any]], paths: Mapping[str, str], *, queued_seconds: int | None = None
) -> dict[str, Any]:
    """Join the estimates of several requests into one, each document with its path.

    Args:
        parts: the server's estimate of each request alone, after all that is queued.
        paths: the documents' paths by id.
        queued_seconds: time for all that is queued, counted once for all parts; None if no engine is up, or
            if it was not requested because there is only one part.
    """
    summed: Counter[str] = Counter()
    completion: Counter[str] = Counter()
    times: list[int | None] = []
    for part in parts:
        summed.update({name: part[name] for name in _SUMMED if name in part})
        completion.update(part["completion_tokens"])
        times.append(part["estimated_seconds"])
    return {
        **{name: summed[name] for name in _SUMMED if name in summed or name != _OF_ANSWERS},
        "estimated_seconds": _seconds(times, queued_seconds),
        "completion_tokens": dict(completion),
        "levels": max((part["levels"] for part in parts), default=0),
        "documents": [
            {"path": paths.get(each["id"], ""), **each} for part in parts for each in part["documents"]
        ],
    }


def _seconds(times: Sequence[int | None], queued: int | None) -> int | None:
    """Add up the times of requests that run one after the other.

    Each time includes the queue, which counts only once. Returns None if a time is unknown.
    """
    known = [each for each in times if each is not None]
    if len(known) < len(times) or (queued is None and len(times) > 1):
        return None
    return sum(known) - sum(min(queued or 0, each) for each in known[1:])


def _show(whole: Mapping[str, Any], *, counts: str) -> None:
    table = Table(box=None, pad_edge=False)
    table.add_column("document", overflow="fold")
    for name in ("chunks", "levels", "jobs", "tokens"):
        table.add_column(name, justify="right")
    for each in [
        *whole["documents"],
        {"path": "all, with prompts", **whole, "tokens": whole["prompt_tokens"]},
    ]:
        cells = (each.get(name) for name in ("chunks", "levels", "jobs", "tokens"))
        table.add_row(escape(each["path"]), *("" if cell is None else f"{cell:,}" for cell in cells))
    output.print(table)
    if _OF_ANSWERS in whole:
        output.print(f"{whole[_OF_ANSWERS]:,} tokens to read where engines reuse prefixes")
    if counts != _EXACT:
        output.print(f"[yellow]Token counts are {counts}:[/] the server does not have the model's tokenizer.")
    seconds = whole["estimated_seconds"]
    output.print("no engine is up" if seconds is None else about(seconds))
