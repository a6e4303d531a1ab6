"""Scripts, styles and icons of the console: read once, each at an address with the hash of what it holds."""

from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from importlib import resources
from types import MappingProxyType
from typing import Final

from api.http.scopes import CONSOLE

FOLDER: Final = resources.files("api.console") / "assets"
_MEDIA_TYPES: Final = MappingProxyType(
    {"js": "text/javascript; charset=utf-8", "css": "text/css; charset=utf-8", "svg": "image/svg+xml"}
)
_HASH_DIGITS: Final = 16


@dataclass(frozen=True, slots=True)
class Asset:
    """A file that pages link.

    Attributes:
        address: where it is served; another content has another address.
    """

    address: str
    content: bytes
    media_type: str


@cache
def assets() -> dict[str, Asset]:
    """Read every asset, by its file's name."""
    found = {}
    for file in FOLDER.iterdir():
        media_type = _MEDIA_TYPES.get(file.name.rpartition(".")[2])
        if media_type is not None:
            content = file.read_bytes()
            digest = sha256(content).hexdigest()[:_HASH_DIGITS]
            found[file.name] = Asset(f"{CONSOLE}/assets/{digest}.{file.name}", content, media_type)
    return found


def address_of(name: str) -> str:
    """Return where the asset with this file name is served."""
    return assets()[name].address
