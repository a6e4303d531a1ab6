"""API keys: create, find, rotate and revoke them. A key is shown once, when created; its hash is stored."""

import hmac
import re
import secrets
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from hashlib import sha256
from typing import Any, Final, Literal
from uuid import UUID

from sqlalchemy import ColumnElement, and_, func, or_, select, update
from sqlalchemy.orm import Session

from jobs import audit
from jobs.audit import Action
from jobs.database import database_now, paging, statements
from jobs.database.paging import Page
from jobs.database.statements import Statement
from jobs.errors import (
    AuthenticationError,
    ConflictError,
    InvalidRequestError,
    KeyNotUsableError,
    NotFoundError,
)
from jobs.ids import uuid7
from jobs.models.tenant import ApiKey, Tenant, TenantLimit

PREFIX: Final = "lb_"
_HANDLE_BYTES: Final = 8
_SECRET_BYTES: Final = 32  # 256 random bits cannot be guessed, so a fast hash is as good as a slow one
_SHAPE: Final = re.compile(r"lb_([0-9a-f]{16})_[A-Za-z0-9_-]{43}")
_NAMED: Final = re.compile(r"(?:lb_)?([0-9a-f]{16})(?:_[A-Za-z0-9_-]{43})?")
_MINUTE: Final = timedelta(minutes=1)


class Scope(StrEnum):
    """What a key may do; none implies another."""

    SUBMIT = "submit"  # create, cancel and delete what belongs to the tenant
    READ = "read"  # read it
    ADMIN = "admin"  # read what belongs to no tenant: metrics from another host
    ENGINE = "engine"  # pass tensors to engines by name
    OPERATOR = "operator"  # see and pause engines and queues; manage tenants, their keys and limits


@dataclass(frozen=True, slots=True)
class NewKey:
    """A key at the one moment when it can be shown.

    Attributes:
        secret: the whole key, as callers send it.
    """

    row: ApiKey
    secret: str = field(repr=False)


def create(
    session: Session,
    *,
    tenant_id: UUID,
    name: str,
    scopes: Collection[Scope],
    expires_at: datetime | None = None,
    secret: str | None = None,
    limits: Mapping[str, int | None] | None = None,
) -> NewKey:
    """Create a key of this tenant, with this secret or a random one.

    With `limits`, by the names of `LIMIT_NAMES`, it may have less than its tenant, and never more.

    Raises:
        ValueError: the given secret does not look like a key.
        NotFoundError: the tenant was deleted meanwhile.
        ConflictError: the tenant is being deleted.
    """
    # Locked, so that an order to delete the tenant waits for this key and revokes it too.
    its_tenant = select(Tenant.deleted_at).where(Tenant.id == tenant_id).with_for_update(read=True)
    found = session.execute(its_tenant).one_or_none()
    if found is None:
        raise NotFoundError("There is no such tenant.")
    if found.deleted_at is not None:
        raise ConflictError("The tenant is being deleted; it gets no keys.")
    if secret is None:
        handle, rest = secrets.token_hex(_HANDLE_BYTES), secrets.token_urlsafe(_SECRET_BYTES)
        secret = f"{PREFIX}{handle}_{rest}"
    public = handle_of(secret)
    if public is None:
        raise ValueError("a key is lb_, 16 hex digits, _ and 43 characters of URL-safe base64")
    row = ApiKey(
        id=uuid7(),
        tenant_id=tenant_id,
        handle=public,
        secret_sha256=_hash(secret),
        name=name,
        scopes=sorted(scopes),
        expires_at=expires_at,
        **(limits or {}),
    )
    session.add(row)
    session.flush()
    own = {name: value for name, value in limits_of(row).items() if value is not None}
    granted = list(row.scopes)
    audit.note(
        session, Action.KEY_CREATE, public_id(row), tenant_id=tenant_id, name=name, scopes=granted, **own
    )
    return NewKey(row, secret)


def public_id(row: ApiKey) -> str:
    """Print the public part of a key, which names it."""
    return f"{PREFIX}{row.handle}"


def handle_of(secret: str) -> str | None:
    """Read the public part of a key.

    Returns:
        None if this is not a key, whatever the database holds.
    """
    found = _SHAPE.fullmatch(secret)
    return found.group(1) if found else None


def find(session: Session, secret: str) -> ApiKey | None:
    """Find the key's row, even if the key has expired or was revoked.

    Returns:
        None if there is no such key.
    """
    return look_up(session, [secret])[secret].row


