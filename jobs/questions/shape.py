"""The forest of answers as the planner of trees takes it."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from sqlalchemy.orm import Session

from jobs.engines import registry
from jobs.engines.capacity import Capacity
from jobs.models import Summary
from jobs.prompts import guides, store
from jobs.prompts.abilities import is_lacking
from jobs.prompts.guides import Guide, GuideKind
from jobs.prompts.store import NewText
from jobs.questions.forest import build_forest, find_answer_sizes
from jobs.questions.prompts import answer_overheads
from jobs.questions.replies import REPLY_SCHEMA
from jobs.questions.templates import AnswerWording
from jobs.states.summary import ANSWER_TASKS, NodeKind
from jobs.summaries.own_templates import OwnTemplate
from jobs.summaries.prompts import TextCounter
from jobs.summaries.shape import JobForm
from jobs.summaries.stored_templates import variables_of
from jobs.summaries.tree import Leaf, Node, Sizes

# Every prompt asks for it in words too.
REPLY_GUIDE: Final[Guide] = guides.json_guide(REPLY_SCHEMA, param="schema")


class ForestShape:
    """The trees that ask one document several questions."""

    tasks: Mapping[NodeKind, str] = ANSWER_TASKS

    def sizes(
        self,
        summary: Summary,
        capacities: Sequence[Capacity],
        counter: TextCounter,
        own: OwnTemplate | None,
    ) -> Sizes:
        """Choose the sizes for these engines."""
        options, variables = AnswerWording(summary.length, own), variables_of(summary)
        found = answer_overheads(summary.questions or [], counter, options, variables=variables)
        return find_answer_sizes(capacities, found, length=summary.length, chunk_tokens=summary.chunk_tokens)

    def build(self, summary: Summary, leaves: Sequence[Leaf], sizes: Sizes, *, whole: bool) -> list[Node]:
        """Build a tree for each question."""
        return build_forest(leaves, sizes, num_questions=len(summary.questions or ()), whole=whole)

    def form(self, session: Session, summary: Summary) -> JobForm:
        """Store the form of a reply; see `store_form`."""
        return store_form(session, summary, REPLY_GUIDE)


def store_form(session: Session, summary: Summary, guide: Guide) -> JobForm:
    """Store the form of a reply, with whether the engines of the model see to it."""
    lacks = is_lacking(GuideKind.JSON, summary.model, registry.read_takes(session))
    text = NewText(replace(guide, in_words=lacks).written())
    stored = store.store(session, [text], tenant_id=summary.tenant_id)
    # An engine that went on in the middle would not know what it is guided by.
    return JobForm(stored.ids[text.sha256], is_whole=not lacks)
