"""Summaries planned: once their documents are ready, the whole tree of jobs stands in one transaction."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, Self
from uuid import UUID

from sqlalchemy import insert, select
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from jobs import documents, engines, ids, quotas, summary_plan, summary_trees, telemetry, turns
from jobs.admission import Capacity
from jobs.database import database_now, transaction
from jobs.document_models import Document
from jobs.document_states import DocumentState
from jobs.errors import CountingInterruptedError, LimitError, LongbatchError, UnavailableError
from jobs.ids import uuid7
from jobs.models import Job, JsonObject, Summary, SummaryDocument, SummaryNode
from jobs.quotas import Held
from jobs.settings import LimitSettings, Settings
from jobs.states import JobState, Lane
from jobs.summary_plan import Leaf, Node, Sizes, Source
from jobs.summary_prompts import TextCounter, overheads, wishes_of
from jobs.summary_states import TASKS, OnGap, SummaryState
from jobs.turn_models import PLANNING, Kind
from jobs.turn_work import InterruptedWorkError, Sessions, Watch
from jobs.turns import Turn

# A full quota is looked at again after this.
_QUOTA_PAUSE: Final = timedelta(seconds=2)
# The end of its last document wakes a summary; it is looked at all the same, the later the longer it waits.
_SOONEST_LOOK: Final = timedelta(seconds=5)
_LATEST_LOOK: Final = timedelta(minutes=10)
_LOST_AGAIN: Final = "planning failed, or ended its worker, in every attempt"
_MAX_ROWS: Final = 1000  # per statement


class PlanningFailedError(LongbatchError):
    """The text could not be cut into chunks."""

    code = "planning_failed"


@dataclass(frozen=True, slots=True)
class PlanningTools:
    """Everything that planning takes beside a session.

    Attributes:
        counter: of prompts and texts.
        fallback: the limits while no engine has registered.
        limits: of tenants without limits of their own.
    """

    counter: TextCounter
    fallback: Capacity
    limits: LimitSettings

    @classmethod
    def of(cls, settings: Settings, counter: TextCounter) -> Self:
        """As the settings say."""
        return cls(counter, engines.configured_capacity(settings.engine), settings.limits)


@dataclass(slots=True)
class _Draft:
    """A plan before it is written down.

    Attributes:
        documents: the ready ones, in their order.
        gaps: documents that have no text.
        nodes: by number; none where no document has a text.
    """

    documents: list[Document]
    gaps: list[JsonObject]
    sizes: Sizes
    nodes: Sequence[Node] = ()


@dataclass(frozen=True, slots=True)
class Planning:
    """Plans one summary whose documents have all ended: a `turn_work.Work`.

    Its row is free while its documents are cut: it is cancelled without waiting, and the plan is dropped.
    """

    tools: PlanningTools
    lease: timedelta = timedelta(seconds=30)
    kind: Kind = PLANNING

    def do(self, sessions: Sessions, turn: Turn, watch: Watch) -> Summary | None:
        """Plan the summary, fail it, or put it off until its documents or its tenant's quota let it begin."""
        try:
            draft: _Draft | LongbatchError | None = self._draft(sessions, turn, watch)
        except (
            InterruptedWorkError,
            CountingInterruptedError,
            UnavailableError,
            OSError,
            MemoryError,
            SQLAlchemyError,
        ):
            raise
        except LongbatchError as error:
            draft = error
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as error:  # noqa: BLE001  # the same text would only upset the tokenizer again
            telemetry.logger().error(
                telemetry.TURN_FAILED,
                kind=self.kind.name,
                summary_id=ids.summary_id(turn.row_id),
                error=type(error).__name__,
            )
            draft = PlanningFailedError()
        if draft is None:
            return None
        with transaction(sessions) as session:
            summary = _hold(session, turn)
            if summary is not None:
                _settle(session, turn, summary, draft, self.tools)
            return summary

    def give_up(self, session: Session, turn: Turn) -> Summary | None:
        """Fail the summary that could not be planned in all its attempts."""
        summary = _hold(session, turn)
        if summary is not None:
            _refuse(session, turn, summary, PlanningFailedError(_LOST_AGAIN))
        return summary

    def name_row(self, row_id: UUID) -> tuple[str, str]:
        """Name the summary."""
        return "summary_id", ids.summary_id(row_id)

    def _draft(self, sessions: Sessions, turn: Turn, watch: Watch) -> _Draft | None:
        """The tree for this summary on the engines that are there; None: it was put off, or has ended.

        Raises:
            LimitError: the quota has not even room for the texts, so that cutting them would be for nothing.
            LongbatchError: there can be none.
        """
        with transaction(sessions) as session:
            look = _look(session, turn, self.tools)
        if look is None:
            return None
        summary = look.summary
        sizes = summary_plan.find_sizes(
            look.capacities,
            overheads(wishes_of(summary), self.tools.counter),
            length=summary.length,
            chunk_tokens=summary.chunk_tokens,
            overlap_tokens=summary.overlap_tokens,
        )
        draft = _Draft(look.ready, look.gaps, sizes)
        sources = [
            _source(sessions, index, document, self.tools) for index, document in enumerate(draft.documents)
        ]
        whole = len(sources) == 1 and summary_plan.fits_whole(
            sources[0], sizes, asked_chunk_tokens=summary.chunk_tokens
        )
        summary_plan.check_num_chunks(sources, sizes, whole=whole)
        self._check_room(sessions, turn, sources)
        leaves: list[Leaf] = []
        for source, document in zip(sources, draft.documents, strict=True):
            watch.check()
            text = _load_text(sessions, document)  # one at a time: they can be long
            leaves += summary_plan.cut(
                source,
                text,
                self.tools.counter.count_text,
                sizes,
                whole=whole,
                starts=self.tools.counter.token_starts,
            )
        if leaves:
            draft.nodes = summary_plan.tree(leaves, sizes, whole=whole)
        return draft

    def _check_room(self, sessions: Sessions, turn: Turn, sources: Sequence[Source]) -> None:
        """Return if the quota may have room for the tree; it has none where the texts alone have none."""
        least = Held(tokens=sum(source.num_tokens for source in sources), jobs=len(sources))
        if sources:
            with transaction(sessions) as session:
                limits = quotas.read_limits(session, turn.tenant_id, self.tools.limits)
                quotas.check(quotas.held(session, turn.tenant_id) + least, least, limits=limits)


