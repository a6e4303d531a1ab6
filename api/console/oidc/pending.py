"""A sign-in that has begun: what the browser keeps in a cookie until the provider sends it back."""

import base64
import binascii
import hmac
import json
import secrets
from dataclasses import asdict, dataclass, field
from typing import Final

from fastapi import Request
from starlette.responses import Response

from jobs.loopback import is_loopback

_MINUTES: Final = 10
_BYTES: Final = 32
_NAME: Final = "longbatch_oidc"


@dataclass(frozen=True, slots=True)
class PendingSignIn:
    """A sign-in that waits for the provider.

    Attributes:
        state: what the provider's answer must repeat: it then belongs to this browser.
        nonce: what the ID token must repeat: it was then made for this sign-in.
        verifier: proves to the provider that the code is used by the one who asked for it (PKCE).
        next: the page that was wanted.
    """

    next: str
    state: str = field(default_factory=lambda: secrets.token_urlsafe(_BYTES), repr=False)
    nonce: str = field(default_factory=lambda: secrets.token_urlsafe(_BYTES), repr=False)
    verifier: str = field(default_factory=lambda: secrets.token_urlsafe(_BYTES), repr=False)

    def is_answered_by(self, state: str) -> bool:
        """Return True if this state is the one that was sent."""
        return hmac.compare_digest(self.state.encode(), state.encode())


def keep(request: Request, response: Response, pending: PendingSignIn) -> None:
    """Let the browser keep it; `lax`, since the provider's site leads the browser back."""
    packed = base64.urlsafe_b64encode(json.dumps(asdict(pending)).encode()).decode()
    response.set_cookie(
        _cookie(request),
        packed,
        max_age=60 * _MINUTES,
        path="/",
        httponly=True,
        samesite="lax",
        secure=_is_secure(request),
    )


def find(request: Request) -> PendingSignIn | None:
    """Find the browser's; None: there is none, or it is not of ours."""
    try:
        found = json.loads(base64.urlsafe_b64decode(request.cookies.get(_cookie(request), "")))
    except (binascii.Error, ValueError):
        return None
    fields = ("next", "state", "nonce", "verifier")
    if not isinstance(found, dict) or not all(isinstance(found.get(each), str) for each in fields):
        return None
    pending = PendingSignIn(**{each: found[each] for each in fields})
    return pending if pending.state and pending.nonce and pending.verifier else None


def forget(request: Request, response: Response) -> None:
    """Make the browser forget it: it is used once, whatever came of it."""
    name, is_secure = _cookie(request), _is_secure(request)
    response.delete_cookie(name, path="/", httponly=True, samesite="lax", secure=is_secure)


def _cookie(request: Request) -> str:
    """Name the cookie so that no neighbouring site can set it."""
    return f"__Host-{_NAME}" if _is_secure(request) else _NAME


def _is_secure(request: Request) -> bool:
    return not is_loopback(request.url.hostname)
