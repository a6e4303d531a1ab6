"""Signing secrets: create them, replace them with an overlap, and keep a default for each tenant."""

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

from jobs import audit
from jobs.audit import Action
from jobs.models import DEFAULT_TENANT
from jobs.models.webhook import WebhookEndpoint, WebhookSecret
from jobs.sealing.keys import NAME_BYTES
from jobs.settings import WebhookSettings
from jobs.webhooks.rules import SECRET_PREFIX
from jobs.webhooks.vault import Vault, VaultError

_SECRET_BYTES: Final = 32


class Replaceable(Protocol):
    """A row with a sealed secret and, during an overlap, the old one."""

    secret: bytes
    old_secret: bytes | None
    old_secret_expires_at: datetime | None


@dataclass(frozen=True, slots=True)
class Secrets:
    """The secrets that sign now.

    Attributes:
        current: `whsec_…`.
        old: valid until `old_expires_at`.
    """

    current: str
    old: str | None = None
    old_expires_at: datetime | None = None

    def valid(self) -> Sequence[str]:
        """List all secrets that sign now."""
        return [self.current] if self.old is None else [self.current, self.old]


def new_secret() -> str:
    """Create a random secret in the format of Standard Webhooks."""
    return SECRET_PREFIX + base64.b64encode(secrets.token_bytes(_SECRET_BYTES)).decode()


def opened(row: Replaceable, vault: Vault, *, now: datetime) -> Secrets:
    """Decrypt the row's secrets that are valid now.

    Raises:
        VaultError: the current one cannot be decrypted.
    """
    current = vault.open(row.secret)
    if row.old_secret is None or row.old_secret_expires_at is None or row.old_secret_expires_at <= now:
        return Secrets(current)
    return Secrets(current, vault.open(row.old_secret), row.old_secret_expires_at)


def replace(row: Replaceable, vault: Vault, *, now: datetime, overlap: timedelta) -> str:
    """Give the row a new secret and return it; the old one stays valid for `overlap`."""
    made = new_secret()
    row.old_secret, row.old_secret_expires_at = (row.secret, now + overlap) if overlap else (None, None)
    row.secret = vault.seal(made)
    return made


def reseal(session: Session, vault: Vault, *, limit: int = 100) -> int:
    """Reseal secrets that are sealed under the key that callers can derive.

    Returns: how many rows of endpoints and tenants were changed; call again until it is 0.
    """
    if not vault.keys or vault.old_name is None:
        return 0
    is_outdated = partial(_is_under, name=vault.old_name)
    endpoints = select(WebhookEndpoint).where(is_outdated(WebhookEndpoint.secret, WebhookEndpoint.old_secret))
    defaults = select(WebhookSecret).where(is_outdated(WebhookSecret.secret, WebhookSecret.old_secret))
    rows: list[Replaceable] = [
        *session.scalars(endpoints.limit(limit).with_for_update(key_share=True, skip_locked=True)),
        *session.scalars(defaults.limit(limit).with_for_update(skip_locked=True)),
    ]
    num_changed = sum(_reseal(row, vault) for row in rows)
    session.flush()
    return num_changed


def _is_under(*columns: InstrumentedAttribute[Any], name: bytes) -> ColumnElement[bool]:
    """Match rows sealed under the key of this name, which follows a format byte."""
    return or_(*(func.substr(each, 2, NAME_BYTES) == name for each in columns))


def _reseal(row: Replaceable, vault: Vault) -> bool:
    try:
        if vault.is_outdated(row.secret):
            row.secret = vault.seal(vault.open(row.secret))
        if row.old_secret is not None and vault.is_outdated(row.old_secret):
            row.old_secret = vault.seal(vault.open(row.old_secret))
    except VaultError:  # damaged: no key opens it
        return False
    return True


def of_tenant(
    session: Session, tenant_id: UUID, settings: WebhookSettings, vault: Vault, *, now: datetime
) -> Secrets:
    """Return the tenant's default secrets, creating them if it has none.

    The default tenant uses the configured secret until its first rotation.

    Raises:
        VaultError: its secret cannot be decrypted.
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
    """Replace the tenant's default secret; the old one stays valid for `overlap`."""
    current = of_tenant(session, tenant_id, settings, vault, now=now).current
    row = _stored(session, tenant_id, vault.seal(current))
    replace(row, vault, now=now, overlap=overlap)
    seconds = overlap.total_seconds()
    audit.note(session, Action.SECRET_ROTATE, None, tenant_id=tenant_id, overlap_seconds=seconds)
    session.flush()
    return opened(row, vault, now=now)


def _stored(session: Session, tenant_id: UUID, sealed: bytes) -> WebhookSecret:
    """Lock the tenant's row, and insert it with `sealed` if there is none."""
    new = insert(WebhookSecret).values(tenant_id=tenant_id, secret=sealed).on_conflict_do_nothing()
    session.execute(new)
    query = select(WebhookSecret).where(WebhookSecret.tenant_id == tenant_id).with_for_update()
    return session.scalars(query).one()
