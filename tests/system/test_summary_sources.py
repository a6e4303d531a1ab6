"""Files of every kind, summarized by the real stack: each chunk names the pages where its text stands."""

import io
import re
from typing import Any

import docx
import pytest
from typer.testing import CliRunner, Result

from bucket_support import serving_bucket
from cli.main import application
from cli.stack.stack import Stack
from cli.summaries import buckets
from document_support import make_epub, make_pdf, prose_page
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


def test_a_bucket_is_summarized_into_a_bucket_and_read_once(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    def summarize() -> Result:
        return CliRunner().invoke(
            application(), ["summarize", "s3://bucket/in", "--output", "s3://bucket/in/out", "--length", "60"]
        )

    monkeypatch.setenv("LONGBATCH_API_URL", stack.urls.api_url or "")
    monkeypatch.setenv("LONGBATCH_API_KEY", stack.urls.api_key or "")
    buckets.connect.cache_clear()  # of another test's server
    with serving_bucket() as bucket:
        for name, value in bucket.environment.items():
            monkeypatch.setenv(name, value)
        sources = {
            f"in/{name}": prose_page(number, num_lines=20).encode() for number, name in enumerate(NAMES)
        }
        bucket.objects |= {**sources, "in/photo.jpg": b"jpg", "in/.hidden.txt": b"x", "other/x.txt": b"x"}
        done = summarize()
        assert done.exit_code == 0, done.output
        assert "1 .jpg" in done.stderr
        assert sorted(bucket.gets) == sorted(sources), "each document is read once"
        results = {key for key in bucket.objects if key.startswith("in/out/")}
        assert results == {f"in/out/{name}.md" for name in NAMES}
        bucket.gets.clear()
        bucket.objects["in/a b/é&.txt"] = b"It rains on the harbour now."
        again = summarize()
        assert again.exit_code == 0, again.output
        assert bucket.gets == ["in/a b/é&.txt"], "only what has changed is read again"
