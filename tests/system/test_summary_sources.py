"""Files of every kind, summarized by the real stack: each chunk names the pages where its text stands."""

import csv
import io
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import docx
import pytest
from openpyxl import load_workbook
from typer.testing import CliRunner, Result

from bucket_support import Bucket, serving_bucket
from cli.stack.stack import Stack
from document_support import make_epub, make_pdf, prose_page
from longbatch.cli.main import application
from longbatch.documents import buckets
from support import eventually
from system_support import Client

pytestmark = pytest.mark.timeout(300)

NUM_PAGES = 300
# More than the storage lists at once.
NAMES = ("a.txt", "a b/é&.txt", "deep/er/b.md", "deep/er/c.txt", "z.txt")


def pdf() -> bytes:
    return make_pdf([prose_page(number, num_lines=10) for number in range(1, NUM_PAGES + 1)])


def docx_file() -> bytes:
    document = docx.Document()
    for number in range(1, 61):
        document.add_heading(f"Part {number}", 1)
        document.add_paragraph(prose_page(number, num_lines=20))
    made = io.BytesIO()
    document.save(made)
    return made.getvalue()


def html() -> bytes:
    parts = [f"<h2>Part {number}</h2><p>{prose_page(number, num_lines=20)}</p>" for number in range(1, 61)]
    return f"<!doctype html><html><body>{''.join(parts)}</body></html>".encode()


def epub() -> bytes:
    return make_epub(
        [f"<h1>Chapter {number}</h1><p>{prose_page(number, num_lines=40)}</p>" for number in range(1, 41)]
    )


def summarized(client: Client, name: str, content: bytes) -> tuple[dict[str, Any], dict[str, Any], str]:
    """The document, its summary with all chunks, and its text."""
    sent = client.http.post("/v1/documents", params={"filename": name}, content=content)
    assert sent.status_code == 202, sent.text
    path = f"/v1/documents/{sent.json()['id']}"
    eventually(lambda: client.http.get(path).json()["state"] == "ready")
    asked = {"documents": [sent.json()["id"]], "chunk_tokens": 8000, "length": 120}
    made = client.http.post("/v1/summaries", json=asked).json()["data"][0]

    def ended() -> dict[str, Any] | None:
        seen: dict[str, Any] = client.http.get(f"/v1/summaries/{made['id']}", params={"wait": 5}).json()
        return seen if seen["state"] not in {"preparing", "running"} else None

    found = eventually(ended, timeout=120)
    assert found is not None
    return client.http.get(path).json(), found, client.http.get(f"{path}/text").text


@pytest.mark.parametrize(
    ("name", "content", "num_pages"),
    [
        ("book.pdf", pdf(), NUM_PAGES),
        ("report.docx", docx_file(), 0),
        ("site.html", html(), 0),
        ("novel.epub", epub(), 40),
    ],
    ids=["pdf", "docx", "html", "epub"],
)
def test_every_character_is_in_one_chunk_and_every_chunk_names_the_pages_of_its_text(
    client: Client, name: str, content: bytes, num_pages: int
) -> None:
    document, summary, text = summarized(client, name, content)
    assert (summary["state"], summary["gaps"]) == ("completed", [])
    assert summary["levels"] >= 2
    assert (document["pages"] or 0) == num_pages
    chunks = summary["chunks"]
    assert len(chunks) >= 4
    assert "".join(text[chunk["start"] : chunk["end"]] for chunk in chunks) == text
    for chunk in chunks:
        inside = text[chunk["start"] : chunk["end"]]
        begun = [int(found) for found in re.findall(r"Page number ([0-9]+)", inside)]
        said = [int(found) for found in re.findall(r"\bword([0-9]+)x[0-9]+\b", inside)]
        if not num_pages:
            assert chunk["pages"] is None
            continue
        first, last = chunk["pages"]
        assert (min(said), max(said)) == (first, last), "of the words that stand only on one page"
        assert set(begun) <= set(range(first, last + 1))
    assert document["characters"] == len(text)


@pytest.fixture
def bucket(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bucket]:
    """A bucket that a command finds in its environment, beside the server's address."""
    monkeypatch.setenv("LONGBATCH_API_URL", stack.urls.api_url or "")
    monkeypatch.setenv("LONGBATCH_API_KEY", stack.urls.api_key or "")
    buckets.connect.cache_clear()  # of another test's server
    with serving_bucket() as found:
        for name, value in found.environment.items():
            monkeypatch.setenv(name, value)
        yield found
    buckets.connect.cache_clear()


def run(*arguments: str) -> Result:
    return CliRunner().invoke(application(), arguments)


