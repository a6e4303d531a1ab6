"""Documents over HTTP, extracted by a real service worker's threads."""

import json
import os
from pathlib import Path

import httpx2
import pytest
from pydantic import TypeAdapter
from sqlalchemy import func, select
from sqlalchemy.orm import Session, sessionmaker
from typer.testing import CliRunner

from api.documents.schemas import DocumentListReply, DocumentWithPagesReply
from api_server import ApiProcess, error_of
from cli.stack.servers.valkey import EmbeddedValkey
from document_support import Extractor, make_docx, make_pdf, prose_page
from jobs.models.file import File
from jobs.prompts.tokenizer import Tokenizer
from jobs.settings import DatabaseSettings
from jobs.states.file import FileState
from support import API_KEY


@pytest.fixture
def extractor(sessions: sessionmaker[Session], tokenizer: Tokenizer) -> Extractor:
    """Not started: `run_once` extracts what waits."""
    return Extractor(sessions, tokenizer)


def send(http: httpx2.Client, content: bytes, filename: str, **headers: str) -> httpx2.Response:
    return http.post("/v1/documents", content=content, params={"filename": filename}, headers=headers)


def test_a_document_is_taken_in_extracted_and_read(
    http: httpx2.Client, extractor: Extractor, tokenizer: Tokenizer
) -> None:
    pages = [prose_page(number) for number in range(3)]
    answer = http.post("/v1/documents", files={"file": ("report.pdf", make_pdf(pages, title="Report"))})
    assert answer.status_code == 202, answer.text
    made = answer.json()
    assert answer.headers["location"] == f"/v1/documents/{made['id']}"
    assert (made["state"], made["kind"], made["pages"], made["tokens"]) == ("extracting", "pdf", None, None)
    waits = http.get(f"/v1/documents/{made['id']}/text")
    assert (waits.status_code, error_of(waits)["code"]) == (409, "document_not_ready")
    extractor.run_once()
    seen = http.get(f"/v1/documents/{made['id']}").json()
    TypeAdapter(DocumentWithPagesReply).validate_python(seen)
    text = http.get(f"/v1/documents/{made['id']}/text")
    assert text.headers["content-type"] == "text/plain; charset=utf-8"
    assert (seen["state"], seen["pages"], seen["language"], seen["title"]) == ("ready", 3, "en", "Report")
    assert (seen["characters"], seen["tokens"]) == (len(text.text), tokenizer.count_text(text.text))
    start, end = seen["page_offsets"][1:]
    part = http.get(f"/v1/documents/{made['id']}/text", params={"start": start, "end": end})
    assert part.text.strip() == pages[1]


def test_the_same_bytes_give_the_same_document(http: httpx2.Client, extractor: Extractor) -> None:
    first = send(http, b"The text.", "a.txt")
    again = send(http, b"The text.", "b.txt")
    assert (first.status_code, again.status_code) == (202, 200)
    extractor.run_once()
    later = http.post("/v1/documents", files={"file": ("c.txt", b"The text.")})
    assert later.status_code == 200
    assert later.json()["state"] == "ready"
    assert {each.json()["id"] for each in (first, again, later)} == {first.json()["id"]}
    assert later.json()["filename"] == "a.txt"


def test_an_idempotency_key_gives_the_same_answer_and_no_second_document(http: httpx2.Client) -> None:
    first = send(http, b"one", "a.txt", **{"Idempotency-Key": "k"})
    again = send(http, b"one", "a.txt", **{"Idempotency-Key": "k"})
    assert (again.status_code, again.headers["idempotent-replayed"]) == (202, "true")
    assert again.json()["id"] == first.json()["id"]
    other = send(http, b"two", "a.txt", **{"Idempotency-Key": "k"})
    assert (other.status_code, error_of(other)["code"]) == (409, "idempotency_conflict")


