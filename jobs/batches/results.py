"""Write finished lines to a batch's files and count them, until the batch itself ends.

Each slice is one transaction under the batch's lock: the lines, the counts and the jobs' `is_reported` flags.
So the files and the counts are right at every moment, and nothing is left to do at the end.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Any, Final
from uuid import UUID

from sqlalchemy import Row, Select, func, select, update
from sqlalchemy.orm import Session

from jobs import batches, files, ids, lifecycle, telemetry
from jobs.answers import log_probs
from jobs.answers.choices import joined
from jobs.answers.completions import chat_completion, text_completion
from jobs.batches import line_choices
from jobs.batches.line_results import Generated, read_results
from jobs.batches.lines import CANCELLED, EXPIRED, answered_line, read_error, unanswered_line
from jobs.database import database_now
from jobs.database.sealed_columns import plain_length
from jobs.embeddings.vectors import Encoding, embeddings_object
from jobs.errors import LongbatchError
from jobs.files.storage import PartStore
from jobs.models import Address, Job, JsonObject, Result
from jobs.models.batch import Batch
from jobs.models.file import File
from jobs.prompts.openai import error_object, too_long_message, usage_object
from jobs.prompts.tools.calls import call_objects, read_calls
from jobs.responses.objects import NOTHING, ResponseState, response_object, stored_output
from jobs.responses.rows import repeated_by
from jobs.sealing.content import ContentUnreadableError
from jobs.states import JobState
from jobs.states.batch import BatchState, Endpoint
from jobs.states.file import FileState

_MAX_LINES: Final = 500
_MAX_BYTES: Final = 4 * 2**20  # of output in one transaction
# A line of a running batch whose job was cancelled on its own.
_CANCELLED_ALONE: Final = ("request_cancelled", "This request was cancelled.")
# Errors of the request; any other error is ours.
_CALLERS_FAULTS: Final = frozenset(
    {
        "chat_template_error",
        "context_length_exceeded",
        "invalid_prompt",
        "invalid_value",
        "prompt_uncountable",
        "unsafe_text",
        "unsupported_parameter",
    }
)

_Ended = Row[*tuple[Any, ...]]
# What a byte of packed log probabilities may become in a line.
_TIMES_AS_JSON: Final = 16
# The same of a vector.
_TIMES_AS_NUMBERS: Final = 6


@dataclass(slots=True)
class _Written:
    """Result lines of one slice.

    Attributes:
        repeated: the parameters that each response repeats, by its job.
        unreadable: why results cannot be decrypted, by their jobs.
    """

    repeated: Mapping[UUID, JsonObject]
    unreadable: Mapping[UUID, ContentUnreadableError]
    output: list[bytes] = field(default_factory=list)
    errors: list[bytes] = field(default_factory=list)


def stop_jobs(session: Session, batch_id: UUID) -> int:
    """Cancel some jobs of a batch that is being cancelled, and return how many."""
    query = select(Batch.tenant_id).where(Batch.id == batch_id, Batch.state == BatchState.CANCELLING)
    tenant_id = session.scalar(query)
    if tenant_id is None:
        return 0
    mine = [Job.batch_id == batch_id, ~Job.is_reported, Job.finalized_at.is_(None)]
    return lifecycle.cancel_where(session, mine, tenant_id=tenant_id)


def collect(session: Session, batch_id: UUID, store: PartStore, *, lifetime: timedelta) -> bool:
    """Write some finished lines to the batch's files, and end the batch if it can.

    Returns:
        True if there was anything to do.
    """
    query = select(Batch).where(
        Batch.id == batch_id,
        Batch.state.in_([BatchState.IN_PROGRESS, BatchState.FINALIZING, BatchState.CANCELLING]),
    )
    batch = session.scalar(query.with_for_update(skip_locked=True))
    if batch is None:
        return False
    if batch.state == BatchState.FINALIZING:
        batches.end(session, batch, "complete", lifetime=lifetime)
        return True
    ended = _ended_lines(session, batch)
    if ended:
        _report(session, batch, ended, store)
    num_cancelled = line_choices.cancel_in_vain(session, batch)
    return _move_on(session, batch, lifetime=lifetime) or bool(ended) or num_cancelled > 0


def append_errors(session: Session, batch: Batch, lines: Sequence[bytes], store: PartStore) -> None:
    """Append lines to the batch's error file, which the first of them creates, and count them by code."""
    if lines:
        file = _result_file(session, batch, batch.error_file_id, "errors")
        batch.error_file_id = file.id
        files.append(session, file, lines, store)
        batch.error_counts = dict(
            Counter(batch.error_counts) + Counter(read_error(each).code for each in lines)
        )


def _append_output(session: Session, batch: Batch, lines: Sequence[bytes], store: PartStore) -> None:
    if lines:
        file = _result_file(session, batch, batch.output_file_id, "output")
        batch.output_file_id = file.id
        files.append(session, file, lines, store)