@dataclass(frozen=True, slots=True)
class _Look:
    """What a plan is made from.

    Attributes:
        ready: documents with a text, in their order.
        gaps: documents that have none.
    """

    summary: Summary
    ready: list[Document]
    gaps: list[JsonObject]
    capacities: Sequence[Capacity]


def _hold(session: Session, turn: Turn) -> Summary | None:
    """The summary, locked; None: it ended meanwhile, or its lease is lost."""
    held = select(Summary).where(
        Summary.id == turn.row_id,
        Summary.state == SummaryState.PREPARING,
        Summary.lease_id == turn.lease_id,
    )
    return session.scalar(held.with_for_update(key_share=True).execution_options(populate_existing=True))


def _look(session: Session, turn: Turn, tools: PlanningTools) -> _Look | None:
    """What a plan is made from; None: a document is awaited, or the summary has ended."""
    # Locked first: whoever ends a document locks its summaries after it, and wakes those that are put off.
    summary = _hold(session, turn)
    if summary is None:
        return None
    now = database_now(session)
    if summary.expires_at is not None and summary.expires_at <= now:
        summary_trees.end(session, summary, SummaryState.EXPIRED)
        return None
    query = (
        select(Document, SummaryDocument.document_id)
        .select_from(SummaryDocument)
        .outerjoin(Document, Document.id == SummaryDocument.document_id)
        .where(SummaryDocument.summary_id == summary.id)
        .order_by(SummaryDocument.position)
    )
    look = _Look(
        summary, [], [], engines.registered_capacities(session).get(summary.model) or [tools.fallback]
    )
    for document, document_id in session.execute(query):
        if document is not None and document.state == DocumentState.EXTRACTING:
            age = now - summary.created_at
            turns.release(session, turn, after=min(max(age, _SOONEST_LOOK), _LATEST_LOOK))
            return None
        if document is not None and document.state == DocumentState.READY:
            look.ready.append(document)
        else:
            look.gaps.append({"document_id": ids.document_id(document_id), "error": _why(document)})
    return look


def _source(sessions: Sessions, index: int, document: Document, tools: PlanningTools) -> Source:
    num_tokens = document.num_tokens
    if num_tokens is None or document.fingerprint != tools.counter.fingerprint:
        # Another tokenizer counted it: what fits is for ours to say.
        num_tokens = tools.counter.count_text(_load_text(sessions, document))
    return Source(index, num_tokens, document.pages)


def _load_text(sessions: Sessions, document: Document) -> str:
    with transaction(sessions) as session:
        body = documents.load_body(session, document.id)
    return "".join(documents.iterate_text(body))


def _why(document: Document | None) -> JsonObject:
    if document is not None and document.error is not None:
        return document.error
    return {"code": "document_gone", "message": "the document was deleted"}


