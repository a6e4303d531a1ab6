"""The commands for content at rest: reseal; they use the database and the file store directly."""

from collections.abc import Callable
from typing import Annotated, Final

import typer
from rich.table import Table

from cli import local
from cli.admin import connected
from jobs.database import make_sessions
from jobs.errors import LongbatchError
from jobs.files.storage import PartStore
from jobs.files.stores import make_store
from jobs.resealing import passes
from jobs.resealing.places import Aim
from jobs.resealing.rows import Sessions
from jobs.resealing.tally import PLAIN, Tally
from jobs.settings import ContentSide
from longbatch.cli.output import (
    EXIT_NOT_COMPLETED,
    EXIT_USAGE,
    AsJson,
    notes,
    output,
    print_error,
    print_json,
)

_EXIT_CODES: Final = (
    "Exit codes: 0 everything is sealed as the settings say, 1 something is not, 2 usage error,"
    " 3 no database answers."
)
_TOLD_EVERY: Final = 100_000  # rows
_SHOWN: Final = 20  # values that cannot be opened; --json has a thousand

app = typer.Typer(no_args_is_help=True, help="Manage how content is encrypted at rest.")


class NotEncryptedError(LongbatchError):
    """LONGBATCH_DATABASE__ENCRYPT_CONTENT is off here; --open stores all content in plain, --check counts."""

    code = "content_not_encrypted"


@app.callback()
def _content() -> None:
    """Manage how content is encrypted at rest."""


def register(parent: typer.Typer) -> None:
    """Add the commands to the application."""
    parent.add_typer(app, name="content")


@app.command(epilog=_EXIT_CODES)
def reseal(
    *,
    check: Annotated[bool, typer.Option("--check", help="Only count; change nothing.")] = False,
    opens: Annotated[
        bool, typer.Option("--open", help="Store content in plain, where encryption is off.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Encrypt all content under the newest key, and count what is under which key.

    Takes LONGBATCH_DATABASE__URL, LONGBATCH_DATABASE__ENCRYPT_CONTENT, LONGBATCH_WEBHOOKS__ENCRYPTION_KEY and
    LONGBATCH_FILES__… as all processes have them. It may run while they work, and end at any moment.
    """
    side = _side()
    with connected(lambda: side.database) as engine:
        aim = Aim.of(side.database, side.webhooks)
        if not (check or opens or aim.sealer.seals):
            raise NotEncryptedError
        if opens and aim.sealer.seals:
            raise typer.BadParameter("LONGBATCH_DATABASE__ENCRYPT_CONTENT is on", param_hint="--open")
        do: Callable[..., Tally] = passes.count if check else passes.reseal
        tally = _done(do, make_sessions(engine), make_store(side), aim)
    print_json(_object(tally, aim)) if as_json else _show(tally, aim)
    if tally.num_left or tally.num_unreadable:
        raise typer.Exit(EXIT_NOT_COMPLETED)


def _side() -> ContentSide:
    try:
        return local.find_content()
    except LongbatchError as error:
        print_error(error.message)
        raise typer.Exit(EXIT_NOT_COMPLETED) from error
    except ValueError as error:
        print_error(f"a setting is invalid: {error}")
        raise typer.Exit(EXIT_USAGE) from error


def _done(do: Callable[..., Tally], sessions: Sessions, store: PartStore, aim: Aim) -> Tally:
    told: dict[str, int] = {}

    def tell(table: str, num_rows: int) -> None:
        if num_rows >= told.get(table, 0) + _TOLD_EVERY:
            told[table] = num_rows
            notes.print(f"{table}: {num_rows:,} rows")

    return do(sessions, store, aim, tell=tell)


def _object(tally: Tally, aim: Aim) -> dict[str, object]:
    by_key = tally.by_key()
    return {
        "encrypts_content": aim.sealer.seals,
        "keys": [
            {
                "key": name,
                "values": by_key[name],
                "is_configured": aim.opens(name),
                "is_newest": name in aim.known[:1],
            }
            for name in _names(tally, aim)
        ],
        "plain": by_key[PLAIN],
        "tables": {table: dict(values) for table, values in tally.values.items()},
        "resealed": tally.num_resealed,
        "left": tally.num_left,
        "num_unreadable": tally.num_unreadable,
        "unreadable": [
            {"table": each.table, "row": each.row, "column": each.column, "key": each.key}
            for each in tally.unreadable
        ],
    }


def _names(tally: Tally, aim: Aim) -> list[str]:
    """List the configured keys, the newest first, then those that only values name."""
    return list(dict.fromkeys([*aim.known, *sorted(name for name in tally.by_key() if name != PLAIN)]))


def _show(tally: Tally, aim: Aim) -> None:
    by_key = tally.by_key()
    table = Table("key", "values", "", box=None)
    for name in _names(tally, aim):
        note = "newest" if name in aim.known[:1] else "" if aim.opens(name) else "not configured"
        table.add_row(name, f"{by_key[name]:,}", note)
    table.add_row("none", f"{by_key[PLAIN]:,}", "not encrypted")
    output.print(table)
    if tally.num_resealed:
        output.print(f"{tally.num_resealed:,} were changed")
    if tally.num_left:
        output.print(f"{tally.num_left:,} are still to be changed")
    for each in tally.unreadable[:_SHOWN]:
        output.print(f"cannot be opened: {each.table} {each.row} {each.column}", markup=False)
    if tally.num_unreadable > _SHOWN:
        output.print(f"cannot be opened: {tally.num_unreadable - _SHOWN:,} more")