def _result_file(session: Session, batch: Batch, file_id: UUID | None, kind: str) -> File:
    if file_id is not None:
        return session.get_one(File, file_id)
    return files.create(
        session,
        tenant_id=batch.tenant_id,
        purpose=files.OUTPUT,
        filename=f"{ids.batch_id(batch.id)}_{kind}.jsonl",
        state=FileState.GROWING,
    )


def _move_on(session: Session, batch: Batch, *, lifetime: timedelta) -> bool:
    """End the batch, or finalize it, once all of its lines have ended."""
    is_whole = batch.is_expanded or not batch.num_lines
    if not is_whole or batch.num_ended < batch.num_lines:
        return False
    if batch.state == BatchState.CANCELLING:
        batches.end(session, batch, "end_cancelled", lifetime=lifetime)
    elif batch.num_stopped:
        batches.end(session, batch, "expire", lifetime=lifetime)
    else:
        batches.move(batch, "finalize", now=database_now(session))
    return True


def _ended_lines(session: Session, batch: Batch) -> list[list[_Ended]]:
    """Read the jobs of unreported lines that have ended: as many as fit one transaction, or one line."""
    query = _jobs().where(
        Job.batch_id == batch.id,
        ~Job.is_reported,
        Job.finalized_at.is_not(None),
        line_choices.speaks_for_ended_line(batch),
    )
    rows = session.execute(query.order_by(Job.finalized_at).limit(_MAX_LINES)).all()
    taken: list[_Ended] = []
    num_bytes = 0
    for row in rows:
        num_bytes += row.size * (row.num_choices or 1)
        if taken and num_bytes > _MAX_BYTES:
            break
        taken.append(row)
    lines = {row.batch_line: [row] for row in taken if row.num_choices}
    if lines:
        rest = _jobs().where(line_choices.others(batch, list(lines))).order_by(Job.choice)
        for row in session.execute(rest):
            lines[row.batch_line].append(row)
    return [lines[row.batch_line] if row.num_choices else [row] for row in taken]


def _jobs() -> Select[*tuple[Any, ...]]:
    """Select what a line is written from."""
    reasoning = func.coalesce(plain_length(Result.reasoning), 0)
    scored = func.coalesce(plain_length(Result.log_probs), 0) * _TIMES_AS_JSON
    calls = func.coalesce(plain_length(Result.tool_calls), 0)
    vector = func.coalesce(plain_length(Result.embedding), 0) * _TIMES_AS_NUMBERS
    text = func.coalesce(plain_length(Result.output), 0)
    size = (text + reasoning + scored + calls + vector).label("size")
    return select(
        Job.id,
        Job.custom_id,
        Job.state,
        Job.model,
        Job.adapter,
        Job.error,
        Job.finish_reason,
        Job.prompt_tokens,
        Job.cached_tokens,
        Job.completion_tokens,
        Job.created_at,
        Job.finalized_at,
        Job.labels,
        Job.batch_line,
        Job.num_choices,
        Job.sampling,
        size,
    ).outerjoin(Result, Result.job_id == Job.id)


def _report(session: Session, batch: Batch, lines: Sequence[Sequence[_Ended]], store: PartStore) -> None:
    ended = [row for line in lines for row in line]
    completed = [row.id for row in ended if row.state == JobState.COMPLETED]
    results, unreadable = read_results(session, completed)
    is_of_responses = batch.endpoint == Endpoint.RESPONSES
    written = _Written(repeated_by(session, completed) if is_of_responses else {}, unreadable)
    for line in lines:
        try:
            _write(line, batch, results, written)
        except Exception as error:  # noqa: BLE001  # one bad line must not keep its batch from ending
            _write_unforeseen(line[0], error, batch, written)
    _append_output(session, batch, written.output, store)
    append_errors(session, batch, written.errors, store)
    session.execute(
        update(Job)
        .where(Job.id.in_([row.id for row in ended]))
        .values(is_reported=True)
        .execution_options(synchronize_session=False)
    )


def _write(
    line: Sequence[_Ended], batch: Batch, results: Mapping[UUID, Generated], written: _Written
) -> None:
    """Write a line to one of the two files, and count it; its choices share the prompt."""
    row = max(line, key=lambda each: line_choices.gravity(each.state))  # the first, if all completed
    identifier = line[0].id.hex
    for each in line:
        if each.id in written.unreadable:
            raise written.unreadable[each.id]
    if row.state == JobState.COMPLETED:
        is_embedded = batch.endpoint == Endpoint.EMBEDDINGS
        make = _embeddings if is_embedded else _answers
        body = make(line, Endpoint(batch.endpoint), results, written)
        written.output.append(answered_line(identifier, row.custom_id, status=200, body=body))
        batch.num_completed += 1
        for each in line if is_embedded else [row]:
            batch.input_tokens += each.prompt_tokens
            batch.cached_tokens += each.cached_tokens or 0
        for each in line:
            batch.output_tokens += each.completion_tokens
            batch.reasoning_tokens += results[each.id].reasoning_tokens if each.id in results else 0
        return
    if row.state == JobState.FAILED:
        status, body = _failure(row.error, Endpoint(batch.endpoint))
        written.errors.append(answered_line(identifier, row.custom_id, status=status, body=body))
        batch.num_failed += 1
        return
    is_whole_batch = batch.state == BatchState.CANCELLING or row.state == JobState.EXPIRED
    batch.num_stopped += is_whole_batch
    batch.num_failed += not is_whole_batch
    reason = EXPIRED if row.state == JobState.EXPIRED else CANCELLED if is_whole_batch else _CANCELLED_ALONE
    written.errors.append(unanswered_line(identifier, row.custom_id, reason))


