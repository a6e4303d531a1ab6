"""Plans of summaries: once the documents are ready, one transaction inserts the whole tree of jobs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final, Self
from uuid import UUID

from sqlalchemy import select
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from jobs import documents, ids, telemetry, turns
from jobs.database import database_now, transaction
from jobs.engines import registry
from jobs.engines.capacity import Capacity
from jobs.errors import CountingInterruptedError, LimitError, LongbatchError, UnavailableError
from jobs.models import JsonObject, Summary, SummaryDocument
from jobs.models.document import Document
from jobs.models.turn import PLANNING, WorkKind
from jobs.settings import LimitSettings, Settings
from jobs.states.document import DocumentState
from jobs.states.summary import OnGap, Purpose, SummaryState
from jobs.summaries import admission, drafts, stored_templates, tree
from jobs.summaries.drafts import PlanDraft
from jobs.summaries.own_templates import OwnTemplate
from jobs.summaries.prompts import TextCounter
from jobs.summaries.shape import SummaryShape, TreeShape
from jobs.summaries.tree import Leaf, SourceDocument
from jobs.tenants.quotas import QuotaUsage
from jobs.trees import progress as tree_progress
from jobs.turns import Turn
from jobs.turns.work import InterruptedWorkError, Interruption, Sessions

# The end of its last document wakes a summary. It is checked anyway, less often the longer it waits.
_SHORTEST_RECHECK: Final = timedelta(seconds=5)
_LONGEST_RECHECK: Final = timedelta(minutes=10)
_ALL_ATTEMPTS_FAILED: Final = "Planning failed or crashed its worker on every attempt."
_MAX_ROWS: Final = 1000  # per statement


class PlanningFailedError(LongbatchError):
    """The text could not be cut into chunks."""

    code = "planning_failed"


@dataclass(frozen=True, slots=True)
class PlanningTools:
    """Everything that planning needs besides a session.

    Attributes:
        counter: of prompts and texts.
        default_capacity: what to assume while no engine has registered.
        limits: for tenants without limits of their own.
    """

    counter: TextCounter
    default_capacity: Capacity
    limits: LimitSettings
    max_traced: int = 0

    @classmethod
    def of(cls, settings: Settings, counter: TextCounter) -> Self:
        """Build the tools from the settings."""
        capacity = registry.configured_capacity(settings.engine)
        return cls(counter, capacity, settings.limits, settings.traces.max_jobs)


@dataclass(frozen=True, slots=True)
class Planning:
    """The `turns.work.Work` that plans one summary, once all its documents have ended.

    The summary's row is not locked while the documents are cut: a cancellation need not wait, and the plan is
    then discarded.

    Attributes:
        shapes: of the trees, by `Purpose`; see `extractions.shape`.
    """

    tools: PlanningTools
    shapes: Mapping[str, TreeShape] = field(default_factory=lambda: {Purpose.SUMMARY: SummaryShape()})
    lease: timedelta = timedelta(seconds=30)
    kind: WorkKind = PLANNING

    def do(self, sessions: Sessions, turn: Turn, watch: Interruption) -> Summary | None:
        """Plan the summary, fail it, or postpone it until documents and quota allow it."""
        try:
            draft: PlanDraft | LongbatchError | None = self._draft(sessions, turn, watch)
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
        except BaseException as error:  # noqa: BLE001  # the same text would only crash the tokenizer again
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
            summary = _lock(session, turn)
            if summary is not None:
                _apply(session, turn, summary, draft, self)
            return summary

    def give_up(self, session: Session, turn: Turn) -> Summary | None:
        """Fail the summary after its last attempt."""
        summary = _lock(session, turn)
        if summary is not None:
            _postpone_or_fail(session, turn, summary, PlanningFailedError(_ALL_ATTEMPTS_FAILED))
        return summary

    def name_row(self, row_id: UUID) -> tuple[str, str]:
        """Return the log field and the public id of the summary."""
        return "summary_id", ids.summary_id(row_id)

    def _draft(self, sessions: Sessions, turn: Turn, watch: Interruption) -> PlanDraft | None:
        """Draft the tree for the available engines, if the quota may have room.

        Returns:
            The draft; None if the summary is postponed or has ended.

        Raises:
            LongbatchError: there is no possible plan.
        """
        with transaction(sessions) as session:
            inputs = _read_inputs(session, turn, self.tools)
        if inputs is None:
            return None
        summary = inputs.summary
        shape = self.shapes[summary.purpose]
        sizes = shape.sizes(summary, inputs.capacities, self.tools.counter, inputs.own)
        draft = PlanDraft(inputs.ready, inputs.gaps, sizes, self.tools.counter.fingerprint)
        saved = draft.saved_demand(summary.refused_demand)
        # First by what an earlier draft of this tree needed, then by what its documents need at least.
        if not self._refuse_early(sessions, summary, draft, saved):
            sources = [_source(sessions, *each, self.tools) for each in enumerate(draft.documents)]
            least = QuotaUsage(tokens=sum(source.num_tokens for source in sources), jobs=len(sources))
            if not self._refuse_early(sessions, summary, draft, least):
                self._cut(sessions, draft, sources, watch, summary)
        return draft

    def _cut(
        self,
        sessions: Sessions,
        draft: PlanDraft,
        sources: Sequence[SourceDocument],
        watch: Interruption,
        summary: Summary,
    ) -> None:
        """Cut the documents and add the tree over their chunks to the draft."""
        sizes = draft.sizes
        whole = len(sources) == 1 and tree.fits_whole(
            sources[0], sizes, asked_chunk_tokens=summary.chunk_tokens
        )
        tree.check_num_chunks(sources, sizes, whole=whole)
        leaves: list[Leaf] = []
        for source, document in zip(sources, draft.documents, strict=True):
            watch.check()
            text = _load_text(sessions, document)  # one at a time: texts can be long
            leaves += tree.cut(
                source,
                text,
                self.tools.counter.count_text,
                sizes,
                whole=whole,
                starts=self.tools.counter.token_starts,
            )
        if leaves:
            draft.add_tree(self.shapes[summary.purpose].build(summary, leaves, sizes, whole=whole))

    def _refuse_early(
        self, sessions: Sessions, summary: Summary, draft: PlanDraft, least: QuotaUsage
    ) -> bool:
        """Refuse the draft if the quotas cannot hold even `least`; return True if it is refused."""
        if not least.jobs:
            return False
        draft.demand = least
        try:
            with transaction(sessions) as session:
                admission.check(session, summary, least, settings=self.tools.limits)
        except LimitError as error:
            draft.quota_error = error
        return draft.quota_error is not None


@dataclass(frozen=True, slots=True)
class _Inputs:
    """The inputs of a plan.

    Attributes:
        summary: to plan.
        ready: documents with a text, in order.
        gaps: documents without one.
        capacities: of the model's engines; at least one.
        own: the caller's own template; None: ours.
    """

    summary: Summary
    ready: list[Document]
    gaps: list[JsonObject]
    capacities: Sequence[Capacity]
    own: OwnTemplate | None


def _lock(session: Session, turn: Turn) -> Summary | None:
    """Lock the summary; return None if it has ended or its lease is lost."""
    held = turns.held(Summary, turn).with_for_update(key_share=True)
    return session.scalar(held.execution_options(populate_existing=True))


def _read_inputs(session: Session, turn: Turn, tools: PlanningTools) -> _Inputs | None:
    """Read the inputs; None if a document is still extracting or the summary ended."""
    # Lock it first: a transaction that ends a document then locks its summaries, and wakes postponed ones.
    summary = _lock(session, turn)
    if summary is None:
        return None
    now = database_now(session)
    if summary.expires_at is not None and summary.expires_at <= now:
        tree_progress.end(session, summary, SummaryState.EXPIRED)
        return None
    query = (
        select(Document, SummaryDocument.document_id)
        .select_from(SummaryDocument)
        .outerjoin(Document, Document.id == SummaryDocument.document_id)
        .where(SummaryDocument.summary_id == summary.id)
        .order_by(SummaryDocument.position)
    )
    inputs = _Inputs(
        summary,
        [],
        [],
        registry.registered_capacities(session).get(summary.model) or [tools.default_capacity],
        stored_templates.load(session, summary),
    )
    for document, document_id in session.execute(query):
        if document is not None and document.state == DocumentState.EXTRACTING:
            age = now - summary.created_at
            turns.release(session, turn, after=min(max(age, _SHORTEST_RECHECK), _LONGEST_RECHECK))
            return None
        if document is not None and document.state == DocumentState.READY:
            inputs.ready.append(document)
        else:
            inputs.gaps.append({"document_id": ids.document_id(document_id), "error": _gap_error(document)})
    return inputs


def _source(sessions: Sessions, index: int, document: Document, tools: PlanningTools) -> SourceDocument:
    num_tokens = document.num_tokens
    if num_tokens is None or document.fingerprint != tools.counter.fingerprint:
        # Counted by another tokenizer: recount, since ours determines what fits.
        num_tokens = tools.counter.count_text(_load_text(sessions, document))
    return SourceDocument(index, num_tokens, document.pages)


def _load_text(sessions: Sessions, document: Document) -> str:
    with transaction(sessions) as session:
        body = documents.load_body(session, document.id)
    return "".join(documents.iterate_text(body))


def _gap_error(document: Document | None) -> JsonObject:
    if document is not None and document.error is not None:
        return document.error
    return {"code": "document_gone", "message": "The document was deleted."}


def _apply(
    session: Session, turn: Turn, summary: Summary, draft: PlanDraft | LongbatchError, planning: Planning
) -> None:
    """Start, fail or postpone the summary, whose row is locked."""
    if isinstance(draft, LongbatchError):
        _postpone_or_fail(session, turn, summary, draft)
        return
    summary.gaps = draft.gaps
    summary.warnings = [
        {"document_id": ids.document_id(document.id), **warning}
        for document in draft.documents
        for warning in document.warnings
    ]
    first = draft.gaps[0]["error"] if draft.gaps else None
    if isinstance(first, dict) and (draft.is_empty or summary.on_gap == OnGap.FAIL):
        _fail(session, summary, first)
        return
    try:
        if draft.quota_error:
            raise draft.quota_error
        admission.admit(session, summary, draft.demand, settings=planning.tools.limits)
    except LimitError as error:
        summary.refused_demand = draft.demand_as_json()
        _postpone_or_fail(session, turn, summary, error)
    else:
        shape, max_traced = planning.shapes[summary.purpose], planning.tools.max_traced
        drafts.insert_jobs(session, summary, draft, shape, max_traced=max_traced)
        admission.wake_next(session, summary)


def _postpone_or_fail(session: Session, turn: Turn, summary: Summary, error: LongbatchError) -> None:
    """Postpone the summary if the quota may have room one day; otherwise fail it."""
    if isinstance(error, LimitError) and error.retryable:
        admission.wait(session, turn, summary, error)
    else:
        _fail(session, summary, {"code": error.code, "message": error.message})


def _fail(session: Session, summary: Summary, error: JsonObject) -> None:
    tree_progress.end(session, summary, SummaryState.FAILED, error=error)
