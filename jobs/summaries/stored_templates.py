"""Callers' own templates in the database: stored as texts are, for the rows that they are of."""

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Final
from uuid import UUID

from sqlalchemy.orm import Session

from jobs.errors import InvalidRequestError
from jobs.models import JsonObject, Summary
from jobs.prompts import store
from jobs.prompts.store import NewText, unpacked
from jobs.sealing.content import ContentUnreadableError
from jobs.summaries.own_templates import OwnTemplate

_STORED: Final = "template"
# The name of a variable that no caller can set. Releases that know no templates refuse a row that has it, so
# that none of their workers answers in our words what was asked in the caller's.
_GUARD: Final = "messages"


def put(session: Session, own: OwnTemplate | None, *, tenant_id: UUID) -> UUID | None:
    """Store a template as texts are: equal ones of a tenant once; return its id."""
    if own is None:
        return None
    text = NewText(json.dumps({_STORED: own.as_json()}, ensure_ascii=False))
    return store.store(session, [text], tenant_id=tenant_id).ids[text.sha256]


def load(session: Session, summary: Summary) -> OwnTemplate | None:
    """Load the template of a row; None: it has none."""
    if summary.template_id is None:
        return None
    stored = store.load(session, summary.template_id)
    return OwnTemplate.of(json.loads(stored.canonical)[_STORED])


def read_each(session: Session, rows: Sequence[Summary]) -> dict[UUID, dict[str, str]]:
    """Read the templates of these rows as JSON, by their ids, in one query.

    Those that cannot be read are left out.
    """
    wanted = {each.template_id for each in rows if each.template_id is not None}
    if not wanted:
        return {}
    found: dict[UUID, dict[str, str]] = {}
    for text_id, stored in store.read(session, wanted).items():
        with suppress(ContentUnreadableError):  # it is damaged
            found[text_id] = unpacked(stored.body, _STORED)
    return found


def drop(session: Session, template_id: UUID | None) -> None:
    """Delete the template of a row that was deleted, unless another one has it."""
    if template_id is not None:
        store.drop_unused(session, [template_id])


def guarded(variables: Mapping[str, object] | None, own: OwnTemplate | None) -> JsonObject:
    """Return the caller's `chat_template_kwargs` as a row keeps them; see `_GUARD`.

    Raises:
        InvalidRequestError: the caller sets the variable that guards.
    """
    if own is None:
        return dict(variables or {})
    if variables and _GUARD in variables:
        param = "chat_template_kwargs"
        raise InvalidRequestError(f"{param}: The variable {_GUARD!r} cannot be set.", param=param)
    return {**(variables or {}), _GUARD: _STORED}


def variables_of(summary: Summary) -> JsonObject:
    """Return the caller's `chat_template_kwargs` of a row."""
    if summary.template_id is None:
        return summary.chat_template_kwargs
    return {name: value for name, value in summary.chat_template_kwargs.items() if name != _GUARD}
