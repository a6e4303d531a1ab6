"""The commands that pause, drain and resume engines and tenants' queues; they use the database directly."""

from typing import Annotated

import typer
from pydantic import TypeAdapter, ValidationError

from cli.admin import transaction
from jobs import queries, tenants
from jobs.scheduling import halts
from jobs.scheduling.halts import MAX_REASON_CHARS, Operator, halt_of
from jobs.states.halt import HaltKind, state_of
from jobs.validation import Line
from jobs.views import rfc3339
from longbatch.cli.output import AsJson, print_json, print_text

EngineName = Annotated[str, typer.Argument(metavar="ENGINE", help="Its configured name.")]
TenantName = Annotated[str, typer.Argument(metavar="TENANT", help="Name of the tenant.")]
Reason = Annotated[str, typer.Option(help="Tenants whose jobs wait read it.")]


def register_engines(app: typer.Typer) -> None:
    """Add the commands for engines to `longbatch engine`."""
    for command in (pause_engine, drain_engine, resume_engine):
        app.command(command.__name__.removesuffix("_engine"))(command)
    app.command("list")(list_engines)


def register_queues(app: typer.Typer) -> None:
    """Add the commands for queues to `longbatch tenants`."""
    for command in (pause_queue, drain_queue, resume_queue):
        app.command(command.__name__.removesuffix("_queue"))(command)


def pause_engine(name: EngineName, *, reason: Reason) -> None:
    """Start no job on the engine until it is resumed; running ones go on."""
    _halt_engine(name, HaltKind.PAUSE, reason=_line(reason))
    print_text(f"{name} is paused")


def drain_engine(name: EngineName, *, reason: Reason) -> None:
    """Pause the engine; `engine list` says `drained` once nothing runs on it."""
    _halt_engine(name, HaltKind.DRAIN, reason=_line(reason))
    print_text(f"{name} is draining")


def resume_engine(name: EngineName) -> None:
    """Let the engine start jobs again."""
    with transaction() as session:
        halts.resume_engine(session, name)
    print_text(f"{name} is resumed")


def list_engines(*, as_json: AsJson = False) -> None:
    """List engines: whether they start jobs, and what is reserved on them."""
    with transaction() as session:
        found = [_engine(each) for each in queries.engine_usages(session)]
    if as_json:
        print_json(found)
        return
    for each in found:
        why = f" by {each['by']}: {each['reason']}" if each["reason"] else ""
        down = "" if each["not_ready_reason"] is None else f", not ready: {each['not_ready_reason']}"
        print_text(f"{each['id']}  {each['state']}{why}  {each['slots_booked']}/{each['slots']} slots{down}")


def pause_queue(name: TenantName, *, reason: Reason) -> None:
    """Start none of the tenant's jobs until its queue is resumed; running ones go on."""
    _halt_queue(name, HaltKind.PAUSE, reason=_line(reason))
    print_text(f"{name}'s queue is paused")


def drain_queue(name: TenantName, *, reason: Reason) -> None:
    """Pause the tenant's queue; its state is `drained` once none of its jobs runs."""
    _halt_queue(name, HaltKind.DRAIN, reason=_line(reason))
    print_text(f"{name}'s queue is draining")


def resume_queue(name: TenantName) -> None:
    """Let the tenant's jobs start again."""
    with transaction() as session:
        halts.resume_queue(session, tenants.named(session, name).id)
    print_text(f"{name}'s queue is resumed")


def _halt_engine(name: str, kind: HaltKind, *, reason: str) -> None:
    with transaction() as session:
        halts.halt_engine(session, name, kind, reason=reason, by=Operator())


def _halt_queue(name: str, kind: HaltKind, *, reason: str) -> None:
    with transaction() as session:
        tenant = tenants.named(session, name)
        halts.halt_queue(session, tenant.id, kind, reason=reason, by=Operator())


def _line(text: str) -> str:
    try:
        TypeAdapter(Line).validate_python(text)
    except ValidationError:
        raise typer.BadParameter("must be one line of printable characters", param_hint="--reason") from None
    if len(text) > MAX_REASON_CHARS:
        raise typer.BadParameter(f"must have at most {MAX_REASON_CHARS} characters", param_hint="--reason")
    return text


def _engine(usage: queries.EngineUsage) -> dict[str, object]:
    engine, halt = usage.engine, halt_of(usage.engine)
    return {
        "id": engine.name,
        "model": engine.model,
        "state": state_of(halt.kind if halt else None, num_running=usage.held_slots),
        "reason": halt and halt.reason,
        "by": halt and (halt.by.name or halt.by.key),
        "since": halt and rfc3339(halt.since),
        "not_ready_reason": usage.not_ready_reason,
        "slots": engine.max_batch_size,
        "slots_booked": usage.held_slots,
    }
