"""Sign-ins to the console: sessions of browsers and codes that sign in once, each bound to an API key."""

import secrets
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime, timedelta
from hashlib import sha256
from typing import Final
from uuid import UUID

from sqlalchemy import ColumnElement, and_, delete, func, or_, select, update
from sqlalchemy.orm import Session

from jobs import audit
from jobs.audit import Action
from jobs.database import database_now
from jobs.models import ApiKey, ConsoleSession, ConsoleSignInCode, Tenant, TenantLimit
from jobs.tenants import keys
from jobs.tenants.persons import Person

_SECRET_BYTES: Final = 32
_MINUTE: Final = timedelta(minutes=1)


@dataclass(frozen=True, slots=True)
class SignIn:
    """A session that is valid now.

    Attributes:
        who: what the session may do is what this key, or this person, may do.
        tenant_id, tenant_name: of the key's, or the person's, tenant.
        own_limits: of the tenant; None: the defaults apply.
        is_use_noted: the row already says that the session was used in this minute.
    """

    who: ApiKey | Person
    tenant_id: UUID
    tenant_name: str
    own_limits: TenantLimit | None
    expires_at: datetime
    now: datetime
    is_use_noted: bool


@dataclass(frozen=True, slots=True)
class SignInCode:
    """A code at the one moment when it can be shown."""

    secret: str
    expires_at: datetime


def start(session: Session, *, key_id: UUID, tenant_id: UUID, lifetime: timedelta) -> str:
    """Start a session for this key and return its token, which is stored nowhere."""
    token = secrets.token_urlsafe(_SECRET_BYTES)
    session.add(
        ConsoleSession(
            token_sha256=_hash(token),
            tenant_id=tenant_id,
            api_key_id=key_id,
            expires_at=database_now(session) + lifetime,
        )
    )
    session.flush()
    audit.note(session, Action.SIGN_IN, None, tenant_id=tenant_id)
    return token


def start_for_person(session: Session, person: Person, *, tenant_id: UUID, lifetime: timedelta) -> str:
    """Start a session for someone whom a provider vouches for, and return its token."""
    token = secrets.token_urlsafe(_SECRET_BYTES)
    session.add(
        ConsoleSession(
            token_sha256=_hash(token),
            tenant_id=tenant_id,
            person_issuer=person.issuer,
            person_subject=person.subject,
            person_name=person.name,
            scopes=sorted(person.scopes),
            person_claims=dict(person.claims),
            expires_at=database_now(session) + lifetime,
        )
    )
    session.flush()
    audit.note(session, Action.SIGN_IN, None, tenant_id=tenant_id, subject=person.subject)
    return token


def find(session: Session, token: str, *, idle: timedelta) -> SignIn | None:
    """Find the valid session with this token.

    Args:
        session: one that reads the rows of all tenants.
        token: as the browser sent it.
        idle: how long it may go without a request.

    Returns:
        None: there is none, it has expired, its key was revoked or has expired, or its tenant is being
        deleted.
    """
    query = (
        select(ConsoleSession, ApiKey, Tenant, TenantLimit, func.clock_timestamp())
        .outerjoin(ApiKey, ApiKey.id == ConsoleSession.api_key_id)
        .join(Tenant, Tenant.id == ConsoleSession.tenant_id)
        .outerjoin(TenantLimit, TenantLimit.tenant_id == ConsoleSession.tenant_id)
        .where(ConsoleSession.token_sha256 == _hash(token))
    )
    row = session.execute(query).one_or_none()
    if row is None:
        return None
    opened, key, tenant, own, now = row
    # The use is noted once a minute, so a session lives up to a minute longer than it should, never shorter.
    if now >= opened.expires_at or now >= opened.used_at + idle + _MINUTE or tenant.deleted_at is not None:
        return None
    who = key if key is not None else _person_of(opened)
    if who is None or (isinstance(who, ApiKey) and not keys.is_usable(who, now)):
        return None
    is_noted = now - opened.used_at < _MINUTE
    return SignIn(who, tenant.id, tenant.name, own, opened.expires_at, now, is_noted)


def usable_scopes(session: Session, *, tokens: Collection[str]) -> dict[str, frozenset[str]]:
    """Return what those of these sessions may do that are valid, whenever they were used last."""
    hashes = {_hash(token): token for token in tokens}
    is_person = and_(ConsoleSession.api_key_id.is_(None), Tenant.deleted_at.is_(None))
    query = (
        select(ConsoleSession.token_sha256, func.coalesce(ApiKey.scopes, ConsoleSession.scopes))
        .outerjoin(ApiKey, ApiKey.id == ConsoleSession.api_key_id)
        .join(Tenant, Tenant.id == ConsoleSession.tenant_id)
        .where(
            ConsoleSession.token_sha256.in_(hashes),
            ConsoleSession.expires_at > func.clock_timestamp(),
            or_(is_person, and_(ApiKey.id.is_not(None), keys.usable())),
        )
    )
    return {hashes[found]: frozenset(scopes) for found, scopes in session.execute(query)}


