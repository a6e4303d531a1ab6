"""What all tables share: the base class and the types of their columns."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import DateTime, Index, LargeBinary, MetaData, Text, TextClause, Uuid, text
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import DeclarativeBase

JsonObject = dict[str, object]


class Base(DeclarativeBase):
    """The base of all tables. It names constraints uniformly, so that migrations can refer to them."""

    metadata = MetaData(
        naming_convention={
            "ix": "ix_%(table_name)s_%(column_0_N_name)s",
            "uq": "uq_%(table_name)s_%(column_0_N_name)s",
            "ck": "ck_%(table_name)s_%(constraint_name)s",
            "fk": "fk_%(table_name)s_%(column_0_N_name)s",
            "pk": "pk_%(table_name)s",
        }
    )
    type_annotation_map = {  # noqa: RUF012  # SQLAlchemy reads it as a plain class attribute
        str: Text,
        bytes: LargeBinary,
        datetime: DateTime(timezone=True),
        UUID: Uuid,
        JsonObject: JSONB,
    }


def one_of(column: str, values: Sequence[str]) -> str:
    """Write the SQL condition that a text column holds one of these values."""
    listed = ", ".join(f"'{value}'" for value in values)
    return f"{column} IN ({listed})"


def partial_index(
    name: str, *columns: str | TextClause, where: str, unique: bool = False, include: Sequence[str] = ()
) -> Index:
    """Make an index of the rows for which this SQL condition is true."""
    included: dict[str, Any] = {"postgresql_include": list(include)} if include else {}
    return Index(name, *columns, unique=unique, postgresql_where=text(where), **included)
