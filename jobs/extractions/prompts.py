"""The prompts of jobs that extract fields, written at preparation from document and schema."""

from collections.abc import Mapping
from typing import Final

from sqlalchemy.exc import NoResultFound
from sqlalchemy.orm import Session

from jobs.errors import InvalidRequestError
from jobs.extractions import templates
from jobs.extractions.fields import Field, definitions, read_fields
from jobs.extractions.templates import ExtractionWording
from jobs.models import Job, Summary
from jobs.prompts.counter import count_short
from jobs.prompts.delimiters import Delimiters
from jobs.prompts.messages import Message, canonical
from jobs.prompts.store import Counter
from jobs.questions.prompts import read_leaf
from jobs.sealing.content import StoredChangedError
from jobs.states.summary import JoinRule, NodeKind
from jobs.summaries import stored_templates
from jobs.summaries.own_templates import OwnTemplate
from jobs.summaries.prompts import TextCounter
from jobs.summaries.stored_templates import variables_of

_MANY: Final = 9999  # as wide as these numbers become in a prompt


def fields_of(extraction: Summary) -> list[Field]:
    """Read the fields of an extraction, as it was accepted with them.

    Raises:
        ContentUnreadableError: they cannot be decrypted, or are not what was stored.
    """
    try:
        joins = {name: JoinRule(str(rule)) for name, rule in (extraction.joins or {}).items()}
        return read_fields(extraction.schema or {}, joins)
    except (InvalidRequestError, AttributeError, TypeError, ValueError) as error:
        raise StoredChangedError from error


def extraction_wording(extraction: Summary, own: OwnTemplate | None) -> ExtractionWording:
    """Return what to extract, with the caller's own template, as the templates take it."""
    return ExtractionWording(fields_of(extraction), definitions(extraction.schema or {}), own)


def extraction_overheads(
    options: ExtractionWording, counter: TextCounter, *, variables: Mapping[str, object]
) -> Mapping[NodeKind, int]:
    """Count the tokens of a prompt of each kind, without a text in it.

    Raises:
        ChatTemplateError: the model's template refuses these prompts.
    """
    return {
        kind: counter.count_prompt(canonical(messages, variables=variables)).num_tokens
        for kind, messages in _empty_prompts(options).items()
    }


def check_extraction_variables(variables: Mapping[str, object], counter: Counter) -> None:
    """Try the caller's `chat_template_kwargs` on the model's chat template.

    Raises:
        InvalidRequestError: the template fails with them.
    """
    messages = _empty_prompts(ExtractionWording([], {}))[NodeKind.WHOLE]
    count_short(canonical(messages, variables=variables), counter, max_chars=0)


def _empty_prompts(options: ExtractionWording) -> dict[NodeKind, list[Message]]:
    marks = Delimiters()
    return {
        NodeKind.WHOLE: templates.extract_whole("", options, marks),
        NodeKind.CHUNK: templates.extract_chunk("", options, marks, number=_MANY, num_chunks=_MANY),
    }


def compose_extraction(session: Session, job: Job) -> str:
    """Compose the prompt of a job that extracts fields, as canonical JSON.

    Raises:
        DocumentGoneError: the document to read no longer exists.
        NoResultFound: the row that asks no longer exists.
    """
    if job.summary_id is None:
        raise NoResultFound
    extraction = session.get_one(Summary, job.summary_id)
    leaf = read_leaf(session, extraction, job.id)
    options = extraction_wording(extraction, stored_templates.load(session, extraction))
    if leaf.kind == NodeKind.WHOLE:
        messages = templates.extract_whole(leaf.text, options, leaf.marks)
    else:
        messages = templates.extract_chunk(
            leaf.text, options, leaf.marks, number=leaf.number, num_chunks=leaf.num_chunks
        )
    return canonical(messages, variables=variables_of(extraction))
