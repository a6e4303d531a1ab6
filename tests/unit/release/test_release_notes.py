"""The notes of a release are those of the version that its tag names."""

import tomllib
from pathlib import Path

import pytest

from scripts.release.notes import ROOT, ReleaseError, notes_of

CHANGELOG = """# Changelog

## Unreleased

- Later.

## 1.2.0 (2026-12-01)

### New

- One.

## 1.2.0rc1

## 1.1.0

- Earlier.
"""


def repository(folder: Path, version: str) -> Path:
    (folder / "pyproject.toml").write_text(f'[project]\nname = "longbatch"\nversion = "{version}"\n')
    (folder / "CHANGELOG.md").write_text(CHANGELOG)
    return folder


def test_the_section_of_the_version_is_printed_and_no_other(tmp_path: Path) -> None:
    assert notes_of("v1.2.0", root=repository(tmp_path, "1.2.0")) == "### New\n\n- One.\n"


@pytest.mark.parametrize(
    ("tag", "version", "said"),
    [
        ("1.2.0", "1.2.0", "is no version"),
        ("v1.2", "1.2.0", "is no version"),
        ("v1.2.0; rm -rf /", "1.2.0", "is no version"),
        ("v1.2.0", "1.1.0", r"pyproject.toml has version 1\.1\.0, the tag 1\.2\.0"),
        ("v1.2.0rc1", "1.2.0rc1", "has no section `## 1.2.0rc1` with notes"),
        ("v1.3.0", "1.3.0", "has no section `## 1.3.0` with notes"),
    ],
)
def test_a_tag_that_names_no_release_is_refused(tmp_path: Path, tag: str, version: str, said: str) -> None:
    with pytest.raises(ReleaseError, match=said):
        notes_of(tag, root=repository(tmp_path, version))


def test_the_repository_s_own_version_has_notes() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert "### New" in notes_of(f"v{project['version']}")
