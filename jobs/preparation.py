"""Counts stored prompts: each job is then queued, or fails because it can never run."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import chain
from typing import Final
from uuid import UUID

from sqlalchemy import select
from sqlalchemy.exc import NoResultFound
from sqlalchemy.orm import Session

from jobs import ids, lifecycle, turns
from jobs.database import database_now, transaction
from jobs.engines import registry
from jobs.engines.capacity import Capacity, Excess, find_least_excess
from jobs.errors import LongbatchError, PromptTooLongError, PromptUncountableError
from jobs.extractions.prompts import compose_extraction
from jobs.fitting import reject, settle_count, too_long_error
from jobs.job_rows import queue_counted
from jobs.models import Job, JsonObject
from jobs.models.turn import COUNTING, WorkKind
from jobs.prompts import store
from jobs.prompts.counter import SHORT_CHARS, TOGETHER_CHARS, count_some
from jobs.prompts.prefixes import adapted, family, family_of
from jobs.prompts.store import CountedPrompt, NewText, SetCounter, StoredText
from jobs.questions.prompts import compose_question
from jobs.states import TERMINAL, JobState
from jobs.states.summary import ANSWER_TASKS, EXTRACTION_TASKS
from jobs.summaries import prompts
from jobs.turns import Room, Turn
from jobs.turns.work import Interruption, Sessions

# Prompts that one call of the tokenizer counts, and the longest of them, in characters.
_ROOM: Final = Room(num=500, size=TOGETHER_CHARS, small=SHORT_CHARS)
_LOST_AGAIN: Final = "Counting the prompt failed or crashed its worker on every attempt."
# A stored prompt or, in a tree, the canonical form of one that is written only now.
_Prompt = StoredText | str
# The prompt with its ids, or the error that it caused.
_Count = tuple[StoredText | NewText, CountedPrompt] | BaseException


@dataclass(frozen=True, slots=True)
class Counting:
    """Counts one prompt: a `turns.work.Work`.

    Queues the job, or fails it if its prompt never fits or cannot be rendered for its model. The job's row is
    not locked while its prompt is counted: a caller can cancel it without waiting, and the count is dropped.

    Attributes:
        default_capacity: what to assume while no engine has registered.
    """

    counter: SetCounter
    default_capacity: Capacity
    lease: timedelta = timedelta(seconds=30)
    kind: WorkKind = COUNTING
    room: Room = _ROOM

    def do(self, sessions: Sessions, turn: Turn, watch: Interruption) -> Job | None:
        """Count the prompt and queue its job, or fail it."""
        with transaction(sessions) as session:
            prompt = _read(session, turn)
            limit = self._most_tokens(session)
        watch.check()
        found = prompt if isinstance(prompt, BaseException) else self._count(prompt, limit=limit)
        with transaction(sessions) as session:
            return self._settle(session, turn, found)

    def do_together(self, sessions: Sessions, turns: Sequence[Turn]) -> Collection[UUID]:
        """Count short prompts in one call, and queue those of their jobs that fit in one transaction."""
        with transaction(sessions) as session:
            text_ids = _texts_of(session, turns)
            texts = store.read(session, set(text_ids.values()), max_bytes=self.room.small)
        counts = self._count_together(texts.values())
        with transaction(sessions) as session:
            held = _hold(session, turns)
            lengths = {job: counts[text].num_tokens for job, text in text_ids.items() if text in counts}
            fitting = self._fitting(session, held, lengths)
            kept = {text_ids[each] for each in fitting}
            store.keep_counts(session, [(texts[each], counts[each]) for each in kept])
            queue_counted(session, {each: lengths[each] for each in fitting})
        lost = {each.row_id for each in turns} - held.keys()
        return lost.union(fitting)

    def _count_together(self, texts: Collection[StoredText]) -> dict[UUID, CountedPrompt]:
        """Return the ids of these texts; those that must be counted alone are left out."""
        counts = store.counts_of(texts, self.counter)
        new = [each for each in texts if each.id not in counts]
        found = count_some([each.canonical for each in new], self.counter, max_chars=self.room.small)
        return counts | {text.id: each for text, each in zip(new, found, strict=True) if each is not None}

    def _fitting(
        self, session: Session, held: Mapping[UUID, tuple[str, int]], lengths: Mapping[UUID, int]
    ) -> list[UUID]:
        """Return the counted jobs that an engine can run."""
        registered = registry.registered_capacities(session)
        found: list[UUID] = []
        for job_id, (model, max_tokens) in held.items():
            limits = registered.get(model) or [self.default_capacity]
            length = lengths.get(job_id)
            if length is None:
                continue
            if find_least_excess(limits, prompt_tokens=length, max_tokens=max_tokens) is None:
                found.append(job_id)
        return found

    def give_up(self, session: Session, turn: Turn) -> Job | None:
        """Fail the job whose prompt could not be counted in all its attempts."""
        return self._settle(session, turn, PromptUncountableError(_LOST_AGAIN))

    def name_row(self, row_id: UUID) -> tuple[str, str]:
        """Name the job for the log."""
        return "job_id", ids.job_id(row_id)

    def _most_tokens(self, session: Session) -> int:
        """Find the longest prompt that any engine takes; counting stops beyond it."""
        registered = registry.registered_capacities(session)
        return max(each.max_input_len for each in [self.default_capacity, *chain(*registered.values())])

    def _count(self, prompt: _Prompt, *, limit: int) -> _Count:
        """Count the prompt, or return the error that it caused."""
        try:
            if isinstance(prompt, str):
                counted = self.counter.count_prompt(prompt, limit=limit)
                return NewText(prompt, counted), counted
            return prompt, store.count(prompt, self.counter, limit=limit)
        except _NOT_THE_PROMPT:
            raise
        except BaseException as error:  # a tokenizer's panic is not an Exception
            if isinstance(error, LongbatchError) and error.retryable:
                raise
            return error

    def _settle(self, session: Session, turn: Turn, found: _Count) -> Job | None:
        """Queue the job or fail it.

        Returns:
            None if it has ended meanwhile, or its lease is lost.
        """
        job = session.scalar(turns.held(Job, turn).with_for_update())
        if job is None:
            return None
        now = database_now(session)  # before any change: this query would flush the first one alone
        if isinstance(found, BaseException):
            _refuse(job, found, now=now)
        else:
            self._keep(session, job, *found, now=now)
        job.lease_id = job.lease_expires_at = None
        session.flush()
        if job.state in TERMINAL:
            lifecycle.after_end(session, [job])
        return job

    def _keep(
        self, session: Session, job: Job, text: StoredText | NewText, counted: CountedPrompt, *, now: datetime
    ) -> None:
        limits = registry.registered_capacities(session).get(job.model) or [self.default_capacity]
        if isinstance(text, NewText):
            job.text_id = store.store(session, [text], tenant_id=job.tenant_id).ids[text.sha256]
        else:
            store.keep_counts(session, [(text, counted)])
        settle_count(job, num_tokens=counted.num_tokens, limits=limits, now=now)
        found = family_of(counted.prefixes, counted.num_tokens, job.tenant_id)
        if found is None and isinstance(text, StoredText):  # it was counted for another job
            found = family(text.prefixes or b"", counted.num_tokens)
        job.family = adapted(found, job.adapter)


def _texts_of(session: Session, turns: Sequence[Turn]) -> dict[UUID, UUID]:
    """Read the ids of these jobs' texts, by job; a job of a tree may have none yet."""
    query = select(Job.id, Job.text_id).where(Job.id.in_([each.row_id for each in turns]))
    return {job_id: text_id for job_id, text_id in session.execute(query) if text_id is not None}