def note_use(session: Session, token: str, *, now: datetime) -> None:
    """Note that the session was used in this minute. Writes once a minute at most."""
    minute = now.replace(second=0, microsecond=0)
    session.execute(
        update(ConsoleSession)
        .where(ConsoleSession.token_sha256 == _hash(token), ConsoleSession.used_at < minute)
        .values(used_at=minute)
        .execution_options(synchronize_session=False)
    )


def end(session: Session, token: str) -> None:
    """End the session; one that has ended stays so."""
    ended = delete(ConsoleSession).where(ConsoleSession.token_sha256 == _hash(token))
    tenant_id = session.scalar(ended.returning(ConsoleSession.tenant_id))
    if tenant_id is not None:
        audit.note(session, Action.SIGN_OUT, None, tenant_id=tenant_id)


def end_of_person(session: Session, named: str) -> int:
    """End all sessions of the people who have this name or subject; return their number."""
    return _end_all(session, or_(ConsoleSession.person_subject == named, ConsoleSession.person_name == named))


def end_of_key(session: Session, key: ApiKey) -> int:
    """End all sessions of this key; return their number."""
    return _end_all(session, ConsoleSession.api_key_id == key.id, of=keys.public_id(key))


def _end_all(session: Session, which: ColumnElement[bool], *, of: str | None = None) -> int:
    ended = delete(ConsoleSession).where(which)
    columns = (ConsoleSession.tenant_id, ConsoleSession.person_subject)
    counts = Counter(
        (tenant_id, subject) for tenant_id, subject in session.execute(ended.returning(*columns))
    )
    for (tenant_id, subject), number in counts.items():
        audit.note(session, Action.SESSIONS_END, of, tenant_id=tenant_id, subject=subject, number=number)
    return counts.total()


def create_code(session: Session, *, key_id: UUID, tenant_id: UUID, lifetime: timedelta) -> SignInCode:
    """Create a code that signs a browser in once, with what this key may do."""
    code = secrets.token_urlsafe(_SECRET_BYTES)
    expires_at = database_now(session) + lifetime
    session.add(
        ConsoleSignInCode(
            code_sha256=_hash(code), tenant_id=tenant_id, api_key_id=key_id, expires_at=expires_at
        )
    )
    session.flush()
    audit.note(session, Action.CODE_CREATE, None, tenant_id=tenant_id)
    return SignInCode(code, expires_at)


def key_of_code(session: Session, code: str) -> ApiKey | None:
    """Find the key of a code that is not used yet; None if there is no such code."""
    query = (
        select(ApiKey)
        .join(ConsoleSignInCode, ConsoleSignInCode.api_key_id == ApiKey.id)
        .where(ConsoleSignInCode.code_sha256 == _hash(code))
    )
    return session.scalar(query)


def use_code(session: Session, code: str, *, lifetime: timedelta) -> str | None:
    """Use the code up and start its session; of two that try at the same time, one succeeds.

    Returns:
        The session's token; None: the code is used, or has expired.
    """
    used = session.execute(
        delete(ConsoleSignInCode)
        .where(ConsoleSignInCode.code_sha256 == _hash(code))
        .returning(
            ConsoleSignInCode.api_key_id,
            ConsoleSignInCode.tenant_id,
            ConsoleSignInCode.expires_at > func.clock_timestamp(),
        )
    ).one_or_none()
    if used is None:
        return None
    key_id, tenant_id, is_valid = used
    return start(session, key_id=key_id, tenant_id=tenant_id, lifetime=lifetime) if is_valid else None


def note_failure(session: Session, api_key: str, *, reason: str | None = None) -> None:
    """Log a sign-in that failed: for the tenant whose key was given, otherwise for operators alone.

    Public parts of keys are no secret: who knows one must not write to the log of its tenant.

    Args:
        session: one that reads and writes the rows of all tenants.
        api_key: as it was given, which is not logged; empty: none was.
        reason: the code of the error; None: the key was wrong, or may not sign in.
    """
    row = keys.find(session, api_key) if keys.handle_of(api_key) is not None else None
    named, tenant_id = (None, None) if row is None else (keys.public_id(row), row.tenant_id)
    details = {} if reason is None else {"reason": reason}
    audit.note(session, Action.SIGN_IN_FAIL, named, tenant_id=tenant_id, **details)


def prune(session: Session, *, now: datetime, limit: int = 5000) -> int:
    """Delete sessions and codes that have expired. Returns how many."""
    sessions = select(ConsoleSession).where(ConsoleSession.expires_at <= now)
    codes = select(ConsoleSignInCode).where(ConsoleSignInCode.expires_at <= now)
    removed = 0
    for expired in (sessions, codes):
        for row in session.scalars(expired.limit(limit).with_for_update(skip_locked=True)):
            session.delete(row)
            removed += 1
    return removed


def _person_of(opened: ConsoleSession) -> Person | None:
    """Describe the person whose session it is; None: it is a key's that is gone."""
    if opened.person_issuer is None or opened.person_subject is None:
        return None
    scopes = frozenset(opened.scopes or ())
    claims = opened.person_claims or {}
    return Person(opened.person_issuer, opened.person_subject, opened.person_name or "", scopes, claims)


def _hash(secret: str) -> bytes:
    return sha256(secret.encode()).digest()
