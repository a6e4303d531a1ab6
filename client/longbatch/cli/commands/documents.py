"""The commands for documents: add, list, show, text, delete."""

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich.markup import escape
from rich.table import Column, Table

from longbatch import calls
from longbatch.cli.options import EncodingOption
from longbatch.cli.output import (
    EXIT_CODES,
    EXIT_NOT_COMPLETED,
    ApiUrl,
    AsJson,
    client_of,
    coloured,
    given,
    notes,
    output,
    print_error,
    print_json,
    print_text,
)
from longbatch.client import Client
from longbatch.documents.trees import Trees
from longbatch.errors import ApiError
from longbatch.options import DocumentKind

app = typer.Typer(no_args_is_help=True, help="Manage documents and read their text.")

Wait = Annotated[bool, typer.Option("--wait", help="Wait until the text is extracted.")]
Document = Annotated[str, typer.Argument(metavar="DOCUMENT", help="doc_…")]


def register(parent: typer.Typer) -> None:
    """Add the commands to the application."""
    for name, command in _COMMANDS.items():
        app.command(name, epilog=EXIT_CODES)(command)
    parent.add_typer(app, name="documents")


def add(
    paths: Annotated[
        list[Path], typer.Argument(metavar="FILE...", exists=True, dir_okay=False, readable=True)
    ],
    *,
    kind: Annotated[DocumentKind | None, typer.Option(help="Require this kind of file.")] = None,
    encoding: EncodingOption = None,
    wait: Wait = False,
    as_json: AsJson = False,
    api_url: ApiUrl = None,
) -> None:
    """Upload files as documents and print their ids; the same bytes are the same document.

    If the server refuses a file, the others are still sent.
    """
    sent: list[Mapping[str, Any]] = []
    with client_of(api_url) as client:
        for path in paths:
            try:
                sent.append(client.documents.add(path, kind=kind, encoding=encoding))
            except ApiError as error:
                refused = {"code": error.code, "message": error.message}
                sent.append({"id": None, "filename": path.name, "state": "failed", "error": refused})
        if wait:
            sent = [_wait(client, each) for each in sent]
    if as_json:
        print_json(sent)
    for path, document in zip(paths, sent, strict=True):
        if document["error"]:
            print_error(f"{path}: {document['error']['message']} [{document['error']['code']}]")
        elif not as_json:
            print_text(document["id"])
    if any(document["error"] for document in sent):
        raise typer.Exit(EXIT_NOT_COMPLETED)


def list_documents(
    *,
    state: Annotated[str | None, typer.Option(help="extracting, ready or failed.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=100, help="Maximum number of documents to list.")] = 20,
    after: Annotated[str | None, typer.Option(help="Start after this document.")] = None,
    as_json: AsJson = False,
    api_url: ApiUrl = None,
) -> None:
    """List documents, newest first."""
    with client_of(api_url) as client:
        page = client.run(calls.page("/v1/documents", given(state=state, after=after, limit=limit)))
    if as_json:
        print_json(page)
        return
    table = Table(Column("document", min_width=36), "state", "kind", "pages", "tokens", "name", box=None)
    for each in page["data"]:
        table.add_row(
            each["id"],
            coloured(each["state"]),
            each["kind"],
            _count(each["pages"]),
            _count(each["tokens"]),
            escape(each["filename"]),
        )
    output.print(table)
    if page["has_more"]:
        notes.print(f"More with --after {page['last_id']}")


def show(document: Document, *, wait: Wait = False, as_json: AsJson = False, api_url: ApiUrl = None) -> None:
    """Show a document's details."""
    with client_of(api_url) as client:
        found: Mapping[str, Any] = client.documents.get(document)
        if wait:
            found = _wait(client, found)
    if as_json:
        print_json(found)
        return
    table = Table.grid(padding=(0, 2))
    for name, value in found.items():
        if name not in {"object", "page_offsets"} and value not in (None, []):
            shown = coloured(value) if name == "state" else escape(_in_words(value))
            table.add_row(f"[bold]{name}[/]", shown)
    output.print(table)


def text(
    document: Document,
    *,
    start: Annotated[int, typer.Option(min=0, help="First character to print.")] = 0,
    end: Annotated[
        int | None, typer.Option(min=0, help="Character to stop before.", show_default="the end")
    ] = None,
    api_url: ApiUrl = None,
) -> None:
    """Print a document's text, or a part of it, unchanged."""
    params = given(start=start, end=end)
    with client_of(api_url) as client:
        for block in client.documents.text(document, **params):
            sys.stdout.buffer.write(block)
    sys.stdout.buffer.flush()


def delete(
    documents: Annotated[list[str], typer.Argument(metavar="DOCUMENT...", help="doc_…")],
    *,
    api_url: ApiUrl = None,
) -> None:
    """Delete documents and their text."""
    with client_of(api_url) as client:
        for document in documents:
            client.documents.delete(document)


_COMMANDS: Final[dict[str, Callable[..., None]]] = {
    "add": add,
    "list": list_documents,
    "show": show,
    "text": text,
    "delete": delete,
}


def _wait(client: Client, document: Mapping[str, Any]) -> Mapping[str, Any]:
    """Wait until the document's text is extracted or extraction fails; a refused file has no document."""
    return client.run(Trees().extracted(document["id"])) if document["id"] else document


def _in_words(value: object) -> str:
    """Format a field on one line."""
    match value:
        case {"message": message, "code": code}:
            return f"{message} [{code}]"
        case Sequence() if not isinstance(value, str):
            return "; ".join(_in_words(each) for each in value)
        case int():
            return f"{value:,}"
        case _:
            return str(value)


def _count(value: int | None) -> str:
    return "" if value is None else f"{value:,}"
