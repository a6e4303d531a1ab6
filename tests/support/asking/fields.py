"""What tests of extractions share: a schema, documents with facts, and scripted replies to their prompts."""

import json
import re
from collections.abc import Mapping
from typing import Any

from sqlalchemy.orm import Session

from asking.answers import Script, run_jobs, spec_of
from jobs import extractions
from jobs.extractions.fields import read_fields
from jobs.extractions.queries import describe_whole
from jobs.extractions.shape import default_length
from jobs.models import DEFAULT_TENANT, Summary
from jobs.models.document import Document
from jobs.prompts.messages import parse
from jobs.states.summary import JoinRule

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "rent": {"type": "number", "minimum": 1},
        "notice": {"type": ["string", "null"]},
        "parties": {"type": "array", "items": {"type": "string"}, "maxItems": 3},
        "fee": {"type": "integer", "x-longbatch-join": "sum"},
    },
    "required": ["rent"],
}
NOTHING = {"quote": "", "value": None}


def reply(**values: Any) -> str:  # noqa: ANN401  # JSON
    """A reply about all fields of the schema: each named one as its value and quote."""
    said = {name: {"quote": quote, "value": value} for name, (value, quote) in values.items()}
    return json.dumps({name: said.get(name, NOTHING) for name in SCHEMA["properties"]})


def look_up(text: str, _: str) -> str | None:
    """Find "The X is Y." for each field; "The parties are A and B."."""
    found: dict[str, Any] = {}
    for name, convert in {"rent": float, "notice": str, "fee": int}.items():
        if said := re.search(rf"The {name} is ([^.]+)\.", text):
            found[name] = (convert(said[1]), said[0])
    if said := re.search(r"The parties are ([^.]+)\.", text):
        found["parties"] = (said[1].split(" and "), said[0])
    return reply(**found)


def asked_of(canonical: str) -> tuple[str, str]:
    """The material and the list of fields of a prompt."""
    user = parse(canonical).messages[-1].content
    at = user.rindex("</document")
    return user[:at], user[at:]


def extract(
    session: Session,
    *documents: Document,
    schema: Mapping[str, Any] = SCHEMA,
    joins: Mapping[str, JoinRule] | None = None,
    **fields: object,
) -> list[Summary]:
    """Extractions from these documents that wait to be planned."""
    found = read_fields(schema, joins or {})
    spec = spec_of(*documents, **{"length": default_length(len(found)), **fields})
    return extractions.create(session, spec, schema=schema, fields=found, tenant_id=DEFAULT_TENANT)


def run(session: Session, script: Script = look_up, *, max_steps: int = 1000) -> list[str]:
    """All jobs that can run have ended as the script says; return their prompts, in the order of claims."""
    return run_jobs(session, script, asked=asked_of, max_steps=max_steps)


def seen(session: Session, extraction: Summary) -> dict[str, Any]:
    """The extraction as its caller sees it."""
    return {**describe_whole(session, extraction)}
