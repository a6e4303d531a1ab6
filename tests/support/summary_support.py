"""What tests of summaries share: ready documents, planned trees, and jobs of them brought to any end."""

import re
from dataclasses import replace
from hashlib import sha256
from uuid import UUID

import numpy as np
import numpy.typing as npt
from sqlalchemy import select
from sqlalchemy.orm import Session, sessionmaker

import ending
from claiming.claims import claim
from jobs import summaries
from jobs.database import database_now
from jobs.engines import reservations
from jobs.engines.capacity import Capacity
from jobs.extractions.shape import SHAPES
from jobs.models import DEFAULT_TENANT, Job, Summary, SummaryNode
from jobs.models.document import Document, DocumentText
from jobs.prompts.tokenizer import pack_text
from jobs.settings import LimitSettings
from jobs.starting import Claim
from jobs.states import FinishReason
from jobs.states.document import DocumentKind, DocumentState
from jobs.summaries import SummarySpec
from jobs.summaries.planning import Planning, PlanningTools
from support import (
    ENGINE,
    MODEL,
    POLICY,
    WordCounter,
    output_of,
    prepare_next,
    register_engine,
    runner_of,
    within,
)
from worker.turns import WorkResult

# Chunks of about 300 words, three summaries joined at once.
SMALL = Capacity(max_batch_size=4, max_blocks=64, tokens_per_block=64, max_input_len=900, max_seq_len=1024)


class Words(WordCounter):
    """A counter whose tokens are words."""

    def count_text(self, text: str) -> int:
        return len(text.split())

    def token_starts(self, text: str) -> npt.NDArray[np.int32]:
        return np.array([word.start() for word in re.finditer(r"\S+", text)], dtype=np.int32)


TOOLS = PlanningTools(counter=Words(), default_capacity=SMALL, limits=LimitSettings())


def text_of(num_words: int, *, name: str = "w") -> str:
    """Paragraphs of ten numbered words."""
    words = [f"{name}{number}" for number in range(num_words)]
    return "\n\n".join(" ".join(words[start : start + 10]) for start in range(0, num_words, 10))


def ready_document(
    session: Session, text: str, *, tenant_id: UUID = DEFAULT_TENANT, pages: list[int] | None = None
) -> Document:
    """A document whose text is known."""
    document = _document(session, text, tenant_id=tenant_id)
    document.state = DocumentState.READY
    document.num_chars = len(text)
    document.num_tokens = Words().count_text(text)
    document.fingerprint = Words.fingerprint
    document.pages = pages or []
    document.finalized_at = database_now(session)
    session.add(document)
    session.flush()
    session.add(DocumentText(document_id=document.id, tenant_id=tenant_id, body=pack_text(text)))
    session.flush()
    return document


def failed_document(session: Session, *, tenant_id: UUID = DEFAULT_TENANT) -> Document:
    """A document that could not be read."""
    document = _document(session, f"bad {database_now(session)}", tenant_id=tenant_id)
    document.state = DocumentState.FAILED
    document.error = {"code": "document_corrupt", "message": "it is broken"}
    document.finalized_at = database_now(session)
    session.add(document)
    session.flush()
    return document


def _document(session: Session, text: str, *, tenant_id: UUID) -> Document:
    return Document(
        tenant_id=tenant_id,
        sha256=sha256(text.encode()).digest(),
        kind=DocumentKind.TXT,
        filename="test.txt",
        num_bytes=len(text.encode()) or 1,
        pages=[],
        warnings=[],
        created_at=database_now(session),
    )


def create(session: Session, *documents: Document, **fields: object) -> list[Summary]:
    """Summaries of these documents that wait to be planned."""
    spec = SummarySpec(
        document_ids=[each.id for each in documents],
        model=MODEL,
        **fields,  # type: ignore[arg-type]  # named by the caller
    )
    return summaries.create(session, spec, tenant_id=DEFAULT_TENANT)


def plan_all(session: Session) -> None:
    """Every summary that can be planned is."""
    while plan_next(session) is not None:
        pass


def plan_next(
    sessions: sessionmaker[Session] | Session, tools: PlanningTools = TOOLS
) -> WorkResult[Summary] | None:
    """The summary that was planned next, or that was looked at; None: none waits."""
    if not isinstance(sessions, Session):
        return runner_of(sessions).run_next(Planning(tools, SHAPES))
    taken = runner_of(within(sessions)).run_next(Planning(tools, SHAPES))
    sessions.expire_all()
    return taken


def planned(session: Session, num_words: int = 2000, **fields: object) -> Summary:
    """A summary of one document whose tree stands, on a small engine."""
    register_engine(session, capacity=SMALL)
    document = ready_document(session, text_of(num_words, name=f"w{num_words}x"))
    (summary,) = create(session, document, **fields)
    plan_all(session)
    session.refresh(summary)
    return summary


def prepare_all(session: Session) -> list[Job]:
    """Every prompt that can be written is."""
    prepared = []
    while (job := prepare_next(session, Words(), default_capacity=SMALL)) is not None:
        prepared.append(job)
    return prepared


def claim_next(session: Session) -> Claim | None:
    """The next job runs, if one may."""
    found = claim(session, ENGINE, POLICY)
    return found if isinstance(found, Claim) else None


def complete(session: Session, claimed: Claim, text: str = "a summary") -> None:
    """The job has this output, its engine had a token of its prompt, and its reservation is gone."""
    output = replace(output_of(text), cached_tokens=1)
    assert ending.complete(session, claimed.lease, output, FinishReason.STOP)
    _drop_reservation(session, claimed)


def fail(session: Session, claimed: Claim, code: str = "engine_error") -> None:
    """The job has failed for good."""
    assert ending.fail(session, claimed.lease, {"code": code, "message": "it broke"})
    _drop_reservation(session, claimed)


def _drop_reservation(session: Session, claimed: Claim) -> None:
    reservations.close(session, claimed.lease.lease_id)


def nodes_of(session: Session, summary: Summary) -> list[tuple[SummaryNode, Job]]:
    """The tree with the jobs that stand for its nodes now."""
    query = (
        select(SummaryNode, Job)
        .join(Job, Job.id == SummaryNode.job_id)
        .where(SummaryNode.summary_id == summary.id)
        .order_by(SummaryNode.number)
        .execution_options(populate_existing=True)
    )
    return [(node, job) for node, job in session.execute(query)]


def run_to_end(session: Session, *, text: str = "a summary", max_steps: int = 500) -> None:
    """All that can run has completed."""
    for _ in range(max_steps):
        prepare_all(session)
        claimed = claim_next(session)
        if claimed is None:
            return
        complete(session, claimed, text)
    raise AssertionError("it does not end")
