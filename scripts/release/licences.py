"""Write the list of the licences of all packages in the server's image.

`make licences` runs this file, which writes docs/licences.md from what is installed.
"""

import re
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path

from packaging.markers import Marker

ROOT = Path(__file__).resolve().parents[2]
FILE = ROOT / "docs" / "licences.md"
LOCK = ROOT / "requirements-server.lock"
# What the image runs on; the lock holds what other platforms need as well.
_IMAGE = {
    "implementation_name": "cpython",
    "platform_machine": "x86_64",
    "platform_python_implementation": "CPython",
    "python_full_version": "3.12.12",
    "python_version": "3.12",
    "sys_platform": "linux",
}
_LOCKED = re.compile(r"^([A-Za-z0-9._-]+)==([^ ;\\]+)(?: ; ([^\\]+?))? *\\?$", re.MULTILINE)
# Their metadata names none.
_BY_HAND = {"llama-models": "Llama 3.1 Community License (only its tokenizer file is used; NOTICE)"}
_LONGEST = 60  # of a field that names a licence; some hold its text
_HEAD = """# Licences of what is shipped

The wheel of Longbatch (Apache-2.0) holds no code of others: installing it fetches its requirements, each
under its own licence. The server's image holds them, as `requirements-server.lock` names them. This list
is made from the metadata of these packages (`make licences`), and a test compares it with the lock. Of
what the list leaves out, [NOTICE](../NOTICE) names the rest that Longbatch chose: the programs and
models of the local stack and of OCR. Images also hold what their base holds (Debian, Python), and the
image of the local engine more packages than the server's.

No package of the list is under the GPL or the AGPL. psycopg, under the LGPL, is used as a library of its
own, unchanged.

| package | version | licence, as its metadata names it |
|---|---|---|
"""


def shipped() -> dict[str, str]:
    """Read the versions of the packages in the server's image, by name."""
    found = _LOCKED.finditer(LOCK.read_text(encoding="utf-8"))
    return {
        name: version for name, version, marker in (each.groups() for each in found) if _is_shipped(marker)
    }


def _is_shipped(marker: str | None) -> bool:
    return marker is None or Marker(marker).evaluate(_IMAGE)


def licence_of(name: str) -> str:
    """Find the licence of an installed package: an SPDX expression, a short field, or classifiers.

    Raises:
        LookupError: its metadata name none; give it one by hand.
    """
    if name in _BY_HAND:
        return _BY_HAND[name]
    about = metadata.metadata(name)
    if "License-Expression" in about:
        return str(about["License-Expression"])
    written = "".join(about.get_all("License") or ()).strip().partition("\n")[0].strip()
    if written and len(written) <= _LONGEST and not written.startswith("Copyright"):
        return written
    classifiers = [str(each) for each in about.get_all("Classifier") or () if each.startswith("License ::")]
    if not classifiers:
        raise LookupError(name)
    return " or ".join(each.rpartition(" :: ")[2] for each in classifiers)


def as_text(packages: Mapping[str, str]) -> str:
    """Compose the page that lists these packages."""
    return _HEAD + "".join(_rows(packages))


def _rows(packages: Mapping[str, str]) -> Iterator[str]:
    for name in sorted(packages):
        yield f"| {name} | {packages[name]} | {licence_of(name)} |\n"


if __name__ == "__main__":
    FILE.write_text(as_text(shipped()), encoding="utf-8")
