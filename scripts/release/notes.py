"""Print the notes of a release: the CHANGELOG's section of the version that a tag names."""

import argparse
import re
import sys
import tomllib
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
_TAG: Final = re.compile(r"v(\d+\.\d+\.\d+((a|b|rc)\d+)?)")


class ReleaseError(Exception):
    """The tag names no release; the message says what to correct."""


def notes_of(tag: str, *, root: Path = ROOT) -> str:
    """Return the notes of the version that the tag names.

    Raises:
        ReleaseError: the tag, pyproject.toml and the CHANGELOG do not name the same version.
    """
    named = _TAG.fullmatch(tag)
    if named is None:
        raise ReleaseError(f"The tag {tag!r} is no version: v1.2.3, or v1.2.3rc1.")
    version = named.group(1)
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    if project["version"] != version:
        raise ReleaseError(f"pyproject.toml has version {project['version']}, the tag {version}.")
    sections = re.split(r"^## (.+)$", (root / "CHANGELOG.md").read_text(encoding="utf-8"), flags=re.MULTILINE)
    for heading, text in zip(sections[1::2], sections[2::2], strict=True):
        if heading.split()[0] == version and text.strip():
            return text.strip() + "\n"
    raise ReleaseError(f"CHANGELOG.md has no section `## {version}` with notes.")


def main() -> int:
    """Print the notes of the given tag."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tag", help="v1.2.3")
    try:
        sys.stdout.write(notes_of(parser.parse_args().tag))
    except ReleaseError as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
