"""`longbatch console`: a link that signs a browser in to the console once."""

import os
import sys
import webbrowser
from typing import Annotated

import typer

from longbatch import calls
from longbatch.cli.output import ApiUrl, AsJson, client_of, notes, print_json, print_text


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command(epilog="Exit codes: 0 done, 3 no server answers, 4 the server refused the request.")(console)


def console(
    *,
    api_url: ApiUrl = None,
    opens: Annotated[
        bool,
        typer.Option("--open/--no-open", help="Open it in the browser of this desktop, if there is one."),
    ] = True,
    as_json: AsJson = False,
) -> None:
    """Print a link that signs a browser in to the console once, and open it.

    The session can do what the API key can do; the key itself does not reach the browser.
    """
    with client_of(api_url) as client:
        made = client.run(calls.console_link())
        link = {"url": client.api_url.rstrip("/") + made["path"], "expires_at": made["expires_at"]}
    if as_json:
        print_json(link)
        return
    print_text(link["url"])
    if opens and _has_desktop() and webbrowser.open(link["url"]):
        notes.print("It is open in your browser.")
    notes.print("It signs in once, for some minutes.")


def _has_desktop() -> bool:
    """Return True if a browser would open a window, and not take over this terminal."""
    is_told = any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY"))
    return sys.stdout.isatty() and (is_told or sys.platform in {"darwin", "win32"})
