"""How long work would take after all that is queued: its size, and the time until its end."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from sqlalchemy import BigInteger, cast, func, literal_column, select
from sqlalchemy.orm import Session

from jobs.forecast.engine_speed import reading_work
from jobs.forecast.simulation import EngineState, RemainingTokens
from jobs.models import Job, JsonObject, Tenant


@dataclass(slots=True)
class Estimate:
    """What the lines so far would take.

    Attributes:
        num_lines: lines with a request.
        num_refused: lines that would fail alone; the first are in `refused`.
        num_faults: lines that would fail the batch; the first are in `faults`.
        num_never_fit: well-formed lines that no engine can hold; the first are in `never_fit`.
        prompt_tokens, max_output_tokens, kv_blocks: of the lines that would run.
        reading: the work of their prompts, in units of `engine_speed.reading_work`.
        is_exact: every prompt was counted.
    """

    num_lines: int = 0
    num_refused: int = 0
    num_faults: int = 0
    num_never_fit: int = 0
    prompt_tokens: int = 0
    max_output_tokens: int = 0
    kv_blocks: int = 0
    refused: list[JsonObject] = field(default_factory=list)
    faults: list[JsonObject] = field(default_factory=list)
    never_fit: list[JsonObject] = field(default_factory=list)
    reading: float = 0.0
    is_exact: bool = True


def seconds_until_done(
    session: Session, estimate: Estimate, model: str, engines: Sequence[EngineState]
) -> float:
    """Estimate the seconds until these lines finish, after all that is queued and may start.

    Assumes that every answer is as long as it may be.

    Args:
        session: any transaction that sees the queues of all tenants.
        estimate: of the lines.
        model: that they ask for.
        engines: that run; at least one.
    """
    prompt = Job.prompt_tokens
    square = cast(prompt, BigInteger) * prompt
    queued = session.execute(
        select(func.sum(prompt), func.sum(square), func.sum(Job.max_tokens)).where(
            Job.state == literal_column("'queued'"),
            Job.model == model,
            Job.tenant_id.not_in(select(Tenant.id).where(Tenant.halt.is_not(None))),
        )
    ).one()
    tokens, squares, output = (int(value or 0) for value in queued)
    # Reading work grows with the square of a prompt's length: prompts of this mean add up to the exact work.
    mean = squares / tokens if tokens else 0.0
    reading = estimate.reading + (tokens * reading_work(mean) / mean if mean else 0.0)
    output += estimate.max_output_tokens
    if not reading and not output:
        return 0.0
    rates = [1 / (reading * each.speed.read_s + each.cost_s(RemainingTokens(0, output))) for each in engines]
    return 1 / sum(rates)
