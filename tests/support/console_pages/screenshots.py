"""Pictures of the console's pages, kept by its browser tests where `make screenshots` asks for them."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from browser_support import violations
from console_pages.browser import PROBE

if TYPE_CHECKING:
    from playwright.sync_api import Page

# Where they are kept; unset: nowhere.
FOLDER: Final = os.environ.get("LONGBATCH_SCREENSHOTS", "")
_SIZE: Final = {"width": 1080, "height": 680}
_MOST_BYTES: Final = 120_000
# Every page in light and dark, on a screen, and on a phone.
LOOKS: Final[list[dict[str, Any]]] = [
    {"color_scheme": "light", "viewport": _SIZE},
    {"color_scheme": "dark", "viewport": _SIZE},
    {"color_scheme": "light", "viewport": {"width": 360, "height": 640}},
]


def name_of(look: dict[str, Any]) -> str:
    """The look's name in a test's id and in a file's name."""
    return "phone" if look["viewport"] != _SIZE else str(look["color_scheme"])


looks = pytest.mark.parametrize("look", LOOKS, ids=name_of)


def probe(look: dict[str, Any]) -> str:
    """Markup that must stay text, on the phone, of which no pictures are kept; otherwise a word."""
    return PROBE if name_of(look) == "phone" else "contracts"


def looked_at(page: "Page", name: str, look: dict[str, Any]) -> None:
    """The page breaks no rule, and is kept as a picture."""
    assert violations(page) == []
    keep(page, name, look)


def keep(page: "Page", name: str, look: dict[str, Any]) -> None:
    """Keep a picture of a screen as `NAME-LOOK.png` in the folder, if pictures are asked for."""
    if not FOLDER or name_of(look) == "phone":
        return
    page.evaluate("document.activeElement.blur()")
    file = Path(FOLDER) / f"{name}-{name_of(look)}.png"
    file.parent.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=file, animations="disabled")
    assert file.stat().st_size < _MOST_BYTES, f"{file} is too large: show less on it"


def check_width(page: "Page") -> None:
    """Nothing of the page is wider than the screen; wide tables scroll in a region of their own."""
    width, most = page.evaluate("[document.documentElement.scrollWidth, window.innerWidth]")
    assert width <= most