def test_a_bucket_is_summarized_into_a_bucket_and_read_once(bucket: Bucket) -> None:
    command = ("summarize", "s3://bucket/in", "--output", "s3://bucket/in/out", "--length", "60")
    sources = {f"in/{name}": prose_page(number, num_lines=20).encode() for number, name in enumerate(NAMES)}
    bucket.objects |= {**sources, "in/photo.jpg": b"jpg", "in/.hidden.txt": b"x", "other/x.txt": b"x"}
    done = run(*command)
    assert done.exit_code == 0, done.output
    assert "1 .jpg" in done.stderr
    assert sorted(bucket.gets) == sorted(sources), "each document is read once"
    results = {key for key in bucket.objects if key.startswith("in/out/")}
    assert results == {f"in/out/{name}.md" for name in NAMES}
    bucket.gets.clear()
    bucket.objects["in/a b/é&.txt"] = b"It rains on the harbour now."
    again = run(*command)
    assert again.exit_code == 0, again.output
    assert bucket.gets == ["in/a b/é&.txt"], "only what has changed is read again"


def test_a_bucket_is_asked_into_a_bucket_and_read_once(bucket: Bucket) -> None:
    command = ("ask", "s3://bucket/in", "-q", "What is the tariff?", "--output", "s3://bucket/in/table.csv")
    sources = {f"in/{name}": f"The tariff is {len(name)} zolts.".encode() for name in NAMES}
    bucket.objects |= sources
    done = run(*command)
    assert done.exit_code == 0, done.output
    assert sorted(bucket.gets) == sorted(sources), "each document is read once"
    table = bucket.objects["in/table.csv"]
    answers = {row["document"]: row["answer"] for row in csv.DictReader(table.decode().splitlines())}
    mark = "[stand-in: extract, no model]"
    assert answers == {f"s3://bucket/{key}": f"{mark} {text.decode()}" for key, text in sources.items()}
    bucket.gets.clear()
    del bucket.objects["in/table.csv"]
    again = run(*command)
    assert again.exit_code == 0, again.output
    assert (bucket.gets, bucket.objects["in/table.csv"]) == ([], table), "a repeated command resumes"
    bucket.objects["in/a b/é&.txt"] = b"The tariff is 7,000 zolts."
    changed = run(*command, "--format", "json")
    assert changed.exit_code == 0, changed.output
    assert bucket.gets == ["in/table.csv", "in/a b/é&.txt"], "only what has changed is read again"
    assert b"7,000 zolts" in bucket.objects["in/table.csv"]


def test_fields_of_a_bucket_are_extracted_into_a_bucket_and_read_once(bucket: Bucket, tmp_path: Path) -> None:
    schema = tmp_path / "schema.json"
    fields = {"tariff": {"type": "number"}, "harbour": {"type": ["string", "null"]}}
    schema.write_text(json.dumps({"type": "object", "properties": fields, "required": ["tariff"]}))
    command = ("extract", "s3://bucket/in", "--schema", str(schema), "--output")
    texts = {f"in/{name}": f"The tariff is {len(name)} zolts." for name in NAMES}
    bucket.objects |= {key: text.encode() for key, text in texts.items()}
    done = run(*command, "s3://bucket/in/table.csv")
    assert done.exit_code == 0, done.output
    assert sorted(bucket.gets) == sorted(texts), "each document is read once"
    table = bucket.objects["in/table.csv"]
    expected = {f"s3://bucket/{key}": (f"{len(key) - 3:.1f}", "", text) for key, text in texts.items()}
    assert {
        row["document"]: (row["tariff"], row["harbour"], row["tariff.quote"])
        for row in csv.DictReader(table.decode().splitlines())
    } == expected
    bucket.gets.clear()
    del bucket.objects["in/table.csv"]
    again = run(*command, "s3://bucket/in/table.csv")
    assert again.exit_code == 0, again.output
    assert (bucket.gets, bucket.objects["in/table.csv"]) == ([], table), "a repeated command resumes"
    del bucket.objects["in/table.csv"]  # a document for other tables
    bucket.objects["in/a b/é&.txt"] = b"The harbour is deep."
    changed = run(*command, "s3://bucket/out/table.xlsx", "--format", "xlsx")
    assert changed.exit_code == 1, "a row is not valid"
    assert 's3://bucket/in/a b/é&.txt: not valid: at its root: "tariff" is a' in changed.stderr
    assert bucket.gets == ["in/a b/é&.txt"], "only what has changed is read again"
    (sheet,) = load_workbook(io.BytesIO(bucket.objects["out/table.xlsx"])).worksheets
    found = {row[0]: row[1:3] for row in sheet.iter_rows(min_row=2, values_only=True)}
    assert found == {
        **{document: (float(tariff), None) for document, (tariff, _, _) in expected.items()},
        "s3://bucket/in/a b/é&.txt": (None, "The harbour is deep."),
    }
