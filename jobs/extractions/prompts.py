"""The prompts of jobs that extract fields, written at preparation from document and schema."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from sqlalchemy.exc import NoResultFound
from sqlalchemy.orm import Session

from jobs.extractions import templates
from jobs.extractions.fields import Field, definitions, read_fields
from jobs.models import Job, Summary
from jobs.prompts.counter import count_short
from jobs.prompts.delimiters import Delimiters
from jobs.prompts.messages import Message, canonical
from jobs.prompts.store import Counter
from jobs.questions.prompts import read_leaf
from jobs.states.summary import JoinRule, NodeKind
from jobs.summaries.prompts import TextCounter

_MANY: Final = 9999  # as wide as these numbers become in a prompt


def fields_of(extraction: Summary) -> list[Field]:
    """Read the fields of an extraction, as it was accepted with them."""
    joins = {name: JoinRule(str(rule)) for name, rule in (extraction.joins or {}).items()}
    return read_fields(extraction.schema or {}, joins)


def extraction_overheads(
    schema: Mapping[str, Any],
    fields: Sequence[Field],
    counter: TextCounter,
    *,
    variables: Mapping[str, object],
) -> Mapping[NodeKind, int]:
    """Count the tokens of a prompt of each kind, without a text in it.

    Raises:
        ChatTemplateError: the model's template refuses these prompts.
    """
    return {
        kind: counter.count_prompt(canonical(messages, variables=variables)).num_tokens
        for kind, messages in _empty_prompts(schema, fields).items()
    }


def check_extraction_variables(variables: Mapping[str, object], counter: Counter) -> None:
    """Try the caller's `chat_template_kwargs` on the model's chat template.

    Raises:
        InvalidRequestError: the template fails with them.
    """
    count_short(canonical(_empty_prompts({}, [])[NodeKind.WHOLE], variables=variables), counter, max_chars=0)


def _empty_prompts(schema: Mapping[str, Any], fields: Sequence[Field]) -> dict[NodeKind, list[Message]]:
    marks, referred = Delimiters(), definitions(schema)
    return {
        NodeKind.WHOLE: templates.extract_whole("", fields, marks, definitions=referred),
        NodeKind.CHUNK: templates.extract_chunk(
            "", fields, marks, definitions=referred, number=_MANY, num_chunks=_MANY
        ),
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
    fields, referred = fields_of(extraction), definitions(extraction.schema or {})
    if leaf.kind == NodeKind.WHOLE:
        messages = templates.extract_whole(leaf.text, fields, leaf.marks, definitions=referred)
    else:
        messages = templates.extract_chunk(
            leaf.text,
            fields,
            leaf.marks,
            definitions=referred,
            number=leaf.number,
            num_chunks=leaf.num_chunks,
        )
    return canonical(messages, variables=extraction.chat_template_kwargs)