def _settle(
    session: Session, turn: Turn, summary: Summary, draft: _Draft | LongbatchError, tools: PlanningTools
) -> None:
    """The summary, whose row is held, is running, has failed or was put off."""
    if isinstance(draft, LongbatchError):
        _refuse(session, turn, summary, draft)
        return
    summary.gaps = draft.gaps
    first = draft.gaps[0]["error"] if draft.gaps else None
    if isinstance(first, dict) and (not draft.nodes or summary.on_gap == OnGap.FAIL):
        _fail(session, summary, first)
        return
    try:
        quotas.admit(
            session,
            summary.tenant_id,
            Held(tokens=sum(_demand(node) for node in draft.nodes), jobs=len(draft.nodes)),
            limits=quotas.read_limits(session, summary.tenant_id, tools.limits),
        )
    except LimitError as error:
        _refuse(session, turn, summary, error)
    else:
        _write_down(session, summary, draft)


def _refuse(session: Session, turn: Turn, summary: Summary, error: LongbatchError) -> None:
    """It was put off if the quota may have room for it one day; otherwise it has failed.

    No younger summary of its tenant is looked at meanwhile: none takes its room, and no other tenant waits.
    """
    if isinstance(error, LimitError) and error.retryable:
        turns.pause_tenant(session, turn, lasting=_QUOTA_PAUSE)
        turns.release(session, turn)
        session.refresh(summary)
    else:
        _fail(session, summary, {"code": error.code, "message": error.message})


def _fail(session: Session, summary: Summary, error: JsonObject) -> None:
    summary_trees.end(session, summary, SummaryState.FAILED, error=error)


def _write_down(session: Session, summary: Summary, draft: _Draft) -> None:
    """All jobs of the tree stand in the table; leaves are prepared next, the others wait."""
    now = database_now(session)
    # Two ids for each node, in the order of the nodes: age decides who runs first, so trees are worked off
    # depth-first, one after another, and a second attempt keeps its place.
    job_ids = sorted(uuid7() for _ in range(2 * len(draft.nodes)))
    for start in range(0, len(draft.nodes), _MAX_ROWS):
        some = draft.nodes[start : start + _MAX_ROWS]
        jobs = [_job_row(summary, node, job_ids[2 * node.number], now=now) for node in some]
        nodes = [
            _node_row(summary, node, job_ids[2 * node.number : 2 * node.number + 2], draft.documents)
            for node in some
        ]
        session.execute(insert(Job), jobs)
        session.execute(insert(SummaryNode), nodes)
    root = draft.nodes[-1]
    summary.root_job_id = job_ids[2 * root.number]
    summary.plan = {
        "levels": root.level + 1,
        "chunks": sum(node.level == 0 for node in draft.nodes),
        "jobs": len(draft.nodes),
        "chunk_tokens": draft.sizes.chunk_tokens,
        "part_tokens": draft.sizes.part_tokens,
        "fan_in": draft.sizes.fan_in,
        "prompt_tokens": sum(node.prompt_tokens for node in draft.nodes),
    }
    summary.state = SummaryState.RUNNING.value
    summary.lease_id = summary.lease_expires_at = None
    summary.planned_at = now
    session.flush()
    telemetry.logger().info(
        telemetry.SUMMARY_PLANNED, summary_id=ids.summary_id(summary.id), num_jobs=len(draft.nodes)
    )


def _demand(node: Node) -> int:
    """What it takes of its tenant's quota until it is counted; a bound."""
    return node.prompt_tokens + node.max_tokens


def _job_row(summary: Summary, node: Node, job_id: UUID, *, now: datetime) -> Mapping[str, object]:
    state = JobState.BLOCKED if node.num_children else JobState.PREPARING
    return {
        "id": job_id,
        "tenant_id": summary.tenant_id,
        "state": state.value,
        "lane": Lane.BATCH.value,
        "rank": summary.rank,
        "task": TASKS[node.kind],
        "model": summary.model,
        "max_tokens": node.max_tokens,
        "reserved_tokens": _demand(node),
        "sampling": {},
        "created_at": now,
        "expires_at": summary.expires_at,
        "summary_id": summary.id,
    }


def _node_row(
    summary: Summary, node: Node, job_ids: Sequence[UUID], found: Sequence[Document]
) -> Mapping[str, object]:
    leaf = node.leaf
    first, last = (leaf.pages if leaf else None) or (None, None)
    return {
        "summary_id": summary.id,
        "number": node.number,
        "tenant_id": summary.tenant_id,
        "kind": node.kind.value,
        "level": node.level,
        "parent": node.parent,
        "document_id": found[leaf.source].id if leaf else None,
        "chunk": leaf.chunk if leaf else None,
        "start_char": leaf.start if leaf else None,
        "end_char": leaf.end if leaf else None,
        "context_char": leaf.context if leaf else None,
        "first_page": first,
        "last_page": last,
        "tokens": node.prompt_tokens,
        "job_id": job_ids[0],
        "spare_job_id": job_ids[1],
    }
