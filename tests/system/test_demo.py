"""The demo as a user starts it, with a folder of every kind of document."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from document_support import make_docx, make_eml, make_epub, make_pdf, make_pptx, make_xlsx, prose_page
from system_support import text_of

pytestmark = pytest.mark.timeout(300)

LONG_CHARS = 560_000  # more than 96,000 tokens


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made: dict[str, bytes] = {
        "deep/note.md": b"# A note\n\n" + text_of(2000).encode(),
        "page.html": b"<!doctype html><title>t</title><p>" + text_of(1500, start=900).encode(),
        "plain.rst": text_of(3000, start=5000).encode(),
        "long.txt": text_of(LONG_CHARS).encode(),
        "three pages.pdf": make_pdf([prose_page(number) for number in range(3)]),
        "a.docx": make_docx(),
        "a.pptx": make_pptx([("Title", "Some words on a slide.")]),
        "a.xlsx": make_xlsx({"Sheet": [["name", "count"], ["apples", 3]]}),
        "a.epub": make_epub(["<p>Once upon a time there was a queue.</p>"]),
        "a.eml": make_eml(text="Dear all, the queue is empty."),
    }
    documents = tmp_path / "documents"
    for name, content in made.items():
        (documents / name).parent.mkdir(parents=True, exist_ok=True)
        (documents / name).write_bytes(content)
    return documents


def test_the_demo_summarizes_a_folder_of_all_kinds(folder: Path) -> None:
    command = [
        sys.executable,
        "-P",
        "-c",
        "from longbatch.cli import main; main()",
        "demo",
        "--docs",
        str(folder),
    ]
    done = subprocess.run(
        [*command, "--time-scale", "30"], capture_output=True, text=True, timeout=280, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    num_files = sum(path.is_file() for path in folder.rglob("*"))
    # The mail has a file attached, which is a document of its own.
    assert f"{num_files + 1} of {num_files + 1} documents summarized" in done.stdout
    for path in folder.rglob("*.*"):
        assert path.name in done.stdout
    assert re.search(r"long.txt is longer than the context: read in \d+ parts by \d+ jobs", done.stdout)


def test_a_folder_without_documents_is_wrong_usage(tmp_path: Path) -> None:
    command = [sys.executable, "-P", "-c", "from longbatch.cli import main; main()"]
    done = subprocess.run(
        [*command, "demo", "--docs", str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "contains no documents" in done.stderr