def test_a_document_that_fails_says_why_and_has_no_text(http: httpx2.Client, extractor: Extractor) -> None:
    made = send(http, make_docx()[:-2000], "a.docx").json()
    extractor.run_once()
    seen = http.get(f"/v1/documents/{made['id']}").json()
    assert (seen["state"], seen["error"]["code"]) == ("failed", "document_corrupt")
    refused = http.get(f"/v1/documents/{made['id']}/text")
    assert (refused.status_code, error_of(refused)["code"]) == (409, "conflict")


@pytest.mark.parametrize(
    ("content", "params", "code", "param"),
    [
        (b"", {"filename": "a.txt"}, "document_empty", "file"),
        (b"GIF89a", {"filename": "a.txt"}, "unsupported_document", "file"),
        (b"text", {"filename": "a.pdf"}, "unsupported_document", "file"),
        (b"text", {"kind": "pdf"}, "unsupported_document", "file"),
        (b"%PDF-1.4", {"kind": "txt"}, "unsupported_document", "kind"),
        (b"text", {"kind": "exe"}, "invalid_value", "kind"),
    ],
)
def test_what_is_no_document_is_refused_at_once_and_leaves_nothing(
    http: httpx2.Client,
    sessions: sessionmaker[Session],
    content: bytes,
    params: dict[str, str],
    code: str,
    param: str,
) -> None:
    refused = http.post("/v1/documents", content=content, params=params)
    assert (refused.status_code, error_of(refused)["code"], error_of(refused)["param"]) == (400, code, param)
    assert http.get("/v1/documents").json()["data"] == []
    with sessions() as session:
        assert set(session.scalars(select(File.state))) <= {FileState.DELETED}


def test_a_form_s_other_fields_are_named(http: httpx2.Client) -> None:
    file = {"file": ("a.txt", b"text")}
    for data, code in (({"strange": "1"}, "unknown_field"), ({"kind": "exe"}, "invalid_value")):
        refused = http.post("/v1/documents", files=file, data=data)
        assert (refused.status_code, error_of(refused)["code"]) == (400, code)
    missing = http.post("/v1/documents", files={"other": ("a.txt", b"text")})
    assert (missing.status_code, error_of(missing)["param"]) == (400, "file")
    assert http.post("/v1/documents", files=file, data={"kind": "md"}).json()["kind"] == "md"


def test_lists_go_on_where_they_ended_and_can_be_filtered(http: httpx2.Client, extractor: Extractor) -> None:
    made = [send(http, f"text {number}".encode(), f"{number}.txt").json()["id"] for number in range(5)]
    extractor.run_once()
    made.append(send(http, b"waits", "waits.txt").json()["id"])
    first = http.get("/v1/documents", params={"limit": 4}).json()
    DocumentListReply.model_validate(first)
    rest = http.get("/v1/documents", params={"limit": 4, "after": first["last_id"]}).json()
    assert [each["id"] for each in first["data"] + rest["data"]] == made[::-1]
    assert (first["has_more"], rest["has_more"]) == (True, False)
    assert "longbatch_documents_extracting 1.0" in http.get("/metrics").text
    waiting = http.get("/v1/documents", params={"state": "extracting"}).json()["data"]
    assert [each["id"] for each in waiting] == made[-1:]
    assert http.get("/v1/files").json()["data"] == [], "bytes of documents are no files"


def test_a_deleted_document_is_gone(http: httpx2.Client, extractor: Extractor) -> None:
    path = f"/v1/documents/{send(http, b'text', 'a.txt').json()['id']}"
    extractor.run_once()
    assert http.delete(path).json()["deleted"] is True
    for answer in (http.get(path), http.get(f"{path}/text"), http.delete(path)):
        assert (answer.status_code, error_of(answer)["code"]) == (404, "not_found")


