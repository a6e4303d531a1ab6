"""Which secrets sign: made, replaced with a time in which both are valid, and a tenant's own default."""

import base64
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Final, Protocol
from uuid import UUID

from sqlalchemy import ColumnElement, func, or_, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import InstrumentedAttribute, Session

from jobs.models import DEFAULT_TENANT
from jobs.models.webhook import WebhookEndpoint, WebhookSecret
from jobs.settings import WebhookSettings
from jobs.webhooks.rules import SECRET_PREFIX
from jobs.webhooks.vault import NAME_BYTES, Vault, VaultError

_SECRET_BYTES: Final = 32


class Replaceable(Protocol):
    """A row with a sealed secret, and for a while the one before it."""

    secret: bytes
    old_secret: bytes | None
    old_secret_expires_at: datetime | None


@dataclass(frozen=True, slots=True)
class Secrets:
    """What signs now.

    Attributes:
        current: `whsec_…`.
        old: valid until `old_expires_at`.
    """

    current: str
    old: str | None = None
    old_expires_at: datetime | None = None

    def valid(self) -> Sequence[str]:
        """All of them."""
        return [self.current] if self.old is None else [self.current, self.old]


def new_secret() -> str:
    """A random secret as Standard Webhooks writes it."""
    return SECRET_PREFIX + base64.b64encode(secrets.token_bytes(_SECRET_BYTES)).decode()


def opened(row: Replaceable, vault: Vault, *, now: datetime) -> Secrets:
    """The row's secrets that are valid now.

    Raises:
        VaultError: the current one cannot be opened.
    """
    current = vault.open(row.secret)
    if row.old_secret is None or row.old_secret_expires_at is None or row.old_secret_expires_at <= now:
        return Secrets(current)
    return Secrets(current, vault.open(row.old_secret), row.old_secret_expires_at)


def replace(row: Replaceable, vault: Vault, *, now: datetime, overlap: timedelta) -> str:
    """The row has a new secret, which is returned; the one before is valid for `overlap` more."""
    made = new_secret()
    row.old_secret, row.old_secret_expires_at = (row.secret, now + overlap) if overlap else (None, None)
    row.secret = vault.seal(made)
    return made


def seal_anew(session: Session, vault: Vault, *, limit: int = 100) -> int:
    """Seal secrets of endpoints and tenants anew that are sealed under the key that callers can derive.

    Returns: how many rows were changed; call again until it is none.
    """
    if not vault.keys or vault.old_name is None:
        return 0
    is_outdated = partial(_is_under, name=vault.old_name)
    endpoints = select(WebhookEndpoint).where(is_outdated(WebhookEndpoint.secret, WebhookEndpoint.old_secret))
    defaults = select(WebhookSecret).where(is_outdated(WebhookSecret.secret, WebhookSecret.old_secret))
    rows: list[Replaceable] = [
        *session.scalars(endpoints.limit(limit).with_for_update(skip_locked=True)),
        *session.scalars(defaults.limit(limit).with_for_update(skip_locked=True)),
    ]
    num_changed = sum(_seal_anew(row, vault) for row in rows)
    session.flush()
    return num_changed


def _is_under(*columns: InstrumentedAttribute[Any], name: bytes) -> ColumnElement[bool]:
    """Whether one of these is sealed under the key of this name, which follows a byte for the format."""
    return or_(*(func.substr(each, 2, NAME_BYTES) == name for each in columns))


def _seal_anew(row: Replaceable, vault: Vault) -> bool:
    try:
        if vault.is_outdated(row.secret):
            row.secret = vault.seal(vault.open(row.secret))
        if row.old_secret is not None and vault.is_outdated(row.old_secret):
            row.old_secret = vault.seal(vault.open(row.old_secret))
    except VaultError:  # damaged: it opens for nobody
        return False
    return True


def of_tenant(
    session: Session, tenant_id: UUID, settings: WebhookSettings, vault: Vault, *, now: datetime
) -> Secrets:
    """The tenant's default secrets; made when it has none yet.

    The default tenant's is the configured one until it is rotated for the first time.

    Raises:
        VaultError: its secret cannot be opened.
    """
    row = session.scalar(select(WebhookSecret).where(WebhookSecret.tenant_id == tenant_id))
    if row is not None:
        return opened(row, vault, now=now)
    if tenant_id == DEFAULT_TENANT and settings.secret is not None:
        return Secrets(settings.secret.get_secret_value())
    return opened(_stored(session, tenant_id, vault.seal(new_secret())), vault, now=now)


def rotate_tenant(
    session: Session,
    tenant_id: UUID,
    settings: WebhookSettings,
    vault: Vault,
    *,
    now: datetime,
    overlap: timedelta,
) -> Secrets:
    """The tenant's new default secret, beside the one before."""
    current = of_tenant(session, tenant_id, settings, vault, now=now).current
    row = _stored(session, tenant_id, vault.seal(current))
    replace(row, vault, now=now, overlap=overlap)
    session.flush()
    return opened(row, vault, now=now)


def _stored(session: Session, tenant_id: UUID, sealed: bytes) -> WebhookSecret:
    """The tenant's row, locked; this one if there was none."""
    new = insert(WebhookSecret).values(tenant_id=tenant_id, secret=sealed).on_conflict_do_nothing()
    session.execute(new)
    query = select(WebhookSecret).where(WebhookSecret.tenant_id == tenant_id).with_for_update()
    return session.scalars(query).one()
