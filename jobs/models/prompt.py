"""The table of prompts, stored once per tenant and content."""

from datetime import datetime
from typing import Final
from uuid import UUID

from sqlalchemy import ForeignKey, UniqueConstraint, func
from sqlalchemy.orm import Mapped, mapped_column

from jobs.database.base import Base
from jobs.database.sealed_columns import SealedBytes
from jobs.ids import uuid7

BODY: Final = SealedBytes("texts.body")
TOKEN_IDS: Final = SealedBytes("texts.token_ids")


class PromptText(Base):
    """One distinct prompt of a tenant: its messages as canonical JSON and, once counted, its token ids.

    `prompts.store` writes it and deletes it with the last job that uses it.

    Attributes:
        id: UUIDv7.
        tenant_id: the owner. Equal prompts of two tenants are two rows.
        sha256: of the canonical JSON in UTF-8. Unique within a tenant.
        body: the canonical JSON in UTF-8, zstd-compressed. What it says never changes.
        token_ids: int32 little-endian, zstd-compressed. Null until counted; replaced when a tokenizer with
            another fingerprint counts the prompt.
        num_tokens: number of token ids. Null until counted.
        fingerprint: names the tokenizer and chat template that made the ids. Null until counted.
        prefixes: keyed hashes of the ids' beginnings (`prompts.prefixes`): 8 bytes each, the shortest first;
            and of a prompt that may have a family, 8 bytes of the whole and 4 each of beginnings in small
            steps. Empty for a short prompt. Null until counted, and if it was counted before migration 0028.
        created_at: when the prompt was first stored.
    """

    __tablename__ = "texts"
    __table_args__ = (UniqueConstraint("tenant_id", "sha256"),)

    id: Mapped[UUID] = mapped_column(primary_key=True, default=uuid7)
    tenant_id: Mapped[UUID] = mapped_column(ForeignKey("tenants.id"))
    sha256: Mapped[bytes]
    body: Mapped[bytes] = mapped_column(BODY)
    token_ids: Mapped[bytes | None] = mapped_column(TOKEN_IDS)
    num_tokens: Mapped[int | None]
    fingerprint: Mapped[str | None]
    prefixes: Mapped[bytes | None]
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())