@dataclass(frozen=True, slots=True)
class KeyRecord:
    """The database's answer about a key. No session tracks its rows.

    Attributes:
        row: None if there is no such key.
        own: the tenant's own limits; None: the defaults apply.
        now: the time by the database's clock.
    """

    row: ApiKey | None
    own: TenantLimit | None
    now: datetime


def look_up(session: Session, secrets: Collection[str]) -> dict[str, KeyRecord]:
    """Look these keys up in one query, even expired and revoked ones.

    The public parts find them; the secrets are compared in constant time.
    """
    handles = {secret: handle_of(secret) for secret in secrets}
    rows = statements.fetch(session, _LOOK_UP, {"handles": [each for each in handles.values() if each]})
    known = {row[_HANDLE]: row for row in rows if row[_HANDLE] is not None}
    found = {}
    for secret, handle in handles.items():
        row = known.get(handle)
        sha = row[_SHA256] if row is not None else bytes(sha256().digest_size)
        is_right = hmac.compare_digest(sha, _hash(secret)) and row is not None
        found[secret] = _record(row) if row is not None and is_right else KeyRecord(None, None, rows[0][0])
    return found


_KEY_COLUMNS: Final = [each.name for each in ApiKey.__table__.columns]
_LIMIT_COLUMNS: Final = [each.name for each in TenantLimit.__table__.columns]
_HANDLE, _SHA256 = (1 + _KEY_COLUMNS.index(name) for name in ("handle", "secret_sha256"))
_LOOK_UP: Final = Statement(f"""
    SELECT clock_timestamp(), {", ".join(f"api_keys.{name}" for name in _KEY_COLUMNS)},
        {", ".join(f"own.{name}" for name in _LIMIT_COLUMNS)}
    FROM (SELECT) AS once LEFT JOIN api_keys ON handle = ANY(%(handles)s::text[])
        LEFT JOIN tenant_limits AS own ON own.tenant_id = api_keys.tenant_id
""")  # noqa: S608  # built from constants  # built from constants


def _record(row: Sequence[Any]) -> KeyRecord:
    now, *values = row
    of_key = dict(zip(_KEY_COLUMNS, values, strict=False))
    own = dict(zip(_LIMIT_COLUMNS, values[len(_KEY_COLUMNS) :], strict=True))
    return KeyRecord(ApiKey(**of_key), TenantLimit(**own) if own["tenant_id"] else None, now)


def is_usable(row: ApiKey, now: datetime) -> bool:
    """Return True if the key is valid at this moment."""
    return row.revoked_at is None and (row.expires_at is None or now < row.expires_at)


def state_of(row: ApiKey, now: datetime) -> Literal["valid", "expired", "revoked"]:
    """Say whether the key is valid at this moment, or why not."""
    if row.revoked_at is not None:
        return "revoked"
    return "valid" if is_usable(row, now) else "expired"


def note_use(session: Session, key_id: UUID, *, now: datetime) -> None:
    """Note that the key was used in this minute. Writes once a minute at most."""
    minute = now.replace(second=0, microsecond=0)
    session.execute(
        update(ApiKey)
        .where(ApiKey.id == key_id, or_(ApiKey.last_used_at.is_(None), ApiKey.last_used_at < minute))
        .values(last_used_at=minute)
        .execution_options(synchronize_session=False)
    )


def is_use_noted(row: ApiKey, now: datetime) -> bool:
    """Return True if the row already says that the key was used in this minute."""
    return row.last_used_at is not None and now - row.last_used_at < _MINUTE


def named(session: Session, name: str) -> ApiKey:
    """Find the key that an operator names.

    By its handle, with or without `lb_`, or by the whole key.

    Raises:
        NotFoundError: there is none.
    """
    found = _NAMED.fullmatch(name.strip())
    row = session.scalar(select(ApiKey).where(ApiKey.handle == found.group(1))) if found else None
    if row is None:
        raise NotFoundError("There is no such key; `longbatch keys list` shows them.")
    return row


def list_keys(session: Session, *, tenant_id: UUID | None = None) -> Sequence[ApiKey]:
    """List the keys of this tenant, or of all, oldest first."""
    query = select(ApiKey).order_by(ApiKey.tenant_id, ApiKey.id)
    if tenant_id is not None:
        query = query.where(ApiKey.tenant_id == tenant_id)
    return session.scalars(query).all()


