"""Every relative link of every Markdown file leads to a file, and its anchor to a heading there."""

import subprocess
from pathlib import Path

import pytest

from scripts.docs.build import ROOT
from scripts.docs.links import anchors_of, links_of, slug


def markdown_files() -> list[Path]:
    """Those of the repository, also what is not committed yet."""
    command = ["git", "-C", str(ROOT), "ls-files", "--cached", "--others", "--exclude-standard", "*.md"]
    listed = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    return [ROOT / name for name in listed if (ROOT / name).is_file()]


def broken(page: Path) -> list[str]:
    """The links of a page that lead nowhere."""
    found = []
    text = page.read_text(encoding="utf-8")
    for link in links_of(text):
        target = (page.parent / link.path).resolve() if link.path else page
        if not target.exists():
            found.append(f"{link.path}: there is no such file")
        elif link.anchor is not None and link.anchor not in anchors_of(target.read_text(encoding="utf-8")):
            found.append(f"{link.path}#{link.anchor}: there is no such heading")
    return found


def test_every_relative_link_leads_somewhere() -> None:
    files = markdown_files()
    assert len(files) > 40
    assert {str(each.relative_to(ROOT)): broken(each) for each in files if broken(each)} == {}


def test_a_link_that_leads_nowhere_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    (tmp_path / "other.md").write_text("# One\n\n```\n# no heading\n```\n\n## Two, `three`\n\n## Two three\n")
    page.write_text(
        "# Page\n[a](other.md#two-three) [b](other.md#two-three-1) [c](https://example.org/x#y) `[d](x.md)`\n"
        "[e](other.md#no-heading) [f](gone.md) [g](#page)\n```\n[h](x.md)\n```\n![i](x.png)\n[j](#gone)\n"
    )
    assert [each.partition(":")[0] for each in broken(page)] == [
        "other.md#no-heading",
        "gone.md",
        "x.png",
        "#gone",
    ]


@pytest.mark.parametrize(
    ("heading", "anchor"),
    [
        ("Pause, drain, resume", "pause-drain-resume"),
        ("A / B", "a--b"),
        ("vllm run-batch_2", "vllm-run-batch_2"),
    ],
)
def test_anchors_are_named_as_github_names_them(heading: str, anchor: str) -> None:
    assert slug(heading) == anchor