def test_four_gigabytes_of_nothing_are_refused_in_flat_memory(
    database_settings: DatabaseSettings,
    valkey: EmbeddedValkey,
    sessions: sessionmaker[Session],
    tmp_path: Path,
) -> None:
    sparse = tmp_path / "sparse.txt"
    sparse.touch()
    process = ApiProcess(database_settings, valkey.url, LONGBATCH_DOCUMENTS__MAX_BYTES=str(50 * 2**20))
    try:
        with process.client(timeout=120) as client:
            client.post("/v1/documents", content=b"warm", params={"filename": "a.txt"})
            before = peak_bytes(process.process.pid)
            for size in (4 * 2**30, 100 * 2**20):  # far too large by what it says; too large as it arrives
                os.truncate(sparse, size)
                with sparse.open("rb") as file:
                    refused = client.post("/v1/documents", content=file)
                assert (refused.status_code, error_of(refused)["code"]) == (413, "document_too_large")
            assert peak_bytes(process.process.pid) - before < 64 * 2**20
            assert client.get("/health/live").status_code == 200
    finally:
        process.stop()
    with sessions() as session:
        assert session.scalar(select(func.count()).where(File.state != FileState.DELETED)) == 1


def test_the_command_line_adds_shows_reads_lists_and_deletes(
    server: ApiProcess, http: httpx2.Client, extractor: Extractor, tmp_path: Path
) -> None:
    from longbatch.cli.main import application

    runner = CliRunner(env={"LONGBATCH_API_URL": server.url, "LONGBATCH_API_KEY": API_KEY})
    good, bad = tmp_path / "good.txt", tmp_path / "bad.pdf"
    good.write_text("Grüße.\r\nEnd", newline="")
    bad.write_bytes(b"no pdf")
    added = runner.invoke(application(), ["documents", "add", str(good)])
    document_id = added.stdout.strip()
    assert (added.exit_code, document_id[:4]) == (0, "doc_")
    refused = runner.invoke(application(), ["documents", "add", "--json", str(good), str(bad)])
    shown = json.loads(refused.stdout)
    assert refused.exit_code == 1
    assert [each["error"] and each["error"]["code"] for each in shown] == [None, "unsupported_document"]
    extractor.run_once()
    assert json.loads(
        runner.invoke(application(), ["documents", "show", "--wait", "--json", document_id]).stdout
    )["tokens"]
    assert "good.txt" in runner.invoke(application(), ["documents", "show", document_id]).stdout
    assert document_id in runner.invoke(application(), ["documents", "list"]).stdout
    read = runner.invoke(application(), ["documents", "text", document_id])
    assert read.stdout_bytes == good.read_bytes()
    assert runner.invoke(application(), ["documents", "delete", document_id]).exit_code == 0
    assert http.get("/v1/documents").json()["data"] == []


def peak_bytes(pid: int) -> int:
    """The most memory that this process ever had."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024


def test_a_named_encoding_is_followed_and_makes_another_document(
    http: httpx2.Client, extractor: Extractor
) -> None:
    raw = "価格は100円".encode("euc_jp")
    guessed = send(http, raw, "a.txt").json()
    answer = http.post("/v1/documents", content=raw, params={"filename": "a.txt", "encoding": "EUC-JP"})
    named = answer.json()
    form = http.post("/v1/documents", files={"file": ("a.txt", raw)}, data={"encoding": "x-euc-jp"})
    assert named["id"] not in ("", guessed["id"])
    assert form.json()["id"] == named["id"]
    extractor.run_once()
    extractor.run_once()
    assert http.get(f"/v1/documents/{named['id']}/text").text == "価格は100円"
    assert http.get(f"/v1/documents/{named['id']}").json()["warnings"] == []


def test_an_unknown_encoding_is_refused_by_name(http: httpx2.Client) -> None:
    answer = http.post("/v1/documents", content=b"text", params={"filename": "a.txt", "encoding": "klingon"})
    assert answer.status_code == 400
    assert error_of(answer)["param"] == "encoding"
    assert "shift_jis" in error_of(answer)["message"]


def test_a_name_of_another_kind_is_reported(http: httpx2.Client, extractor: Extractor) -> None:
    made = send(http, b"<html><body><p>A table", "export.xls").json()
    extractor.run_once()
    seen = http.get(f"/v1/documents/{made['id']}").json()
    assert (seen["kind"], [each["code"] for each in seen["warnings"]]) == ("html", ["extension_differs"])
