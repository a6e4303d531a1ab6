"""People who sign in to the console by a provider, without an API key."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final
from uuid import NAMESPACE_URL, UUID, uuid5

# What names them where a key's public part would: a halt that one of a tenant ordered is the tenant's own.
OF_TENANT: Final = "person_"
OPERATOR: Final = "operator_"
_HEX: Final = 16


@dataclass(frozen=True, slots=True)
class Person:
    """Someone whom a provider knows.

    Attributes:
        issuer: the provider.
        subject: what it knows them by, never given to another.
        name: for people to read: an e-mail address or a name.
        scopes: what they may do.
        claims: what the rules look at of what the provider says of them.
    """

    issuer: str
    subject: str
    name: str
    scopes: frozenset[str]
    claims: Mapping[str, object] = field(default_factory=dict)

    @property
    def id(self) -> UUID:
        """The same one for each of their sessions."""
        return uuid5(NAMESPACE_URL, f"{self.issuer} {self.subject}")

    @property
    def public_id(self) -> str:
        """What names them in halts and in the audit log."""
        prefix = OPERATOR if "operator" in self.scopes else OF_TENANT
        return prefix + self.id.hex[:_HEX]
