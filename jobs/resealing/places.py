"""Where sealed values are: every column of a sealed type, and every secret of webhooks."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, Self

from sqlalchemy import (
    ColumnElement,
    LargeBinary,
    TableClause,
    Text,
    case,
    column,
    func,
    literal_column,
    table,
)
from sqlalchemy.dialects.postgresql import JSON, JSONB
from sqlalchemy.schema import Table
from sqlalchemy.types import TypeEngine

from jobs.database.sealed_columns import Sealed, SealedJson
from jobs.models import Base
from jobs.resealing.tally import PLAIN
from jobs.sealing.content import ContentSealer, key_name
from jobs.sealing.keys import NAME_BYTES, name_of, read_keys
from jobs.settings import DatabaseSettings, WebhookSettings
from jobs.webhooks.vault import Vault

# Of a stored value: enough to tell which key sealed it.
_HEAD: Final = 64
# Columns of webhooks' secrets, which the vault seals whatever the settings say of content.
SECRETS: Final[Mapping[str, Sequence[str]]] = {
    "webhook_endpoints": ("secret", "old_secret"),
    "webhook_secrets": ("secret", "old_secret"),
    "webhook_dispatches": ("secret",),
    "jobs": ("webhook_secret",),
    "batches": ("webhook_secret",),
    "summaries": ("webhook_secret",),
}


@dataclass(frozen=True)
class Aim:
    """How values are to be sealed.

    Attributes:
        sealer: of content.
        vault: of the secrets of webhooks; None: webhooks are not configured.
        known: the names of the configured keys, the newest first.
    """

    sealer: ContentSealer
    vault: Vault | None
    known: Sequence[str]

    @classmethod
    def of(cls, database: DatabaseSettings, webhooks: WebhookSettings) -> Self:
        """Read it from the settings.

        Raises:
            VaultKeyError: a key is invalid.
        """
        keys = read_keys(webhooks.encryption_key)
        sealer = ContentSealer(keys, seals=database.encrypt_content)
        return cls(sealer, Vault.of(webhooks), [name_of(key).hex() for key in keys])

    @cached_property
    def content(self) -> str:
        """The name of the key that content is to be under, or PLAIN."""
        return self.known[0] if self.sealer.seals else PLAIN

    @cached_property
    def secrets(self) -> str | None:
        """The name of the key that secrets are to be under; None: they stay as they are."""
        return self.known[0] if self.known else None

    def opens(self, name: str) -> bool:
        """Return True if a value under the key of this name can be opened."""
        return name == PLAIN or name in self.known or name == self._derived

    @cached_property
    def _derived(self) -> str | None:
        old = None if self.vault is None else self.vault.old_name
        return None if old is None else old.hex()


@dataclass(frozen=True, slots=True)
class SealedPlace:
    """A column whose values are sealed.

    Attributes:
        stored: the type of what it stores.
        content: the type that seals its content; None: it holds secrets of webhooks.
    """

    name: str
    stored: TypeEngine[Any]
    content: Sealed | None = None

    def head(self) -> ColumnElement[Any]:
        """Select the beginning of a stored value. NULL: there is none."""
        own: ColumnElement[Any] = column(self.name, self.stored)
        match self.stored:
            case LargeBinary():
                return func.substring(own, 1, _HEAD, type_=LargeBinary)
            case JSONB():
                kind = func.jsonb_typeof(own)
            case JSON():
                kind = func.json_typeof(own)
            case _:
                return func.left(own, _HEAD, type_=Text)
        text = own.op("#>>", return_type=Text())(literal_column("'{}'"))
        return case((own.is_(None), None), (kind == "string", func.left(text, _HEAD, type_=Text)), else_="")

    def key_of(self, head: bytes | str) -> str:
        """Return the name of the key that sealed a value, or PLAIN."""
        if self.content is not None:
            return key_name(head) or PLAIN
        return head[1 : 1 + NAME_BYTES].hex() if isinstance(head, bytes) else PLAIN

    def wanted(self, aim: Aim) -> str | None:
        """Return the name of the key that its values are to be under; None: they stay as they are."""
        return aim.secrets if self.content is None else aim.content

    def renewed(self, stored: Any, aim: Aim) -> Any:  # noqa: ANN401  # text, bytes or JSON
        """Seal a stored value as the settings say now.

        Raises:
            ContentUnreadableError: its content cannot be opened.
            VaultError: the secret cannot be.
        """
        if self.content is None:
            if aim.vault is None:
                raise ValueError("nothing seals secrets")
            return aim.vault.seal(aim.vault.open(stored))
        sealer, place = aim.sealer, self.content.place
        match self.stored:
            case LargeBinary():
                return sealer.seal_bytes(sealer.open_bytes(stored, place), place)
            case JSON():
                return sealer.seal_json(sealer.open_json(stored, place), place)
            case _:
                return sealer.seal_text(sealer.open_text(stored, place), place)


@dataclass(frozen=True, slots=True)
class SealedTable:
    """A table with sealed values, as it is stored: reading it opens nothing.

    Attributes:
        name: of the table.
        key: names of the columns of its primary key.
        places: its sealed columns.
        rows: to select from.
    """

    name: str
    key: Sequence[str]
    places: Sequence[SealedPlace]
    rows: TableClause


def sealed_tables() -> Iterator[SealedTable]:
    """List the tables that have sealed columns."""
    for each in Base.metadata.sorted_tables:
        places = list(_places(each))
        if places:
            key = [one.name for one in each.primary_key]
            columns = [column(name, each.c[name].type) for name in key]
            stored = [column(place.name, place.stored) for place in places]
            yield SealedTable(each.name, key, places, table(each.name, *columns, *stored))


def _places(of: Table) -> Iterator[SealedPlace]:
    for each in of.columns:
        if isinstance(each.type, Sealed):
            yield SealedPlace(each.name, _stored(each.type), each.type)
    for name in SECRETS.get(of.name, ()):
        yield SealedPlace(name, LargeBinary())


def _stored(kind: Sealed) -> TypeEngine[Any]:
    if isinstance(kind, SealedJson):
        return JSON(none_as_null=True) if kind.keeps_order else JSONB(none_as_null=True)
    return kind.stored()
