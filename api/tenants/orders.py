"""Orders about tenants and their keys, from the API's routes and the console's forms."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

from sqlalchemy.orm import Session

from api.runtime.api_keys import Caller
from api.runtime.services import Services
from api.tenants.admin_schemas import KeyRequest, KeyUpdate, LimitsRequest, TenantRequest, TenantUpdate
from api.tenants.views import key_objects, tenant_objects
from jobs import telemetry, tenants
from jobs.database import database_now
from jobs.erasure import tenants as erasure
from jobs.errors import ConflictError
from jobs.models import ApiKey, Tenant
from jobs.scheduling.halts import Operator
from jobs.settings import LimitSettings
from jobs.tenants import keys
from jobs.tenants.keys import NewKey


async def create_tenant(services: Services, caller: Caller, asked: TenantRequest) -> dict[str, Any]:
    """Create a tenant without keys.

    Raises:
        InvalidRequestError: the name breaks the rules for names.
        AlreadyExistsError: it is taken.
    """

    def create(session: Session) -> dict[str, Any]:
        row = tenants.create(session, asked.name)
        tenants.set_retention(session, row.id, asked.zero_retention_seconds)
        return _set(session, row, asked.weight, asked.limits, settings=services.settings.limits)

    found = await services.transactions.run_as_operator(create)
    telemetry.logger().info(telemetry.TENANT_CREATED, tenant_id=found["id"], key=caller.key)
    return found


async def update_tenant(services: Services, caller: Caller, name: str, asked: TenantUpdate) -> dict[str, Any]:
    """Update a tenant's weight and limits, which hold within seconds.

    Raises:
        NotFoundError: there is no such tenant.
    """

    def update(session: Session) -> dict[str, Any]:
        row = tenants.find(session, name)
        if "zero_retention_seconds" in asked.model_fields_set:
            tenants.set_retention(session, row.id, asked.zero_retention_seconds)
        return _set(session, row, asked.weight, asked.limits, settings=services.settings.limits)

    found = await services.transactions.run_as_operator(update)
    changed = asked.model_dump(exclude_unset=True)
    telemetry.logger().info(telemetry.TENANT_CHANGED, tenant_id=found["id"], key=caller.key, changed=changed)
    return found


async def delete_tenant(services: Services, caller: Caller, name: str) -> dict[str, Any]:
    """Order the deletion of a tenant with everything.

    Raises:
        NotFoundError: there is no such tenant.
        ConflictError: it is the caller's own, or belongs to the installation.
    """

    def delete(session: Session) -> dict[str, Any]:
        row = tenants.find(session, name)
        if row.id == caller.tenant_id:
            raise ConflictError("This is the tenant of your own key; another tenant's key can delete it.")
        row = erasure.order(session, row, by=Operator(caller.key, caller.key_name))
        return tenant_object(session, row, settings=services.settings.limits)

    found = await services.transactions.run_as_operator(delete)
    telemetry.logger().info(telemetry.TENANT_DELETION_ORDERED, tenant_id=found["id"], key=caller.key)
    return found


async def create_key(services: Services, caller: Caller, asked: KeyRequest) -> dict[str, Any]:
    """Create a key; `api_key` in what this returns is its secret, which nothing else shows.

    Raises:
        NotFoundError: there is no such tenant.
        ConflictError: it is being deleted.
    """

    def create(session: Session) -> NewKey:
        span = asked.expires_in_seconds
        return keys.create(
            session,
            tenant_id=tenants.find(session, asked.tenant).id,
            name=asked.name or "",
            scopes=set(asked.scopes),
            expires_at=database_now(session) + timedelta(seconds=span) if span else None,
            limits=asked.limits.model_dump(),
        )

    found = await _made(services, create)
    telemetry.logger().info(
        telemetry.KEY_CREATED, created=found["id"], scopes=found["scopes"], key=caller.key
    )
    return found


async def update_key(services: Services, caller: Caller, key: str, asked: KeyUpdate) -> dict[str, Any]:
    """Update a key's limits, which hold within seconds.

    Raises:
        NotFoundError: there is no such key.
    """
    changed = asked.limits.model_dump(exclude_unset=True)

    def update(session: Session) -> dict[str, Any]:
        row = keys.named(session, key)
        keys.set_limits(session, row, changed)
        return key_object(session, row)

    found = await services.transactions.run_as_operator(update)
    telemetry.logger().info(telemetry.KEY_CHANGED, limited=found["id"], key=caller.key, changed=changed)
    return found


async def rotate_key(services: Services, caller: Caller, key: str, *, overlap: timedelta) -> dict[str, Any]:
    """Create a key like this one, which expires after the overlap; return it as `create_key` does.

    Raises:
        NotFoundError: there is no such key.
        KeyNotUsableError: it has expired or was revoked.
    """

    def rotate(session: Session) -> NewKey:
        return keys.rotate(session, keys.named(session, key), overlap=overlap)

    found = await _made(services, rotate)
    telemetry.logger().info(telemetry.KEY_CREATED, created=found["id"], rotated=key, key=caller.key)
    return found


async def revoke_key(services: Services, caller: Caller, key: str) -> dict[str, Any]:
    """Revoke a key, but never the caller's own: one that may operate is always left.

    Raises:
        NotFoundError: there is no such key.
        ConflictError: it is the caller's.
        AuthenticationError: the caller's was revoked meanwhile.
    """

    def revoke(session: Session) -> dict[str, Any]:
        row = keys.named(session, key)
        if caller.is_person:
            keys.revoke(session, row)
        else:
            keys.revoke_by(session, row, key_id=caller.key_id)
        session.refresh(row)
        return key_object(session, row)

    found = await services.transactions.run_as_operator(revoke)
    telemetry.logger().info(telemetry.KEY_REVOKED, revoked=found["id"], key=caller.key)
    return found


def key_object(session: Session, row: ApiKey) -> dict[str, Any]:
    """Convert a key to what operators see."""
    (found,) = key_objects(session, [row], now=database_now(session))
    return found


def tenant_object(session: Session, row: Tenant, *, settings: LimitSettings) -> dict[str, Any]:
    """Convert a tenant to what operators see."""
    (found,) = tenant_objects(session, [row], settings)
    return found


def _set(
    session: Session, row: Tenant, weight: float | None, limits: LimitsRequest, *, settings: LimitSettings
) -> dict[str, Any]:
    """Set what was given, and return the tenant."""
    tenants.set_weight(session, row.id, weight)
    tenants.set_limits(session, row.id, limits.model_dump(exclude_unset=True))
    session.refresh(row)
    return tenant_object(session, row, settings=settings)


async def _made(services: Services, create: Callable[[Session], NewKey]) -> dict[str, Any]:
    """Create a key and describe it, with its secret."""

    def make(session: Session) -> dict[str, Any]:
        made = create(session)
        session.refresh(made.row)
        return key_object(session, made.row) | {"api_key": made.secret}

    return await services.transactions.run_as_operator(make)