def _hold(session: Session, turns: Sequence[Turn]) -> dict[UUID, tuple[str, int]]:
    """Lock the jobs whose leases still hold; return their models and max_tokens."""
    query = select(Job.id, Job.model, Job.max_tokens).where(
        Job.id.in_([each.row_id for each in turns]),
        Job.lease_id.in_([each.lease_id for each in turns]),
        Job.state == JobState.PREPARING,
    )
    rows = session.execute(query.order_by(Job.id).with_for_update())
    return {row.id: (row.model, row.max_tokens) for row in rows}


# Memory or descriptors that other work used up, and the end of the process: another attempt may succeed.
_NOT_THE_PROMPT: Final = (OSError, MemoryError, SystemExit, KeyboardInterrupt)


# By task; other jobs without a prompt are of summaries.
_COMPOSERS: Final[Mapping[str, Callable[[Session, Job], str]]] = {
    **dict.fromkeys(ANSWER_TASKS.values(), compose_question),
    **dict.fromkeys(EXTRACTION_TASKS.values(), compose_extraction),
}


def _read(session: Session, turn: Turn) -> _Prompt | BaseException:
    """Load the prompt, or return the error that it caused."""
    try:
        job = session.get_one(Job, turn.row_id)
        if job.text_id is not None:
            return store.load(session, job.text_id)
        return _COMPOSERS.get(job.task, prompts.compose)(session, job)
    except (NoResultFound, LongbatchError) as error:
        return error


def _refuse(job: Job, error: BaseException, *, now: datetime) -> None:
    """Fail the job, since its prompt cannot be counted."""
    found: JsonObject = {"code": "invalid_prompt", "message": "The stored prompt cannot be read."}
    if isinstance(error, PromptTooLongError):
        job.prompt_tokens = error.at_least
        excess = Excess(error.at_least, job.max_tokens, error.limit, "max_input_len")
        found = too_long_error(excess, is_least=True)
    elif isinstance(error, LongbatchError):
        found = {"code": error.code, "message": error.message}
        if error.details:
            found["details"] = error.details
    reject(job, found, now=now)