def read_page(session: Session, *, tenant_id: UUID | None, after: str | None, limit: int) -> Page[ApiKey]:
    """List a page of the keys of this tenant, or of all, newest first.

    Raises:
        InvalidRequestError: there is no such key with the public part `after`.
    """
    mine = [] if tenant_id is None else [ApiKey.tenant_id == tenant_id]
    last = None
    if after is not None:
        shape = _NAMED.fullmatch(after)
        known = select(ApiKey.id).where(ApiKey.handle == shape.group(1), *mine) if shape else None
        last = session.scalar(known) if known is not None else None
        if last is None:
            raise InvalidRequestError("There is no key with the id in `after`.", param="after")
    query = select(ApiKey).where(*mine)
    return paging.read_ids(session, query, ApiKey.id, after=last, limit=limit, kind="key")


def revoke(session: Session, row: ApiKey) -> None:
    """Revoke the key. Servers that used it lately stop accepting it within seconds."""
    revoked = (
        update(ApiKey)
        .where(ApiKey.id == row.id, ApiKey.revoked_at.is_(None))
        .values(revoked_at=func.clock_timestamp())
        .returning(ApiKey.id)
    )
    if session.scalar(revoked) is not None:
        audit.note(session, Action.KEY_REVOKE, public_id(row), tenant_id=row.tenant_id)


def revoke_by(session: Session, row: ApiKey, *, key_id: UUID) -> None:
    """Revoke the key at the request of another, which stays valid.

    Locks both rows, in one order for all: of two keys that revoke each other, one is left.

    Args:
        session: the caller's transaction.
        row: of the key to revoke.
        key_id: of the other one.

    Raises:
        ConflictError: it is the same key.
        AuthenticationError: the other one is itself no longer valid.
    """
    if row.id == key_id:
        raise ConflictError("A key cannot revoke itself; use another one with the scope 'operator'.")
    both = select(ApiKey.id).where(ApiKey.id.in_([row.id, key_id])).order_by(ApiKey.id)
    session.execute(both.with_for_update()).all()
    if key_id not in usable_scopes(session, key_ids=[key_id]):
        raise AuthenticationError("This API key has expired or was revoked.")
    revoke(session, row)


def rotate(session: Session, row: ApiKey, *, overlap: timedelta) -> NewKey:
    """Create a successor of this key; the old key stays valid for `overlap`.

    Its own expiry still holds. The successor of a key that expires lives as long as that key did, and has its
    limits, counted apart from it.

    Raises:
        KeyNotUsableError: the key has expired or was revoked, so it has no successor.
    """
    session.refresh(row, with_for_update=True)
    now = database_now(session)
    if not is_usable(row, now):
        raise KeyNotUsableError
    lifetime = row.expires_at - row.created_at if row.expires_at else None
    row.expires_at = min(now + overlap, row.expires_at or now + overlap)
    seconds = overlap.total_seconds()
    audit.note(session, Action.KEY_ROTATE, public_id(row), tenant_id=row.tenant_id, overlap_seconds=seconds)
    return create(
        session,
        tenant_id=row.tenant_id,
        name=row.name,
        scopes=[Scope(scope) for scope in row.scopes],
        expires_at=now + lifetime if lifetime else None,
        limits=limits_of(row),
    )


# Named as the tenant's are.
LIMIT_NAMES: Final = ("max_enqueued_tokens", "max_jobs", "max_requests")


def limits_of(row: ApiKey) -> dict[str, int | None]:
    """Return the key's own limits by name; None: its tenant's holds."""
    return {name: getattr(row, name) for name in LIMIT_NAMES}


def set_limits(session: Session, row: ApiKey, values: Mapping[str, int | None]) -> None:
    """Set these limits of the key, by the names of `LIMIT_NAMES`, and leave the others.

    Servers that used the key lately hold it to them within seconds.
    """
    if values:
        session.execute(update(ApiKey).where(ApiKey.id == row.id).values(**values))
        session.refresh(row)
        audit.note(session, Action.KEY_SET_LIMITS, public_id(row), tenant_id=row.tenant_id, **values)


def any_usable(session: Session) -> bool:
    """Return True if any key is valid."""
    return session.scalar(select(ApiKey.id).where(usable()).limit(1)) is not None


def usable_scopes(session: Session, *, key_ids: Collection[UUID]) -> dict[UUID, frozenset[str]]:
    """Return the scopes of those of the keys that are valid at this moment."""
    query = select(ApiKey.id, ApiKey.scopes).where(ApiKey.id.in_(key_ids), usable())
    return {key_id: frozenset(scopes) for key_id, scopes in session.execute(query)}


def usable() -> ColumnElement[bool]:
    """Match keys that are neither revoked nor expired."""
    lives = or_(ApiKey.expires_at.is_(None), ApiKey.expires_at > func.clock_timestamp())
    return and_(ApiKey.revoked_at.is_(None), lives)


def _hash(secret: str) -> bytes:
    return sha256(secret.encode()).digest()
