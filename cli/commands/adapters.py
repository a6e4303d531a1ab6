"""The commands for adapters (LoRA): add, list, remove, limit; they use the database directly."""

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from cli.admin import shown, transaction
from jobs import tenants
from jobs.adapters import registry
from jobs.adapters.files import check, check_base, fetched
from jobs.adapters.offers import read_offer
from jobs.models import Address, LoraAdapter
from jobs.views import optional_rfc3339, rfc3339
from longbatch.cli.output import AsJson, notes, output, print_json, print_text

app = typer.Typer(
    no_args_is_help=True, help="Manage adapters (LoRA) in the database LONGBATCH_DATABASE__URL."
)

AdapterName = Annotated[
    str,
    typer.Argument(metavar="MODEL:NAME", help="The model's name, a colon, the adapter's name."),
]
Source = Annotated[
    str,
    typer.Argument(
        metavar="SOURCE",
        help="A directory with adapter_config.json and adapter_model.safetensors, a .gguf file, or the URL of"
        " either in an object store (s3://…). Workers read it too.",
    ),
]
Names = Annotated[list[str] | None, typer.Argument(metavar="[MODEL:NAME]…", help="None: no adapter.")]
Base = Annotated[
    Path | None,
    typer.Option("--base", help="The model's directory, or its .gguf file: shapes are compared with it."),
]


def register(parent: typer.Typer) -> None:
    """Add the commands to the application."""
    parent.add_typer(app, name="adapters")


@app.command()
def add(name: AdapterName, source: Source, *, base: Base = None) -> None:
    """Check an adapter's files and register it; a name keeps its weights for ever."""
    address = registry.addressed(name)
    source = source if "://" in source else str(Path(source).resolve())
    with transaction() as session:
        with fetched(source) as path:
            checked = check(path)
            if base is not None:
                check_base(checked, base)
        registry.add(session, address, checked, source=source)
        session.flush()
        why_not = read_offer(session, served=address.model).why_not(name)
    print_text(f"{name}: {checked.format}, rank {checked.rank}, {', '.join(checked.modules)}")
    if why_not is not None:
        notes.print(f"Refused until its engines take it: {escape(why_not)}", soft_wrap=True)


@app.command("list")
def list_adapters(*, as_json: AsJson = False) -> None:
    """List all adapters that were ever registered."""
    with transaction() as session:
        rows = registry.every(session)
        why_not = {each.model: read_offer(session, served=each.model).why_not for each in rows}
        found = [_object(each, why_not[each.model](_name(each))) for each in rows]
    if as_json:
        print_json(found)
        return
    table = Table(box=None, pad_edge=False)
    table.add_column("adapter", min_width=max((len(_name(each)) for each in rows), default=0))
    for heading in ("format", "rank", "bytes", "added", "state", "source"):
        table.add_column(heading, overflow="fold")
    for each, told in zip(rows, found, strict=True):
        cells = [_name(each), each.format, str(each.rank), f"{each.num_bytes:,}", shown(each.created_at)]
        table.add_row(*map(escape, [*cells, str(told["state"]), each.source]))
    output.print(table)


@app.command()
def remove(name: AdapterName) -> None:
    """Refuse requests for the adapter; jobs that wait for it fail, running ones go on."""
    with transaction() as session:
        registry.remove(session, registry.addressed(name))
    print_text(f"{name} is removed")


@app.command()
def limit(
    tenant: Annotated[str, typer.Argument(metavar="TENANT", help="Name of the tenant.")],
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[MODEL:NAME]…", help="None: no adapter.")
    ] = None,
    *,
    is_all: Annotated[bool, typer.Option("--all", help="Let it name every adapter again.")] = False,
) -> None:
    """Let a tenant name these adapters alone; models without an adapter stay open to it."""
    if is_all and names:
        raise typer.BadParameter("takes no names with --all", param_hint="MODEL:NAME")
    with transaction() as session:
        registry.limit(session, tenants.named(session, tenant).id, None if is_all else names or [])
    print_text(f"{tenant} may name {'every adapter' if is_all else ', '.join(names or []) or 'no adapter'}")


def _name(adapter: LoraAdapter) -> str:
    return str(Address(adapter.model, adapter.name))


def _object(adapter: LoraAdapter, why_not: str | None) -> dict[str, object]:
    state = "removed" if adapter.removed_at else "refused" if why_not else "ready"
    return {
        "id": _name(adapter),
        "state": state,
        "reason": None if adapter.removed_at else why_not,
        "format": adapter.format,
        "rank": adapter.rank,
        "num_bytes": adapter.num_bytes,
        "modules": adapter.modules,
        "sha256": adapter.sha256.hex(),
        "source": adapter.source,
        "created_at": rfc3339(adapter.created_at),
        "removed_at": optional_rfc3339(adapter.removed_at),
    }
