"""What was found about one part of a deployment, in words."""

from dataclasses import dataclass
from typing import Literal

Status = Literal["ok", "warning", "failed", "unknown"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at.

    Attributes:
        name: of the part.
        status: `warning`: it works, but not as well as it could; `unknown`: it cannot be seen from here.
        detail: in words.
        advice: what to do about it; empty where nothing is to be done.
    """

    name: str
    status: Status
    detail: str
    advice: str = ""
