"""Workflows are valid, and safe as far as that can be read off them: they have never run."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
RELEASE = ROOT / ".github" / "workflows" / "release.yml"
BIN = Path(sys.executable).parent
USES = re.compile(r"uses: (\S+)(?: # v\d+\.\d+\.\d+)?$", re.MULTILINE)


def problems(workflow: Path) -> str:
    """What actionlint, with shellcheck for the scripts inside, says of the file."""
    tools = [str(BIN / "actionlint"), "-no-color", "-shellcheck", str(BIN / "shellcheck"), "-pyflakes", ""]
    return subprocess.run(
        [*tools, str(workflow)], check=False, capture_output=True, text=True, timeout=60
    ).stdout


def test_every_workflow_is_valid() -> None:
    assert RELEASE in WORKFLOWS
    assert {each.name: problems(each) for each in WORKFLOWS if problems(each)} == {}


@pytest.mark.parametrize(
    ("written", "instead"),
    [
        ("needs: [package, images]", "needs: [package, image]"),
        ("${{ vars.IMAGE_REGISTRY }}", "${{ var.IMAGE_REGISTRY }}"),
        ("packages: write", "packages: all"),
        ("for file in dist/*; do", "for file in dist/*; dp"),
        ("timeout-minutes: 60", "timeout: 60"),
    ],
)
def test_what_breaks_a_workflow_is_found(tmp_path: Path, written: str, instead: str) -> None:
    text = RELEASE.read_text(encoding="utf-8")
    assert written in text
    broken = tmp_path / "release.yml"
    broken.write_text(text.replace(written, instead, 1), encoding="utf-8")
    assert problems(broken)


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda each: each.name)
def test_every_action_is_named_by_its_commit(workflow: Path) -> None:
    used = USES.findall(workflow.read_text(encoding="utf-8"))
    assert used
    assert [each for each in used if not re.fullmatch(r"[\w./-]+@[0-9a-f]{40}", each)] == []


def test_nothing_is_published_before_everything_is_tested() -> None:
    text = RELEASE.read_text(encoding="utf-8")
    jobs = dict(re.findall(r"^  (\w+):\n    needs: \[(.+)\]$", text, re.MULTILINE))
    assert jobs == {
        "package": "test, audit",
        "images": "test, audit",
        "publish": "package, images",
        "announce": "publish",
    }
    assert "make test" in text
    assert "permissions:\n  contents: read\n" in text, "what a job may beyond that, it says itself"