def _write_unforeseen(row: _Ended, error: Exception, batch: Batch, written: _Written) -> None:
    """Write an error line for a job whose own line cannot be built."""
    telemetry.logger().error(
        telemetry.ROW_FAILED, loop="batches", job_id=ids.job_id(row.id), error=type(error).__name__
    )
    code, message = LongbatchError.code, "The result could not be written."
    if isinstance(error, ContentUnreadableError):
        code, message = error.code, error.message
    body = error_object(code, message, status=500)
    written.errors.append(answered_line(row.id.hex, row.custom_id, status=500, body=body))
    batch.num_failed += 1


def _answers(
    line: Sequence[_Ended], endpoint: Endpoint, results: Mapping[UUID, Generated], written: _Written
) -> JsonObject:
    bodies = [_completion(each, endpoint, results.get(each.id), written.repeated) for each in line]
    return joined(bodies) if len(bodies) > 1 else bodies[0]


def _embeddings(
    line: Sequence[_Ended], _endpoint: Endpoint, results: Mapping[UUID, Generated], _written: _Written
) -> JsonObject:
    """Build the body of the vectors of all inputs.

    Raises:
        ValueError: not all are there.
    """
    found = [results[each.id].embedding for each in line if each.id in results]
    vectors = [each for each in found if each is not None]
    if len(vectors) != (line[0].num_choices or 1):
        raise ValueError(f"{len(vectors)} vectors of {line[0].num_choices or 1} inputs")
    encoding: Encoding = "base64" if line[0].sampling.get("encoding_format") == "base64" else "float"
    return embeddings_object(line[0].model, line, vectors, encoding=encoding)


def _completion(
    row: _Ended, endpoint: Endpoint, result: Generated | None, repeated: Mapping[UUID, JsonObject]
) -> JsonObject:
    if endpoint is Endpoint.RESPONSES:
        if row.id not in repeated:
            raise ContentUnreadableError
        return _response(row, result, repeated[row.id])
    build: Callable[..., JsonObject] = text_completion
    if endpoint is Endpoint.CHAT:
        calls = call_objects(read_calls(result.tool_calls if result else None), row.id)
        build = partial(chat_completion, reasoning=result.reasoning if result else None, calls=calls)
    usage = usage_object(
        prompt_tokens=row.prompt_tokens,
        completion_tokens=row.completion_tokens,
        reasoning_tokens=result.reasoning_tokens if result else 0,
        cached_tokens=row.cached_tokens,
    )
    return build(
        identifier=row.id.hex,
        created=int(row.finalized_at.timestamp()),
        model=str(Address(row.model, row.adapter)),
        text=result.output if result else "",
        finish_reason=row.finish_reason,
        usage=usage,
        log_probs=log_probs.read(result.log_probs) if result and result.log_probs else None,
    )


def _response(row: _Ended, result: Generated | None, repeated: JsonObject) -> JsonObject:
    state = ResponseState(
        id=row.id,
        state=JobState.COMPLETED,
        model=str(Address(row.model, row.adapter)),
        metadata=row.labels,
        created_at=row.created_at,
        finalized_at=row.finalized_at,
        finish_reason=row.finish_reason,
        prompt_tokens=row.prompt_tokens,
        cached_tokens=row.cached_tokens,
        completion_tokens=row.completion_tokens,
    )
    output = NOTHING
    if result is not None:
        output = stored_output(
            output=result.output,
            reasoning=result.reasoning,
            reasoning_tokens=result.reasoning_tokens,
            log_probs=result.log_probs,
            tool_calls=result.tool_calls,
        )
    return response_object(state, repeated, output)


_PROMPT_PARAMS: Final = {
    Endpoint.CHAT: "messages",
    Endpoint.TEXT: "prompt",
    Endpoint.RESPONSES: "input",
    Endpoint.EMBEDDINGS: "input",
}


def _failure(error: JsonObject, endpoint: Endpoint) -> tuple[int, JsonObject]:
    """Return the HTTP status that this failure would have had, and its body."""
    code, message = str(error["code"]), str(error["message"])
    if code not in _CALLERS_FAULTS:
        return 500, error_object(code, message, status=500)
    details = error.get("details")
    if isinstance(details, dict) and {"limit", "prompt_tokens", "max_tokens"} <= details.keys():
        message = too_long_message(
            limit=details["limit"], prompt_tokens=details["prompt_tokens"], max_tokens=details["max_tokens"]
        )
    return 400, error_object(code, message, param=_PROMPT_PARAMS[endpoint])
