"""Summaries planned: once their documents are ready, the whole tree of jobs stands in one transaction."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final, Self
from uuid import UUID

from sqlalchemy import select
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from jobs import documents, ids, telemetry, trees, turns
from jobs.database import database_now, transaction
from jobs.engines import registry
from jobs.engines.capacity import Capacity
from jobs.errors import CountingInterruptedError, LimitError, LongbatchError, UnavailableError
from jobs.models import JsonObject, Summary, SummaryDocument
from jobs.models.document import Document
from jobs.models.turn import PLANNING, Kind
from jobs.settings import LimitSettings, Settings
from jobs.states.document import DocumentState
from jobs.states.summary import OnGap, SummaryState
from jobs.summaries import drafts, tree
from jobs.summaries.drafts import Draft
from jobs.summaries.prompts import TextCounter, overheads, wishes_of
from jobs.summaries.tree import Leaf, Source
from jobs.tenants import quotas
from jobs.tenants.quotas import Held
from jobs.turns import Turn
from jobs.turns.work import InterruptedWorkError, Sessions, Watch

# A full quota is looked at again after this: one sum over the tenant's unfinished jobs, no text is read.
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
        return cls(counter, registry.configured_capacity(settings.engine), settings.limits)


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
            draft: Draft | LongbatchError | None = self._draft(sessions, turn, watch)
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

    def _draft(self, sessions: Sessions, turn: Turn, watch: Watch) -> Draft | None:
        """Draw the tree for this summary on the engines that are there, if the quota may have room for it.

        Returns:
            None: the summary was put off, or has ended.

        Raises:
            LongbatchError: there can be none.
        """
        with transaction(sessions) as session:
            look = _look(session, turn, self.tools)
        if look is None:
            return None
        summary = look.summary
        sizes = tree.find_sizes(
            look.capacities,
            overheads(wishes_of(summary), self.tools.counter),
            length=summary.length,
            chunk_tokens=summary.chunk_tokens,
            overlap_tokens=summary.overlap_tokens,
        )
        draft = Draft(look.ready, look.gaps, sizes, self.tools.counter.fingerprint)
        known = draft.known_demand(summary.refused_demand)
        if not self._has_no_room(sessions, turn, draft, known):
            sources = [_source(sessions, *each, self.tools) for each in enumerate(draft.documents)]
            least = Held(tokens=sum(source.num_tokens for source in sources), jobs=len(sources))
            if not self._has_no_room(sessions, turn, draft, least):
                self._cut(sessions, draft, sources, watch, chunk_tokens=summary.chunk_tokens)
        return draft

    def _cut(
        self,
        sessions: Sessions,
        draft: Draft,
        sources: Sequence[Source],
        watch: Watch,
        *,
        chunk_tokens: int | None,
    ) -> None:
        """Cut the documents and put the tree over their chunks into the draft."""
        sizes = draft.sizes
        whole = len(sources) == 1 and tree.fits_whole(sources[0], sizes, asked_chunk_tokens=chunk_tokens)
        tree.check_num_chunks(sources, sizes, whole=whole)
        leaves: list[Leaf] = []
        for source, document in zip(sources, draft.documents, strict=True):
            watch.check()
            text = _load_text(sessions, document)  # one at a time: they can be long
            leaves += tree.cut(
                source,
                text,
                self.tools.counter.count_text,
                sizes,
                whole=whole,
                starts=self.tools.counter.token_starts,
            )
        if leaves:
            draft.put(tree.tree(leaves, sizes, whole=whole))

    def _has_no_room(self, sessions: Sessions, turn: Turn, draft: Draft, least: Held) -> bool:
        """Note on the draft that the quota has no room for the least that it takes, before more is done."""
        if not least.jobs:
            return False
        draft.demand = least
        with transaction(sessions) as session:
            limits = quotas.read_limits(session, turn.tenant_id, self.tools.limits)
            held = quotas.held(session, turn.tenant_id)
        try:
            quotas.check(held + least, least, limits=limits)
        except LimitError as error:
            draft.no_room = error
        return draft.no_room is not None


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
        trees.end(session, summary, SummaryState.EXPIRED)
        return None
    query = (
        select(Document, SummaryDocument.document_id)
        .select_from(SummaryDocument)
        .outerjoin(Document, Document.id == SummaryDocument.document_id)
        .where(SummaryDocument.summary_id == summary.id)
        .order_by(SummaryDocument.position)
    )
    look = _Look(
        summary, [], [], registry.registered_capacities(session).get(summary.model) or [tools.fallback]
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
    session: Session, turn: Turn, summary: Summary, draft: Draft | LongbatchError, tools: PlanningTools
) -> None:
    """The summary, whose row is held, is running, has failed or was put off."""
    if isinstance(draft, LongbatchError):
        _refuse(session, turn, summary, draft)
        return
    summary.gaps = draft.gaps
    first = draft.gaps[0]["error"] if draft.gaps else None
    if isinstance(first, dict) and (draft.is_empty or summary.on_gap == OnGap.FAIL):
        _fail(session, summary, first)
        return
    try:
        if draft.no_room:
            raise draft.no_room
        limits = quotas.read_limits(session, summary.tenant_id, tools.limits)
        quotas.admit(session, summary.tenant_id, draft.demand, limits=limits)
    except LimitError as error:
        summary.refused_demand = draft.note_demand()
        _refuse(session, turn, summary, error)
    else:
        drafts.write_down(session, summary, draft)


def _refuse(session: Session, turn: Turn, summary: Summary, error: LongbatchError) -> None:
    """It was put off if the quota may have room for it one day; otherwise it has failed.

    No younger summary of its tenant is looked at meanwhile: none takes its room, and no other tenant waits.
    """
    if isinstance(error, LimitError) and error.retryable:
        session.flush()
        turns.pause_tenant(session, turn, lasting=_QUOTA_PAUSE)
        turns.release(session, turn)
        session.refresh(summary)
    else:
        _fail(session, summary, {"code": error.code, "message": error.message})


def _fail(session: Session, summary: Summary, error: JsonObject) -> None:
    trees.end(session, summary, SummaryState.FAILED, error=error)
