"""The list of licences names every package of the server's image, and every one has a licence."""

import re
from importlib import metadata

import pytest

from scripts.release.licences import FILE, LOCK, licence_of, shipped

ROW = re.compile(r"^\| ([A-Za-z0-9._-]+) \| (\S+) \| (.+) \|$", re.MULTILINE)
# Under which the image could be given away only with all of our code, or not at all.
REFUSED = re.compile(r"\b(A?GPL|SSPL|BUSL|Commons Clause|proprietary)", re.IGNORECASE)


def listed() -> dict[str, tuple[str, str]]:
    rows = ROW.findall(FILE.read_text(encoding="utf-8"))
    return {name: (version, licence) for name, version, licence in rows if name != "package"}


def test_the_list_is_that_of_the_lock() -> None:
    versions = {name: version for name, (version, _) in listed().items()}
    assert versions == shipped(), "make licences writes it anew"
    assert len(versions) > 80


def test_the_lock_is_read_whole() -> None:
    """But for what other platforms need."""
    locked = set(re.findall(r"^([A-Za-z0-9._-]+)==", LOCK.read_text(encoding="utf-8"), re.MULTILINE))
    assert {"fastapi", "psycopg-binary", "obstore", "deprecated"} <= shipped().keys() <= locked
    assert not {"colorama", "tzdata", "httpx2-jsfetch"} & shipped().keys()


@pytest.mark.parametrize("name", sorted(shipped()))
def test_a_licence_is_what_the_installed_package_says(name: str) -> None:
    version, licence = listed()[name]
    assert not REFUSED.search(licence.replace("LGPL", ""))
    if metadata.version(name) == version:  # another version may say it in other words
        assert licence == licence_of(name)
