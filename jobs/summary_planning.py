"""Summaries planned: once their documents are ready, the whole tree of jobs stands in one transaction."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, Self
from uuid import UUID

from sqlalchemy import Text, cast, exists, func, insert, or_, select, update
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session, aliased

from jobs import documents, engines, ids, quotas, summary_plan, summary_trees, telemetry
from jobs.admission import Capacity
from jobs.database import database_now
from jobs.document_models import Document
from jobs.document_states import DocumentState
from jobs.errors import LimitError, LongbatchError
from jobs.ids import uuid7
from jobs.models import Job, JsonObject, Summary, SummaryDocument, SummaryNode
from jobs.quotas import Held
from jobs.settings import LimitSettings, Settings
from jobs.states import JobState, Lane
from jobs.summary_plan import Leaf, Node, Sizes, Source
from jobs.summary_prompts import TextCounter, overheads, wishes_of
from jobs.summary_states import TASKS, OnGap, SummaryState

# Far above what cutting a document takes; a worker that is frozen meanwhile keeps its summary for so long.
_MAX_PLANNING: Final = "5min"
# Summaries that are looked through for one that nobody plans: more than there will be service workers.
_MAX_PLANNERS: Final = 64
_LOCK: Final = 0x10E1  # the first half of our advisory locks' keys
# A full quota is looked at again after this.
_PUT_OFF: Final = timedelta(seconds=2)
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


def plan_next(session: Session, tools: PlanningTools) -> Summary | None:
    """One summary whose documents have all ended is running, has failed, or was put off; None: none waits.

    An advisory lock sees to it that two workers never plan one summary. Its row stays free meanwhile, since
    a long document takes seconds: whoever cancels the summary does not wait, and the plan is dropped.
    """
    for_now = func.set_config("idle_in_transaction_session_timeout", _MAX_PLANNING, True)
    session.execute(select(for_now))
    while (waiting := _next_waiting(session)) is not None:
        try:
            draft: _Draft | LongbatchError = _draft(session, waiting, tools)
        except LongbatchError as error:
            draft = error
        except (SystemExit, KeyboardInterrupt, SQLAlchemyError):
            raise
        except BaseException as error:  # noqa: BLE001  # one text must not stop all others
            telemetry.logger().error(
                telemetry.LOOP_FAILED,
                loop="plan",
                summary_id=ids.summary_id(waiting.id),
                error=type(error).__name__,
            )
            draft = PlanningFailedError()
        still = select(Summary).where(Summary.id == waiting.id, Summary.state == SummaryState.PREPARING)
        summary = session.scalar(
            still.with_for_update(key_share=True).execution_options(populate_existing=True)
        )
        if summary is not None:
            _settle(session, summary, draft, tools)
            return summary
    return None


def _next_waiting(session: Session) -> Summary | None:
    """The oldest summary that can be planned; nobody else plans it while this transaction is open."""
    pending = exists().where(
        SummaryDocument.summary_id == Summary.id,
        Document.id == SummaryDocument.document_id,
        Document.state == DocumentState.EXTRACTING,
    )
    # Until the quota has room for the one that was put off, no younger one of its tenant is looked at: they
    # do not take its room, and a full quota of one tenant keeps no other tenant waiting.
    put_off = aliased(Summary)
    full = select(put_off.tenant_id).where(
        put_off.finalized_at.is_(None),
        put_off.state == SummaryState.PREPARING,
        put_off.plan_after > func.clock_timestamp(),
    )
    waiting = (
        select(Summary)
        .where(
            Summary.finalized_at.is_(None),
            Summary.state == SummaryState.PREPARING,
            Summary.tenant_id.not_in(full),
            or_(Summary.expires_at.is_(None), Summary.expires_at > func.clock_timestamp()),
            ~pending,
        )
        .order_by(Summary.id)
        .execution_options(populate_existing=True)
    )
    for summary_id in session.scalars(waiting.with_only_columns(Summary.id).limit(_MAX_PLANNERS)).all():
        lock = func.pg_try_advisory_xact_lock(_LOCK, func.hashtext(cast(summary_id, Text)))
        # Read again under the lock: its last holder may just have planned it.
        if session.scalar(select(lock)) and (
            summary := session.scalar(waiting.where(Summary.id == summary_id))
        ):
            return summary
    return None


def _draft(session: Session, summary: Summary, tools: PlanningTools) -> _Draft:
    """The tree for this summary on the engines that are there.

    Raises:
        LimitError: the quota has not even room for the texts, so that cutting them would be for nothing.
        LongbatchError: there can be none.
    """
    query = (
        select(Document, SummaryDocument.document_id)
        .select_from(SummaryDocument)
        .outerjoin(Document, Document.id == SummaryDocument.document_id)
        .where(SummaryDocument.summary_id == summary.id)
        .order_by(SummaryDocument.position)
    )
    ready: list[Document] = []
    gaps: list[JsonObject] = []
    for document, document_id in session.execute(query):
        if document is not None and document.state == DocumentState.READY:
            ready.append(document)
        else:
            gaps.append({"document_id": ids.document_id(document_id), "error": _why(document)})
    capacities = engines.registered_capacities(session).get(summary.model) or [tools.fallback]
    sizes = summary_plan.find_sizes(
        capacities,
        overheads(wishes_of(summary), tools.counter),
        length=summary.length,
        chunk_tokens=summary.chunk_tokens,
        overlap_tokens=summary.overlap_tokens,
    )
    draft = _Draft(ready, gaps, sizes)
    sources = [_source(session, index, document, tools) for index, document in enumerate(ready)]
    whole = len(sources) == 1 and summary_plan.fits_whole(
        sources[0], sizes, asked_chunk_tokens=summary.chunk_tokens
    )
    summary_plan.check_num_chunks(sources, sizes, whole=whole)
    least = Held(tokens=sum(source.num_tokens for source in sources), jobs=len(sources))
    if sources:
        limits = quotas.read_limits(session, summary.tenant_id, tools.limits)
        quotas.check(quotas.held(session, summary.tenant_id) + least, least, limits=limits)
    leaves: list[Leaf] = []
    for source, document in zip(sources, ready, strict=True):
        text = documents.load_text(session, document.id)  # one at a time: they can be long
        leaves += summary_plan.cut(source, text, tools.counter.count_text, sizes, whole=whole)
    if leaves:
        draft.nodes = summary_plan.tree(leaves, sizes, whole=whole)
    return draft


def _source(session: Session, index: int, document: Document, tools: PlanningTools) -> Source:
    num_tokens = document.num_tokens
    if num_tokens is None or document.fingerprint != tools.counter.fingerprint:
        # Another tokenizer counted it: what fits is for ours to say.
        num_tokens = tools.counter.count_text(documents.load_text(session, document.id))
    return Source(index, num_tokens, document.pages)


def _why(document: Document | None) -> JsonObject:
    if document is not None and document.error is not None:
        return document.error
    return {"code": "document_gone", "message": "the document was deleted"}


def _settle(session: Session, summary: Summary, draft: _Draft | LongbatchError, tools: PlanningTools) -> None:
    """The summary, whose row is held, is running, has failed or was put off."""
    if isinstance(draft, LongbatchError):
        _refuse(session, summary, draft)
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
        _refuse(session, summary, error)
    else:
        _write_down(session, summary, draft)


def _refuse(session: Session, summary: Summary, error: LongbatchError) -> None:
    """It was put off if the quota may have room for it one day; else it has failed."""
    if isinstance(error, LimitError) and error.retryable:
        later = func.clock_timestamp() + _PUT_OFF
        session.execute(update(Summary).where(Summary.id == summary.id).values(plan_after=later))
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
