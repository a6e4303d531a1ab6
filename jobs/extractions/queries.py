"""Queries on extractions, in the public shape."""

from collections import defaultdict
from collections.abc import Sequence
from uuid import UUID

from sqlalchemy import select
from sqlalchemy.orm import Session

from jobs.extractions.prompts import fields_of
from jobs.extractions.views import (
    ExtractionObject,
    ExtractionWithValues,
    FieldReply,
    extraction_object,
    field_reply,
)
from jobs.models import DocumentFinding, Summary
from jobs.questions.queries import read_each
from jobs.sealing.content import ContentUnreadableError
from jobs.states.summary import SummaryState


def describe(session: Session, extractions: Sequence[Summary]) -> list[ExtractionObject]:
    """Return the public shape of these, in order, with few queries in all."""
    return [extraction_object(each, read) for each, read in read_each(session, extractions)]


def describe_whole(session: Session, extraction: Summary) -> ExtractionWithValues:
    """Return the public shape with what was found.

    Raises:
        ContentUnreadableError: that cannot be decrypted.
    """
    ((described, findings),) = _read_whole(session, [extraction])
    return _with_values(extraction, described, findings)


def describe_each_whole(session: Session, extractions: Sequence[Summary]) -> list[ExtractionWithValues]:
    """Return the public shape of these with what was found, in order, with few queries in all.

    One whose values cannot be decrypted has the error in their place.
    """
    read = zip(extractions, _read_whole(session, extractions), strict=True)
    return [_with_values_or_error(each, described, findings) for each, (described, findings) in read]


def _read_whole(
    session: Session, extractions: Sequence[Summary]
) -> list[tuple[ExtractionObject, Sequence[DocumentFinding]]]:
    query = select(DocumentFinding).where(DocumentFinding.summary_id.in_([each.id for each in extractions]))
    findings: dict[UUID, list[DocumentFinding]] = defaultdict(list)
    for row in session.scalars(query.order_by(DocumentFinding.summary_id, DocumentFinding.place)):
        findings[row.summary_id].append(row)
    described = zip(extractions, describe(session, extractions), strict=True)
    return [(found, findings[each.id]) for each, found in described]


def _with_values_or_error(
    extraction: Summary, described: ExtractionObject, findings: Sequence[DocumentFinding]
) -> ExtractionWithValues:
    try:
        return _with_values(extraction, described, findings)
    except ContentUnreadableError as error:
        described["error"] = error.as_stored()
        return ExtractionWithValues(**described, values=None, fields=[])


def _with_values(
    extraction: Summary, described: ExtractionObject, findings: Sequence[DocumentFinding]
) -> ExtractionWithValues:
    fields: list[FieldReply] = []
    values: dict[str, object] | None = None
    if extraction.state == SummaryState.COMPLETED:
        named = [*zip(fields_of(extraction), findings, strict=True)]
        fields = [field_reply(field.name, found) for field, found in named]
        values = {
            field.name: found.value for field, found in named if found.value is not None or field.is_nullable
        }
    return ExtractionWithValues(**described, values=values, fields=fields)
