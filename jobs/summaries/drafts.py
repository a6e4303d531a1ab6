"""Drafts of summaries: a plan before its jobs are inserted, and its demand on the tenant's quota."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from hashlib import sha256
from typing import Final
from uuid import UUID

from sqlalchemy import insert
from sqlalchemy.orm import Session

from jobs import ids, telemetry
from jobs.database import database_now
from jobs.errors import LimitError
from jobs.ids import uuid7
from jobs.job_rows import new_job
from jobs.models import Job, JsonObject, Summary, SummaryNode
from jobs.models.document import Document
from jobs.states.summary import SummaryState
from jobs.summaries.shape import JobForm, TreeShape
from jobs.summaries.tree import Node, Sizes
from jobs.tenants.quotas import QuotaUsage
from jobs.traces import subjects
from jobs.trees import counts as tree_counts

_MAX_ROWS: Final = 1000  # per statement


@dataclass(slots=True)
class PlanDraft:
    """A plan before its jobs are inserted.

    Attributes:
        documents: the ready ones, in order.
        gaps: documents without a text.
        sizes: of chunks and answers.
        fingerprint: of the tokenizer.
        nodes: by number; empty if no document has a text, or the quota has no room.
        demand: what the plan takes of the quota; a lower bound while there are no nodes.
        quota_error: why the plan is unfinished; None if it is complete.
    """

    documents: Sequence[Document]
    gaps: list[JsonObject]
    sizes: Sizes
    fingerprint: str
    nodes: Sequence[Node] = ()
    demand: QuotaUsage = field(default_factory=QuotaUsage)
    quota_error: LimitError | None = None

    @property
    def is_empty(self) -> bool:
        """True if no document has a text."""
        return self.quota_error is None and not self.nodes

    def add_tree(self, nodes: Sequence[Node]) -> None:
        """Add the tree to the draft and compute its demand."""
        self.nodes = nodes
        self.demand = QuotaUsage(tokens=sum(_demand(node) for node in nodes), jobs=len(nodes))

    def demand_as_json(self) -> JsonObject:
        """Write the demand as JSON for `saved_demand` of a later draft."""
        return {"tokens": self.demand.tokens, "jobs": self.demand.jobs, "made_from": self._made_from()}

    def saved_demand(self, saved: JsonObject | None) -> QuotaUsage:
        """Read a saved demand: zero if documents, sizes or tokenizer were different."""
        match saved:
            case {"tokens": int(tokens), "jobs": int(jobs), "made_from": found} if found == self._made_from():
                return QuotaUsage(tokens, jobs)
        return QuotaUsage()

    def _made_from(self) -> str:
        parts = self.sizes, [each.id for each in self.documents], self.fingerprint
        return sha256(repr(parts).encode()).hexdigest()


def insert_jobs(
    session: Session, summary: Summary, draft: PlanDraft, shape: TreeShape, *, max_traced: int = 0
) -> None:
    """Insert all jobs of the tree: leaves to be prepared next, the others blocked.

    None has a prompt yet: it is composed at preparation, a join's after its children have ended. Its trace,
    if it has one, holds `max_traced` of them at most, the root among them.
    """
    now = database_now(session)
    form = shape.form(session, summary)
    trace = subjects.trace_of_jobs(summary, max_jobs=max_traced)
    # Two ids for each node, in the order of the nodes: older jobs run first, so trees are processed
    # depth-first, one after another, and a second attempt keeps its place.
    job_ids = sorted(uuid7() for _ in range(2 * len(draft.nodes)))
    for start in range(0, len(draft.nodes), _MAX_ROWS):
        some = draft.nodes[start : start + _MAX_ROWS]
        jobs = [
            _new_job(summary, node, job_ids[2 * node.number], task=shape.tasks[node.kind], form=form, now=now)
            for node in some
        ]
        nodes = [
            _node_row(summary, node, job_ids[2 * node.number : 2 * node.number + 2], draft.documents)
            for node in some
        ]
        if trace is not None:
            for node, job in zip(some, jobs, strict=True):
                job.traceparent = trace.of(node.number, among=len(draft.nodes))
        session.bulk_save_objects(jobs)  # a sixth of the time of `add_all`
        session.execute(insert(SummaryNode), nodes)
    root = draft.nodes[-1]
    summary.root_job_id = job_ids[2 * root.number]
    summary.plan = {
        "levels": root.level + 1,
        "chunks": len({(node.leaf.source, node.leaf.chunk) for node in draft.nodes if node.leaf}),
        "jobs": len(draft.nodes),
        "chunk_tokens": draft.sizes.chunk_tokens,
        "part_tokens": draft.sizes.chunk_summary_tokens,
        "fan_in": draft.sizes.fan_in,
        "prompt_tokens": sum(node.prompt_tokens for node in draft.nodes),
    }
    tree_counts.begin(summary)
    summary.state = SummaryState.RUNNING.value
    summary.lease_id = summary.lease_expires_at = summary.refused_demand = None
    summary.planned_at = now
    session.flush()
    telemetry.logger().info(
        telemetry.SUMMARY_PLANNED,
        summary_id=ids.summary_id(summary.id),
        num_jobs=len(draft.nodes),
        **telemetry.in_trace(summary.traceparent),
    )


def _demand(node: Node) -> int:
    """Return an upper bound on the node's use of the quota, until it is counted."""
    return node.prompt_tokens + node.max_tokens


def _new_job(summary: Summary, node: Node, job_id: UUID, *, task: str, form: JobForm, now: datetime) -> Job:
    return new_job(
        id=job_id,
        is_blocked=node.num_children > 0,
        tenant_id=summary.tenant_id,
        rank=summary.rank,
        task=task,
        model=summary.model,
        max_tokens=node.max_tokens,
        reserved_tokens=_demand(node),
        created_at=now,
        expires_at=summary.expires_at,
        summary_id=summary.id,
        guide_id=form.guide_id,
        is_whole=form.is_whole,
        api_key_id=summary.api_key_id,
    )


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
        "question": node.question,
        "tokens": node.prompt_tokens,
        "job_id": job_ids[0],
        "spare_job_id": job_ids[1],
    }
