"""One command writes the version of a release into every file that names it."""

import shutil
from pathlib import Path

import pytest

from scripts.release import version
from scripts.release.version import PLACES, ROOT, VersionError


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    for file in PLACES:
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / file, tmp_path / file)
    return tmp_path


def test_all_files_name_one_version() -> None:
    assert version.read().count(".") == 2


def test_a_version_is_written_into_all_of_them(copy: Path) -> None:
    version.write("12.34.56", copy)
    assert version.read(copy) == "12.34.56"
    changed = [
        line
        for file in PLACES
        for line in (copy / file).read_text().splitlines()
        if line not in (ROOT / file).read_text().splitlines()
    ]
    assert [line.strip() for line in changed] == [
        'version = "12.34.56"',
        'server = ["longbatch-server[local]==12.34.56"]',
        'version = "12.34.56"',
        '"longbatch==12.34.56", # its client and command line, and leaf modules of them',
        "version: 12.34.56",
        'appVersion: "12.34.56"',
    ]


def test_files_that_disagree_are_found(copy: Path) -> None:
    file = copy / "client/pyproject.toml"
    file.write_text(file.read_text().replace('version = "', 'version = "9', 1))
    with pytest.raises(VersionError, match="several"):
        version.read(copy)


@pytest.mark.parametrize("given", ["1.2", "v1.2.3", "1.2.3rc1", ""])
def test_anything_but_three_numbers_is_refused(copy: Path, given: str) -> None:
    with pytest.raises(VersionError):
        version.write(given, copy)
