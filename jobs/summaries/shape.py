"""What the planner asks of a kind of tree: its sizes, its nodes, and what its jobs are asked for."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol
from uuid import UUID

from sqlalchemy.orm import Session

from jobs.engines.capacity import Capacity
from jobs.models import Summary
from jobs.states.summary import TASKS, NodeKind
from jobs.summaries import tree
from jobs.summaries.own_templates import OwnTemplate
from jobs.summaries.prompts import TextCounter, overheads, prompt_options
from jobs.summaries.tree import Leaf, Node, Sizes


@dataclass(frozen=True, slots=True)
class JobForm:
    """The form that the outputs of a tree's jobs must have; see the columns of `Job`."""

    guide_id: UUID | None = None
    is_whole: bool = False


class TreeShape(Protocol):
    """A kind of tree."""

    @property
    def tasks(self) -> Mapping[NodeKind, str]:
        """The `task` of its jobs, by kind of node."""

    def sizes(
        self,
        summary: Summary,
        capacities: Sequence[Capacity],
        counter: TextCounter,
        own: OwnTemplate | None,
    ) -> Sizes:
        """Choose the sizes for these engines, and the caller's own template.

        Raises:
            ContextLengthExceededError: an engine is too small.
        """

    def build(self, summary: Summary, leaves: Sequence[Leaf], sizes: Sizes, *, whole: bool) -> list[Node]:
        """Build the nodes over these leaves, by number.

        Raises:
            TooManyChunksError: they are too many for one plan.
        """

    def form(self, session: Session, summary: Summary) -> JobForm:
        """Store the form that the outputs of its jobs must have, if they must have one."""


class SummaryShape:
    """The tree of a summary."""

    tasks: Mapping[NodeKind, str] = TASKS

    def sizes(
        self,
        summary: Summary,
        capacities: Sequence[Capacity],
        counter: TextCounter,
        own: OwnTemplate | None,
    ) -> Sizes:
        """Choose the sizes for these engines."""
        return tree.find_sizes(
            capacities,
            overheads(prompt_options(summary, own), counter),
            length=summary.length,
            chunk_tokens=summary.chunk_tokens,
            overlap_tokens=summary.overlap_tokens,
        )

    def build(self, summary: Summary, leaves: Sequence[Leaf], sizes: Sizes, *, whole: bool) -> list[Node]:  # noqa: ARG002  # a `TreeShape`
        """Build one tree over all leaves."""
        return tree.build(leaves, sizes, whole=whole)

    def form(self, session: Session, summary: Summary) -> JobForm:  # noqa: ARG002  # a `TreeShape`
        """Return none: a summary is any text."""
        return JobForm()
