"""The page about summaries does what it says, block by block."""

import json
import re
from pathlib import Path

import pytest

from bucket_support import Bucket
from documented.shell import Bash
from scripts.docs.build import ROOT
from support import eventually
from system_support import text_of

pytestmark = pytest.mark.timeout(300)

PAGE = (ROOT / "docs" / "summaries.md").read_text()
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The files that the page speaks of."""
    (tmp_path / "handbook").mkdir()
    (tmp_path / "inbox").mkdir()
    texts = {"report.txt": 6000, "notes.md": 900, "handbook/travel.md": 9000, "handbook/old.html": 2000}
    for number, (name, size) in enumerate({**texts, "inbox/letter.txt": 1200}.items()):
        (tmp_path / name).write_text(text_of(size, start=10_000 * number))
    return tmp_path


def test_the_page_runs_as_it_stands(bash: Bash, bucket: Bucket, folder: Path) -> None:
    shell = [text for kind, text in BLOCKS if kind == "sh"]
    (setting, summarize, summarize_bucket, estimate, watch, send, ask) = shell
    assert "LONGBATCH_API_URL" in setting
    printed = bash(summarize)
    assert printed.startswith("# report.txt\n")
    assert {str(path.relative_to(folder / "summaries")) for path in (folder / "summaries").rglob("*.md")} == {
        "handbook/old.html.md",
        "handbook/travel.md.md",
        "notes.md.md",
    }
    (sample,) = (json.loads(text) for kind, text in BLOCKS if kind == "json")
    found = json.loads((folder / "summaries.json").read_text())
    assert [list(each) for each in found] == [list(sample[0])] * 2
    assert list(found[0]["chunks"][0]) == list(sample[0]["chunks"][0])
    assert list(found[0]["usage"]) == list(sample[0]["usage"])
    assert [each["path"] for each in found] == ["handbook/old.html", "handbook/travel.md"]
    bucket.objects["reports/travel.txt"] = text_of(900, start=90_000).encode()
    bash(summarize_bucket)
    assert set(bucket.objects) == {"reports/travel.txt", "summaries/travel.txt.md"}
    assert "handbook/travel.md" in bash(estimate)
    bash(watch)
    assert (folder / "summaries" / "letter.txt.md").exists()
    document_id = json.loads(bash(send))["id"]
    function = send.splitlines()[0]
    started, waited = ask.split("\nlb ")
    summary_id = json.loads(bash(f"{function}\n{started.replace('doc_…', document_id)}"))["data"][0]["id"]
    look = f"{function}\nlb {waited.replace('sum_…', summary_id)}"
    assert eventually(lambda: json.loads(bash(look))["state"] == "completed")
