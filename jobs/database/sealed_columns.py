"""Types of the columns that hold callers' content: values are sealed as they are written, opened as read.

The sealer belongs to the engine of the connection. In SQL a column holds what is stored; `plain_length`
measures what that is of content.
"""

from typing import Any, ClassVar, Final, cast

from sqlalchemy import (
    Dialect,
    Engine,
    Integer,
    LargeBinary,
    Text,
    TypeDecorator,
    case,
    func,
    literal,
    or_,
    type_coerce,
)
from sqlalchemy import cast as sql_cast
from sqlalchemy.dialects.postgresql import JSON, JSONB
from sqlalchemy.orm import InstrumentedAttribute, Session
from sqlalchemy.sql import ColumnElement
from sqlalchemy.types import TypeEngine

from jobs.sealing.content import (
    ADDED_BYTES,
    ESCAPE,
    NAME_CHARS,
    PLAIN,
    SEALED,
    TEXT_HEAD_CHARS,
    TEXT_OVERHEAD_BYTES,
    ContentSealer,
    ContentUnreadableError,
    Unreadable,
)
from jobs.sealing.keys import NAME_BYTES

_SEALER: Final = "longbatch_sealer"


def use_sealer(engine: Engine, sealer: ContentSealer) -> None:
    """Let the engine's connections seal and open content with this."""
    setattr(engine.dialect, _SEALER, sealer)


def sealer_of(dialect: Dialect) -> ContentSealer:
    """Return what seals content on connections with this dialect."""
    return cast("ContentSealer", getattr(dialect, _SEALER, PLAIN))


def sealer_in(session: Session) -> ContentSealer:
    """Return what seals content in this session: for what a statement reads or writes as it is stored."""
    return sealer_of(session.get_bind().dialect)


class Sealed(TypeDecorator[Any]):
    """A column of content. Subclasses say what is stored of it.

    Attributes:
        place: what a value belongs to, such as `texts.body`: it opens as that alone. Columns between which
            SQL copies have one place.
        stored: the type of what the column stores.
    """

    impl: TypeEngine[Any] | type[TypeEngine[Any]] = Text
    cache_ok = True
    stored: ClassVar[type[TypeEngine[Any]]] = Text

    def __init__(self, place: str) -> None:
        """Args: place: as the attribute."""
        super().__init__()
        self.place = place


