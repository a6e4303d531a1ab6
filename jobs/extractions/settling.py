"""What an extraction found, drawn once its jobs have ended; see `questions.settling`."""

import json
from collections.abc import Callable, Mapping, Sequence

from jobs.extractions.joining import conclude
from jobs.extractions.prompts import fields_of
from jobs.models import Summary
from jobs.prompts import guides
from jobs.prompts.guides import Guide
from jobs.questions.quotes import QuotableText
from jobs.questions.replies import storable
from jobs.questions.settling import LOST, AskedTree, Conclude, Settled, conclude_answers
from jobs.states.summary import Purpose

# Returns what keeps a text from having a form; None: nothing does.
FindFault = Callable[[str, Guide], str | None]


def concluding(find_fault: FindFault) -> Mapping[str, Conclude]:
    """Return what draws conclusions, by `Purpose`."""
    return {Purpose.ANSWERS: conclude_answers, Purpose.EXTRACTION: _ExtractionConclude(find_fault)}


class _ExtractionConclude:
    """Draws the values of fields; see `Conclude`."""

    def __init__(self, find_fault: FindFault) -> None:
        self._find_fault = find_fault

    def __call__(
        self,
        asked: Summary,
        trees: Mapping[int | None, AskedTree],
        text: QuotableText | None,
        page_starts: Sequence[int],
    ) -> Settled:
        """Draw the values, and find out whether they are valid."""
        tree = trees.get(None)
        if tree is None:
            return Settled([], LOST)
        fields = fields_of(asked)
        found = conclude(tree.parts, fields, text=text, page_starts=page_starts)
        asked.gaps = [dict(each) for each in found.gaps]
        if found.error is not None:
            return Settled([], found.error)
        guide = guides.json_guide(asked.schema or {}, param="schema")
        fault = self._find_fault(json.dumps(found.row(fields)), guide)
        asked.fault = None if fault is None else storable(fault)
        rows = [{"value": each.value, "sources": [*each.sources]} for each in found.values]
        return Settled(rows, None)
