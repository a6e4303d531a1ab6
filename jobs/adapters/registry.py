"""The registry of adapters: add, list, remove them, and limit tenants to some."""

import re
from collections.abc import Collection, Sequence
from typing import Final
from uuid import UUID

from sqlalchemy import func, select, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from jobs import audit
from jobs.adapters.files import CheckedAdapter
from jobs.audit import Action
from jobs.errors import AdapterRemovedError, AlreadyExistsError, InvalidRequestError, NotFoundError
from jobs.models import Address, Engine, LoraAdapter
from jobs.tenants import set_adapters

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
# Of all models: each request for one, and each page of lines, reads their names.
_MAX_ADAPTERS: Final = 1000


def add(session: Session, address: Address, checked: CheckedAdapter, *, source: str) -> LoraAdapter:
    """Register an adapter; one that was removed comes back with the same weights.

    Raises:
        InvalidRequestError: the name breaks the rules for names, or there are too many.
        AlreadyExistsError: the name is taken or a model's, or was that of other weights.
    """
    if not address.adapter or not _NAME.fullmatch(address.adapter):
        message = "An adapter's name has 1 to 63 of the characters a-z A-Z 0-9 . _ - (the first no sign)."
        raise InvalidRequestError(message, param="name")
    if (session.scalar(select(func.count()).select_from(LoraAdapter)) or 0) >= _MAX_ADAPTERS:
        raise InvalidRequestError(
            f"There are {_MAX_ADAPTERS} adapters, removed ones included: no more can be."
        )
    if session.scalar(select(Engine.name).where(Engine.model == str(address)).limit(1)) is not None:
        message = f"{address} is a model, and requests that name it get the model: choose another name."
        raise AlreadyExistsError(message)
    values = {
        "source": source,
        "format": checked.format,
        "rank": checked.rank,
        "num_bytes": checked.num_bytes,
        "sha256": checked.sha256,
        "modules": list(checked.modules),
    }
    made = (
        insert(LoraAdapter)
        .values(model=address.model, name=address.adapter, **values)
        .on_conflict_do_update(
            index_elements=["model", "name"],
            set_={"source": source, "removed_at": None},
            where=LoraAdapter.removed_at.is_not(None) & (LoraAdapter.sha256 == checked.sha256),
        )
        .returning(LoraAdapter)
    )
    row = session.scalar(made)
    if row is None:
        raise AlreadyExistsError(f"{_taken(session, address)}: a name keeps its weights, so choose another.")
    audit.note(session, Action.ADAPTER_ADD, str(address), tenant_id=None, format=checked.format)
    return row


def _taken(session: Session, address: Address) -> str:
    row = session.get_one(LoraAdapter, (address.model, address.adapter))
    return (
        f"{address} is registered" if row.removed_at is None else f"{address} was the name of other weights"
    )


def remove(session: Session, address: Address) -> None:
    """Refuse requests for the adapter from now on; its queued jobs fail when they would start.

    Raises:
        NotFoundError: there is none.
    """
    gone = (
        update(LoraAdapter)
        .where(
            LoraAdapter.model == address.model,
            LoraAdapter.name == address.adapter,
            LoraAdapter.removed_at.is_(None),
        )
        .values(removed_at=func.clock_timestamp())
        .returning(LoraAdapter.number)
    )
    if session.scalar(gone) is None:
        raise NotFoundError(f"There is no adapter {str(address)!r}; `longbatch adapters list` shows them.")
    audit.note(session, Action.ADAPTER_REMOVE, str(address), tenant_id=None)


def read(session: Session, model: str, name: str) -> LoraAdapter:
    """Read the adapter that a job asks for.

    Raises:
        AdapterRemovedError: it was removed since the job was submitted.
    """
    found = session.get(LoraAdapter, (model, name))
    if found is None or found.removed_at is not None:
        raise AdapterRemovedError(f"The adapter {str(Address(model, name))!r} was removed.")
    return found


def every(session: Session) -> Sequence[LoraAdapter]:
    """List all adapters that were ever registered, by model and name."""
    return session.scalars(select(LoraAdapter).order_by(LoraAdapter.model, LoraAdapter.name)).all()


def limit(session: Session, tenant_id: UUID, names: Collection[str] | None) -> None:
    """Let a tenant name these adapters alone; None: all.

    Raises:
        NotFoundError: one of them is not registered.
    """
    known = {str(Address(each.model, each.name)) for each in every(session) if each.removed_at is None}
    for name in names or ():
        if name not in known:
            raise NotFoundError(f"There is no adapter {name!r}; `longbatch adapters list` shows them.")
    set_adapters(session, tenant_id, None if names is None else sorted(set(names)))


def addressed(text: str) -> Address:
    """Read `model:name`.

    Raises:
        InvalidRequestError: it has another form.
    """
    model, _, name = text.rpartition(":")
    if not model or not name:
        raise InvalidRequestError("An adapter is named as model:name.", param="name")
    return Address(model, name)
