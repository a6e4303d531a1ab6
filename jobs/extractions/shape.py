"""The parts of an extraction as the planner of trees takes them; and the shapes of all kinds of trees."""

from collections.abc import Mapping, Sequence
from typing import Final

from sqlalchemy.orm import Session

from jobs.engines.capacity import Capacity
from jobs.extractions.fields import reply_guide
from jobs.extractions.prompts import extraction_overheads, extraction_wording, fields_of
from jobs.models import Summary
from jobs.questions.shape import ForestShape, store_form
from jobs.states.summary import EXTRACTION_TASKS, NodeKind, Purpose
from jobs.summaries import tree
from jobs.summaries.own_templates import OwnTemplate
from jobs.summaries.prompts import TextCounter
from jobs.summaries.shape import JobForm, SummaryShape, TreeShape
from jobs.summaries.stored_templates import variables_of
from jobs.summaries.tree import Leaf, Node, Sizes

# Without a length of the caller's: braces and names, and for each field a quote of two lines and a value.
_BASE_TOKENS: Final = 64
_FIELD_TOKENS: Final = 96
MAX_LENGTH: Final = 8192


def default_length(num_fields: int) -> int:
    """Return the target length of a reply about so many fields, in tokens."""
    return min(MAX_LENGTH, _BASE_TOKENS + _FIELD_TOKENS * num_fields)


def find_extraction_sizes(
    capacities: Sequence[Capacity],
    overheads: Mapping[NodeKind, int],
    *,
    length: int,
    chunk_tokens: int | None = None,
) -> Sizes:
    """Choose the sizes for these engines: a reply about a part is as long as one about the whole.

    Raises:
        ContextLengthExceededError: an engine is too small.
    """
    return tree.find_sizes(
        capacities, overheads, length=length, chunk_tokens=chunk_tokens, part_tokens=length
    )


class PartsShape:
    """The parts of one document, which rules join."""

    tasks: Mapping[NodeKind, str] = EXTRACTION_TASKS

    def sizes(
        self,
        summary: Summary,
        capacities: Sequence[Capacity],
        counter: TextCounter,
        own: OwnTemplate | None,
    ) -> Sizes:
        """Choose the sizes for these engines."""
        options, variables = extraction_wording(summary, own), variables_of(summary)
        found = extraction_overheads(options, counter, variables=variables)
        return find_extraction_sizes(
            capacities, found, length=summary.length, chunk_tokens=summary.chunk_tokens
        )

    def build(self, summary: Summary, leaves: Sequence[Leaf], sizes: Sizes, *, whole: bool) -> list[Node]:  # noqa: ARG002  # a `TreeShape`
        """Build a node for each part."""
        return tree.build_apart(leaves, sizes, whole=whole)

    def form(self, session: Session, summary: Summary) -> JobForm:
        """Store the form of a reply, with whether the engines of the model see to it."""
        return store_form(session, summary, reply_guide(summary.schema or {}, fields_of(summary)))


SHAPES: Final[Mapping[str, TreeShape]] = {
    Purpose.SUMMARY: SummaryShape(),
    Purpose.ANSWERS: ForestShape(),
    Purpose.EXTRACTION: PartsShape(),
}
