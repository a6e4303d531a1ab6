"""The result of checking one component of a deployment."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Status = Literal["ok", "warning", "failed", "unknown"]


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check.

    Attributes:
        name: of the component.
        status: `warning`: it works, but not as well as it could; `unknown`: it cannot be checked from here.
        detail: what the check found, in words.
        advice: what to do about it; empty if nothing.
        facts: the same by name, for programs; empty if the words are all.
    """

    name: str
    status: Status
    detail: str
    advice: str = ""
    facts: Mapping[str, object] = field(default_factory=dict)
