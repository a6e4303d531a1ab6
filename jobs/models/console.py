"""The tables of the console: who is signed in, and codes that sign in once. They hold hashes of secrets."""

from datetime import datetime
from uuid import UUID

from sqlalchemy import ARRAY, CheckConstraint, ForeignKey, Index, Text, func
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import Mapped, mapped_column

from jobs.database.base import Base, JsonObject


class ConsoleSession(Base):
    """A browser that signed in with an API key, or by a provider. `tenants.sign_ins` writes it.

    Attributes:
        token_sha256: hash of the token in the browser's cookie, 32 bytes.
        tenant_id: the key's tenant, or the one that a rule gave the person.
        api_key_id: the key; the session can do what the key can do now, and ends with it. Null: a person's.
        person_issuer: the provider that vouched for the person. Null, as the three below: a key's.
        person_subject: what that provider knows them by.
        person_name: for people to read.
        scopes: what the person may do by the rule that admitted them.
        person_claims: what the rules looked at; null where the provider says nothing. Null: a key's, or an
            earlier release wrote it.
        created_at: when it signed in.
        used_at: the newest minute in which it sent a request.
        expires_at: not valid from then on, however much it is used.
    """

    __tablename__ = "console_sessions"
    __table_args__ = (
        CheckConstraint("octet_length(token_sha256) = 32", name="sha256"),
        CheckConstraint(
            "num_nonnulls(api_key_id, person_subject) = 1"
            " AND num_nulls(person_issuer, person_subject, person_name, scopes) IN (0, 4)",
            name="key_or_person",
        ),
        Index("ix_console_sessions_api_key_id", "api_key_id"),
    )

    token_sha256: Mapped[bytes] = mapped_column(primary_key=True)
    tenant_id: Mapped[UUID]
    api_key_id: Mapped[UUID | None] = mapped_column(ForeignKey("api_keys.id", ondelete="CASCADE"))
    person_issuer: Mapped[str | None]
    person_subject: Mapped[str | None]
    person_name: Mapped[str | None]
    scopes: Mapped[list[str] | None] = mapped_column(ARRAY(Text))
    person_claims: Mapped[JsonObject | None] = mapped_column(JSONB(none_as_null=True))
    created_at: Mapped[datetime] = mapped_column(server_default=func.clock_timestamp())
    used_at: Mapped[datetime] = mapped_column(server_default=func.clock_timestamp())
    expires_at: Mapped[datetime]


class ConsoleSignInCode(Base):
    """A secret in a link that signs a browser in once. `tenants.sign_ins` writes it and deletes it on use.

    Attributes:
        code_sha256: hash of the code, 32 bytes.
        tenant_id: the key's tenant.
        api_key_id: the key that the session will have.
        expires_at: not valid from then on.
    """

    __tablename__ = "console_sign_in_codes"
    __table_args__ = (
        CheckConstraint("octet_length(code_sha256) = 32", name="sha256"),
        Index("ix_console_sign_in_codes_api_key_id", "api_key_id"),
    )

    code_sha256: Mapped[bytes] = mapped_column(primary_key=True)
    tenant_id: Mapped[UUID]
    api_key_id: Mapped[UUID] = mapped_column(ForeignKey("api_keys.id", ondelete="CASCADE"))
    expires_at: Mapped[datetime]
