"""Renders pages: navigation, who is signed in, the message of what was just done."""

import base64
import binascii
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Final, Literal

from fastapi import Request
from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.responses import HTMLResponse, RedirectResponse, Response

from api.console import formats
from api.console.assets import address_of
from api.console.forms import CSRF_FIELD
from api.console.session import Viewer
from api.http.scopes import CONSOLE
from jobs import ids
from jobs.sealing.content import shown
from jobs.version import version

HOME: Final = f"{CONSOLE}/"
_FLASH: Final = "longbatch_flash"
_FLASH_SECONDS: Final = 60
# Bytes; a control character takes six of a cookie's 4,096, before base64.
_MAX_FLASH: Final = 500
_MAX_NEXT: Final = 2000
_SEE_OTHER: Final = 303
Tone = Literal["good", "bad"]


@dataclass(frozen=True, slots=True)
class NavigationEntry:
    """A page in the navigation.

    Attributes:
        for_operators: only they see it.
        own_title: what all others read; empty: the same.
    """

    address: str
    title: str
    for_operators: bool = False
    own_title: str = ""

    def title_for(self, viewer: Viewer) -> str:
        """Return what this viewer reads."""
        return self.title if viewer.is_operator or not self.own_title else self.own_title


NAVIGATION: Final = (
    NavigationEntry(HOME, "Overview"),
    NavigationEntry(f"{HOME}summaries", "Summaries"),
    NavigationEntry(f"{HOME}answers", "Answers"),
    NavigationEntry(f"{HOME}extractions", "Extractions"),
    NavigationEntry(f"{HOME}documents", "Documents"),
    NavigationEntry(f"{HOME}batches", "Batches"),
    NavigationEntry(f"{HOME}jobs", "Jobs"),
    NavigationEntry(f"{HOME}engines", "Engines"),
    NavigationEntry(f"{HOME}webhooks", "Webhooks"),
    NavigationEntry(f"{HOME}tenants", "Tenants", own_title="Limits and keys"),
    NavigationEntry(f"{HOME}usage", "Usage"),
    NavigationEntry(f"{HOME}audit", "Audit"),
    NavigationEntry(f"{HOME}system", "System", for_operators=True),
)


@dataclass(frozen=True, slots=True)
class FlashMessage:
    """What the last request did, shown once."""

    tone: Tone
    text: str


def render(
    request: Request, template: str, *, title: str, status: int = 200, **values: object
) -> HTMLResponse:
    """Render a page.

    Args:
        request: its viewer, if someone is signed in, and its message are shown.
        template: name of the file.
        title: of the page; never a prompt or an output.
        status: of the response.
        values: for the template.
    """
    flash = _read_flash(request.cookies.get(_FLASH))
    shown = _environment().get_template(template)
    text = shown.render(title=title, flash=flash, **_common(request), **values)
    response = HTMLResponse(text, status)
    if flash is not None:
        response.delete_cookie(_FLASH, path=CONSOLE)
    return response


def render_part(request: Request, template: str, **values: object) -> str:
    """Render a part of a page, for an event that replaces it."""
    return _environment().get_template(template).render(**_common(request), **values)


def redirect(address: str, *, done: str | None = None, tone: Tone = "good") -> Response:
    """Send the browser to a page after a form, with a message of what was done.

    The message waits in a cookie of a minute, so a reload of the page does not repeat it.
    """
    response = RedirectResponse(address, _SEE_OTHER)
    if done is not None:
        shown = done.encode()[:_MAX_FLASH].decode(errors="ignore")
        told = json.dumps([tone, shown], ensure_ascii=False)
        packed = base64.urlsafe_b64encode(told.encode()).decode()
        response.set_cookie(
            _FLASH, packed, max_age=_FLASH_SECONDS, path=CONSOLE, httponly=True, samesite="strict"
        )
    return response


def own_address(wanted: str) -> str:
    """Return the address if it is one of the console's, otherwise that of its first page."""
    is_own = wanted.startswith(HOME) and wanted.isascii() and wanted.isprintable() and "\\" not in wanted
    return wanted if is_own and len(wanted) <= _MAX_NEXT else HOME


def _common(request: Request) -> dict[str, object]:
    viewer: Viewer | None = getattr(request.state, "viewer", None)
    entries = [each for each in NAVIGATION if viewer and (viewer.is_operator or not each.for_operators)]
    return {
        "viewer": viewer,
        "navigation": entries,
        "here": _section(request.url.path),
        "csrf_field": CSRF_FIELD,
        "version": version(),
    }


def _section(path: str) -> str:
    """Return the address of the navigation's entry that the path belongs to."""
    first = path.removeprefix(HOME).partition("/")[0]
    return HOME + first


def _read_flash(packed: str | None) -> FlashMessage | None:
    """Read the message; what no redirect of ours can have written is dropped."""
    try:
        match json.loads(base64.urlsafe_b64decode(packed or "")):
            case ["good" | "bad" as tone, str(text)]:
                return FlashMessage(tone, text)
    except (binascii.Error, ValueError):
        pass
    return None


@cache
def _environment() -> Environment:
    made = Environment(
        loader=PackageLoader("api.console"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    functions: Mapping[str, object] = {"asset": address_of, "query": formats.query}
    made.globals.update(functions)
    made.filters.update(moment=formats.moment, span=formats.span, number=formats.number, size=formats.size)
    # Of content: none if it cannot be decrypted, so that no row breaks its list.
    made.filters.update(event_id=ids.event_id, job_id=ids.job_id, readable=shown)
    return made