class SealedText(Sealed):
    """A text column of content."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        """Seal a value."""
        return None if value is None else sealer_of(dialect).seal_text(value, self.place)

    def process_result_value(self, value: str | None, dialect: Dialect) -> str | None:
        """Open a value.

        Raises:
            ContentUnreadableError: it cannot be opened.
        """
        return None if value is None else sealer_of(dialect).open_text(value, self.place)


class SealedLabel(SealedText):
    """A text column that lists show beside other rows: what cannot be opened reads as NULL there."""

    cache_ok = True

    def process_result_value(self, value: str | None, dialect: Dialect) -> str | None:
        """Open a value, if a key does."""
        try:
            return super().process_result_value(value, dialect)
        except ContentUnreadableError:
            return None


class SealedNote(SealedText):
    """A text column of rows that are of use without it: what cannot be opened is an `Unreadable`."""

    cache_ok = True

    def process_result_value(self, value: str | None, dialect: Dialect) -> Any:  # noqa: ANN401  # or that
        """Open a value, if a key does."""
        try:
            return super().process_result_value(value, dialect)
        except ContentUnreadableError as error:
            return Unreadable(error)


class SealedBytes(Sealed):
    """A bytea column of content."""

    impl = LargeBinary
    cache_ok = True
    stored: ClassVar[type[TypeEngine[Any]]] = LargeBinary

    def process_bind_param(self, value: bytes | None, dialect: Dialect) -> bytes | None:
        """Seal a value."""
        return None if value is None else sealer_of(dialect).seal_bytes(value, self.place)

    def process_result_value(self, value: bytes | None, dialect: Dialect) -> bytes | None:
        """Open a value.

        Raises:
            ContentUnreadableError: it cannot be opened.
        """
        return None if value is None else sealer_of(dialect).open_bytes(value, self.place)


class SealedJson(Sealed):
    """A jsonb column of content, or a json one. None is stored as NULL."""

    impl = JSONB
    cache_ok = True
    stored: ClassVar[type[TypeEngine[Any]]] = JSONB

    def __init__(self, place: str, *, keeps_order: bool = False) -> None:
        """Args: place: as the attribute; keeps_order: the column is json."""
        super().__init__(place)
        self.keeps_order = keeps_order

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        """Return the type of the column."""
        made = JSON(none_as_null=True) if self.keeps_order else JSONB(none_as_null=True)
        return dialect.type_descriptor(made)

    def process_bind_param(self, value: object, dialect: Dialect) -> object:
        """Seal a value."""
        return None if value is None else sealer_of(dialect).seal_json(value, self.place)

    def process_result_value(self, value: object, dialect: Dialect) -> object:
        """Open a value.

        Raises:
            ContentUnreadableError: it cannot be opened.
        """
        return None if value is None else sealer_of(dialect).open_json(value, self.place)


class SealedFacts(SealedJson):
    """A jsonb column, or a json one, of rows that are of use without it, as `SealedNote`."""

    cache_ok = True

    def process_result_value(self, value: object, dialect: Dialect) -> object:
        """Open a value, if a key does."""
        try:
            return super().process_result_value(value, dialect)
        except ContentUnreadableError as error:
            return Unreadable(error)


class SealedList(SealedJson):
    """A jsonb list that is shown beside other content, as `SealedLabel`: empty if it cannot be opened."""

    cache_ok = True

    def process_result_value(self, value: object, dialect: Dialect) -> object:
        """Open a value, if a key does."""
        try:
            return super().process_result_value(value, dialect)
        except ContentUnreadableError:
            return []


def is_sealed(column: InstrumentedAttribute[Any]) -> ColumnElement[bool]:
    """Match rows in which a column of text is sealed: SQL cannot search those."""
    return type_coerce(column, Text).startswith(SEALED)


def has_key(column: InstrumentedAttribute[Any], sealer: ContentSealer) -> ColumnElement[bool]:
    """Match rows in which a column is plain, NULL, or sealed by a key that the sealer has."""
    key: ColumnElement[Any]
    known: list[ColumnElement[Any]]
    if isinstance(column.type, SealedBytes):
        packed = sql_cast(column, LargeBinary)
        begins = func.substring(packed, 1, len(SEALED), type_=LargeBinary) == SEALED.encode()
        key = func.substring(packed, len(SEALED) + 1, NAME_BYTES, type_=LargeBinary)
        known = [literal(bytes.fromhex(name), LargeBinary) for name in sealer.key_names]
    else:
        written = sql_cast(column, Text)
        begins = func.left(written, len(SEALED), type_=Text) == SEALED
        key = func.substr(written, len(SEALED) + 1, NAME_CHARS, type_=Text)
        known = [literal(name, Text) for name in sealer.key_names]
    return or_(column.is_(None), ~begins, key.in_(known))


def plain_length(column: InstrumentedAttribute[Any]) -> ColumnElement[int]:
    """Measure a column's content in bytes, as `octet_length` does what is not sealed. NULL: no content."""
    stored = func.octet_length(column, type_=Integer)
    begin: ColumnElement[Any]
    markers: list[ColumnElement[Any]]
    if isinstance(column.type, SealedBytes):
        begin = func.substring(sql_cast(column, LargeBinary), 1, len(SEALED), type_=LargeBinary)
        markers = [literal(each.encode(), LargeBinary) for each in (SEALED, ESCAPE)]
        content = stored - ADDED_BYTES
    else:
        begin = func.left(sql_cast(column, Text), len(SEALED), type_=Text)
        markers = [literal(each, Text) for each in (SEALED, ESCAPE)]
        content = (stored - TEXT_HEAD_CHARS) * 3 // 4 - TEXT_OVERHEAD_BYTES
    sealed, escape = markers
    is_escaped = func.substring(begin, 1, len(ESCAPE), type_=begin.type) == escape
    return case((begin == sealed, content), (is_escaped, stored - len(ESCAPE)), else_=stored)
