"""Who changes something in a transaction: whoever opens it says so, the log reads it."""

import os
import pwd
from dataclasses import dataclass
from enum import StrEnum
from typing import Final
from uuid import UUID

from sqlalchemy.orm import Session

_ACTOR: Final = "longbatch.actor"


class ActorKind(StrEnum):
    """What an actor is known by."""

    KEY = "key"
    PERSON = "person"
    OS_USER = "os_user"
    UNKNOWN = "unknown"  # nobody has signed in


class Via(StrEnum):
    """Through what a change came."""

    API = "api"
    CONSOLE = "console"
    COMMAND_LINE = "command_line"


@dataclass(frozen=True, slots=True)
class Actor:
    """One that changes something.

    Attributes:
        id: the public part of an API key, what names a person, or the operating system's name of a user;
            empty if unknown.
        tenant_id: of the key or the person.
        name: the operator's name for the key, or the person's.
        request_id: of the HTTP request; None: there is none.
        address: from which the request came, as far as this server sees.
        key_id: of the API key's row; None: the actor is none.
    """

    kind: ActorKind
    id: str
    via: Via
    tenant_id: UUID | None = None
    name: str = ""
    request_id: str | None = None
    address: str | None = None
    key_id: UUID | None = None


def act_as(session: Session, actor: Actor | None) -> None:
    """Say who makes the changes of the session's transactions; None: the system itself."""
    session.info[_ACTOR] = actor


def actor_of(session: Session) -> Actor | None:
    """Return who makes the changes of this session; None: the system itself, which the log leaves out."""
    actor: Actor | None = session.info.get(_ACTOR)
    return actor


def key_of(session: Session) -> UUID | None:
    """Return the API key that asks for what this session creates; None: a person, or the system itself."""
    actor = actor_of(session)
    return None if actor is None else actor.key_id


def user_of_process() -> Actor:
    """Describe the user whose process this is, whatever its environment says; for the command line."""
    try:
        name = pwd.getpwuid(os.getuid()).pw_name
    except KeyError:  # a container's user may have no name
        name = f"uid {os.getuid()}"
    return Actor(ActorKind.OS_USER, name, Via.COMMAND_LINE)
