"""A new extraction: how the form of documents asks for fields, what that takes, an earlier one repeated."""

import json
from collections.abc import Mapping
from typing import Any, Final, TypeVar
from uuid import UUID

from pydantic import BaseModel
from sqlalchemy.orm import Session

from api.console.documents.drafts import MAX_DOCUMENTS, DocumentDraft, parse_fields
from api.console.extractions.listing import PAGES
from api.console.subjects.new import Earlier, NewSubject, new_routes
from api.extractions import verbs
from api.extractions.requests import ExtractionEstimateRequest, ExtractionRequest
from api.http.body import parse
from api.http.idempotency import IdempotencyHeaders
from api.runtime.services import Services
from jobs import extractions
from jobs.errors import InvalidRequestError
from jobs.extractions.fields import read_fields
from jobs.extractions.shape import default_length
from jobs.models import JsonObject, Summary
from jobs.questions import queries, trees
from jobs.states.summary import JoinRule
from jobs.views import PRIORITY_NAMES

Asked = TypeVar("Asked", bound=BaseModel)
_NUMBERS: Final = ("length", "chunk_tokens")
_TEXTS: Final = ("priority", "custom_id")


async def estimate(
    services: Services, draft: DocumentDraft, form: Mapping[str, str], *, tenant_id: UUID
) -> JsonObject | None:
    """Estimate once there is a schema; raise as `verbs.estimate` does."""
    if not form.get("schema", "").strip():
        return None
    asked = _request(ExtractionEstimateRequest, draft, form)
    return await verbs.estimate(services, asked, tenant_id=tenant_id)


async def submit(
    services: Services,
    draft: DocumentDraft,
    form: Mapping[str, str],
    *,
    tenant_id: UUID,
    idempotency: IdempotencyHeaders,
) -> list[str]:
    """Extract the fields; raise as `verbs.submit` does."""
    asked = _request(ExtractionRequest, draft, form)
    made, _ = await verbs.submit(services, asked, tenant_id=tenant_id, idempotency=idempotency)
    return [each["id"] for each in made]


def _request(model: type[Asked], draft: DocumentDraft, form: Mapping[str, str]) -> Asked:
    """Make the request that this form asks for, as if a caller of the API had sent it.

    Raises:
        InvalidRequestError: a field is invalid, or no document has a text.
    """
    draft.require_text()
    chosen = parse_fields(form, numbers=_NUMBERS, texts=_TEXTS)
    given = {"documents": draft.usable, "schema": _schema(form), "joins": _joins(form)} | chosen
    return parse(model, json.dumps(given).encode())


def _schema(form: Mapping[str, str]) -> Any:  # noqa: ANN401  # any JSON; the request refuses what is no object
    try:
        return json.loads(form.get("schema", ""))
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        message = f"schema: must be JSON: {error.msg} in {where}."
    except (ValueError, RecursionError):  # a number of thousands of digits, or thousands of brackets
        message = "schema: must be JSON with shorter numbers, and less deep."
    raise InvalidRequestError(message, param="schema") from None


def _joins(form: Mapping[str, str]) -> dict[str, str]:
    """Read rules, `FIELD=RULE` a line.

    Raises:
        InvalidRequestError: a line is none, or names a field again.
    """
    found: dict[str, str] = {}
    for number, line in enumerate(form.get("joins", "").splitlines(), start=1):
        if not line.strip():
            continue
        field, is_rule, rule = line.rpartition("=")
        name = field.strip()
        if not is_rule or name in found:
            message = f"joins: line {number} must be FIELD=RULE, for each field once."
            raise InvalidRequestError(message, param="joins")
        found[name] = rule.strip()
    return found


def read_earlier(session: Session, extraction_id: UUID, *, tenant_id: UUID) -> Earlier:
    """Read an earlier extraction as the fields of a form, and the documents of its request.

    Raises:
        NotFoundError: the tenant has no such extraction.
    """
    asked = extractions.get(session, extraction_id, tenant_id=tenant_id)
    together = trees.asked_together(session, asked)[:MAX_DOCUMENTS]
    return _fields_of(asked), queries.read_documents(session, together)


def _fields_of(asked: Summary) -> dict[str, str]:
    """Write the options of an extraction as a form's fields, without those that follow from its schema."""
    schema, joins = asked.schema or {}, asked.joins or {}
    by_schema = read_fields(schema, {})
    named = [f"{each.name}={joins[each.name]}" for each in by_schema if joins[each.name] != each.rule]
    values = {
        "schema": json.dumps(schema, indent=2, ensure_ascii=False),
        "joins": "\n".join(named),
        "length": None if asked.length == default_length(len(by_schema)) else asked.length,
        "chunk_tokens": asked.chunk_tokens,
        "priority": PRIORITY_NAMES[asked.rank],
        "custom_id": asked.custom_id,
    }
    return {name: str(value) for name, value in values.items() if value is not None}


router = new_routes(
    NewSubject(
        PAGES,
        title="New extraction",
        command="extract FOLDER --schema FILE",
        template="extractions/draft.html",
        defaults={},
        read_earlier=read_earlier,
        estimate=estimate,
        submit=submit,
        started="The extraction is submitted.",
        several="Fields of {num} documents are extracted.",
        values={"rules": tuple(JoinRule)},
    )
)
