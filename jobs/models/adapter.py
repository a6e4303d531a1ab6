"""The table of adapters: low-rank changes of a model's weights (LoRA) that jobs may ask for by name."""

from datetime import datetime
from typing import Final, NamedTuple

from sqlalchemy import ARRAY, BigInteger, CheckConstraint, Identity, Text, UniqueConstraint, func
from sqlalchemy.orm import Mapped, mapped_column

from jobs.database.base import Base, one_of

FORMATS: Final = ("gguf", "peft")


class LoraAdapter(Base):
    """An adapter of a model. `adapters.registry` writes it; rows are never deleted.

    A name keeps its weights: results, caches and predictions by it stay true.

    Attributes:
        model: the model that it changes.
        name: what callers write after the model's name and a colon.
        number: of this adapter among those of all models; engines that are sent weights keep them by it.
        format: `peft` (adapter_config.json and adapter_model.safetensors) or `gguf`.
        source: the directory, file or URL of an object store from which workers read it.
        rank: of its matrices, at least 1.
        num_bytes: of its weights.
        sha256: of its files; a worker that reads others refuses them.
        modules: the parts of a layer that it changes, by their names in its files.
        created_at: when it was first registered.
        removed_at: when it was removed; requests for it are refused since. Null: it can be asked for.
    """

    __tablename__ = "adapters"
    __table_args__ = (
        UniqueConstraint("number"),
        CheckConstraint(one_of("format", list(FORMATS)), name="format"),
        CheckConstraint("rank >= 1 AND num_bytes >= 1", name="sizes"),
    )

    model: Mapped[str] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(primary_key=True)
    number: Mapped[int] = mapped_column(BigInteger, Identity(always=True))
    format: Mapped[str]
    source: Mapped[str]
    rank: Mapped[int]
    num_bytes: Mapped[int] = mapped_column(BigInteger)
    sha256: Mapped[bytes]
    modules: Mapped[list[str]] = mapped_column(ARRAY(Text))
    created_at: Mapped[datetime] = mapped_column(server_default=func.clock_timestamp())
    removed_at: Mapped[datetime | None]


class Address(NamedTuple):
    """What a request names in `model`: a model, or one of its adapters.

    Attributes:
        model: the model's name.
        adapter: of the adapter; None: the model as it is.
    """

    model: str
    adapter: str | None = None

    def __str__(self) -> str:
        """Write it as callers do."""
        return self.model if self.adapter is None else f"{self.model}:{self.adapter}"
