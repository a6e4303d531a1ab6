"""What a tenant may name in `model`: the models that engines serve, and their adapters."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from sqlalchemy import select
from sqlalchemy.orm import Session

from jobs.engines import registry
from jobs.errors import (
    AdapterForbiddenError,
    LongbatchError,
    ModelNotFoundError,
    UnsupportedParameterError,
)
from jobs.models import Address, Engine, LoraAdapter, TenantLimit
from jobs.prompts.abilities import LORA, VECTORS, Takes, is_lacking, refusal


@dataclass(frozen=True, slots=True)
class ModelOffer:
    """What a tenant may name in `model`.

    Attributes:
        models: that are served.
        takes: what engines can be asked for, by model and by adapter as callers name it.
        adapters: the registered ones of each model, by their names, and since when.
        held: of models with an engine that has those alone which it was started with: the ones that all such
            engines have.
        allowed: the only adapters that the tenant may name, as callers name them; None: all of them.
    """

    models: frozenset[str]
    takes: Takes
    adapters: Mapping[str, Mapping[str, datetime]]
    held: Mapping[str, frozenset[str]]
    allowed: frozenset[str] | None = None

    def find(self, name: str) -> Address:
        """Return what a request names.

        Raises:
            ModelNotFoundError: there is no such model, or it has no such adapter.
            UnsupportedParameterError: its engines take no adapters, or not this one.
            AdapterForbiddenError: the tenant may not name this one.
        """
        if name in self.models:
            return Address(name)
        model, _, adapter = name.rpartition(":")
        if model not in self.models:
            raise ModelNotFoundError(f"This server does not serve the model {name!r}.", param="model")
        if self.allowed is not None and name not in self.allowed:
            raise AdapterForbiddenError(f"This API key may not use the adapter {name!r}.", param="model")
        if is_lacking(LORA, model, self.takes):
            raise refusal("model", [LORA], model, self.takes)
        if adapter not in self.adapters.get(model, {}):
            raise ModelNotFoundError(f"The model {model!r} has no adapter {adapter!r}.", param="model")
        if model in self.held and adapter not in self.held[model]:
            raise UnsupportedParameterError(self._not_held(model, adapter), param="model")
        return Address(model, adapter)

    def _not_held(self, model: str, adapter: str) -> str:
        named = (
            each for each in self.held[model] if self.allowed is None or f"{model}:{each}" in self.allowed
        )
        listed = ", ".join(sorted(named)) or "none that you may name"
        return (
            f"model: not every engine of the model {model!r} was started with the adapter {adapter!r};"
            f" its engines have {listed}."
        )

    @property
    def named(self) -> dict[str, datetime]:
        """The adapters that a request may name now, as it calls them, and since when they are registered."""
        every = {
            str(Address(model, name)): since
            for model, adapters in self.adapters.items()
            for name, since in adapters.items()
        }
        return {name: since for name, since in every.items() if self.why_not(name) is None}

    def why_not(self, name: str) -> str | None:
        """Return why requests that name this are refused now; None if they are not."""
        try:
            self.find(name)
        except LongbatchError as error:
            return error.message
        return None


def read_offer(session: Session, *, served: str, tenant_id: UUID | None = None) -> ModelOffer:
    """Read what a tenant may name; None: what any may.

    Args:
        session: the caller's transaction.
        served: the model that is served even if no engine has registered.
        tenant_id: the tenant.
    """
    engines = session.execute(
        select(Engine.model, Engine.adapters, (Engine.seen_at > registry.recently()).label("is_recent"))
    ).all()
    held: dict[str, frozenset[str]] = {}
    for model, adapters, is_recent in engines:
        if is_recent and adapters is not None:
            held[model] = held.get(model, frozenset(adapters)) & frozenset(adapters)
    found: dict[str, dict[str, datetime]] = {}
    for each in registered(session):
        found.setdefault(each.model, {})[each.name] = each.created_at
    allowed = None if tenant_id is None else _allowed(session, tenant_id)
    models = frozenset({served, *(model for model, _, _ in engines)})
    return ModelOffer(models, _with_adapters(registry.read_takes(session), found), found, held, allowed)


def read_takes(session: Session) -> Takes:
    """Read what all engines of each model take, also under the names of its adapters."""
    found: dict[str, list[str]] = {}
    for each in registered(session):
        found.setdefault(each.model, []).append(each.name)
    return _with_adapters(registry.read_takes(session), found)


def registered(session: Session) -> Iterable[LoraAdapter]:
    """Read the adapters that can be asked for."""
    return session.scalars(
        select(LoraAdapter).where(LoraAdapter.removed_at.is_(None)).order_by(LoraAdapter.number)
    )


def _with_adapters(takes: Takes, adapters: Mapping[str, Iterable[str]]) -> Takes:
    of_adapters = {
        str(Address(model, name)): takes[model] - VECTORS  # which are those of the model as it is
        for model, names in adapters.items()
        if model in takes
        for name in names
    }
    return {**of_adapters, **takes}  # a name is a model's first


def _allowed(session: Session, tenant_id: UUID) -> frozenset[str] | None:
    listed = session.scalar(select(TenantLimit.adapters).where(TenantLimit.tenant_id == tenant_id))
    return None if listed is None else frozenset(listed)
