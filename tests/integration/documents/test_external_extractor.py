"""External extractors by their contracts, on stand-ins: what they are sent, and what is taken from them."""

import json
import re
import socket
import threading
from collections.abc import Callable
from email import message_from_bytes
from pathlib import Path
from typing import get_args

import pytest
import zstandard
from pydantic import ValidationError

from hostile.servers import Conduct, Server, answering, forever, half_closing, resetting, serving, silent
from jobs.settings import DocumentSettings
from jobs.settings.work import ExtractorFormat
from jobs.states.document import DocumentKind
from support import PATIENCE
from worker.documents.remote import ExternalExchange, ExternalExtractor
from worker.documents.sandbox import ExtractedMessage, ExtractionFailure, InterruptedExtractionError, Sandbox

PDF = b"%PDF-1.4 made up"
KEY = "sesame"
OCTETS = bytes(range(256))


def http(body: bytes, *, status: str = "200 OK", headers: bytes = b"") -> Conduct:
    head = f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n".encode()
    return answering(head, headers, b"\r\n", body)


def settings(server: Server | str, **fields: object) -> DocumentSettings:
    url = server if isinstance(server, str) else f"http://127.0.0.1:{server.port}"
    return DocumentSettings(extractor_url=url, extractor_seconds=120).model_copy(update=fields)


def exchange(given: DocumentSettings) -> ExternalExchange:
    extractor = ExternalExtractor.of_settings(given)
    assert extractor is not None
    return ExternalExchange(extractor)


def extracted(
    server: Server | str, content: bytes = PDF, **fields: str | float
) -> tuple[ExtractedMessage, str] | ExtractionFailure:
    """What becomes of a PDF."""
    given = settings(server, **fields)
    reply = exchange(given).run([content[:5], content[5:]], kind=DocumentKind.PDF)
    if isinstance(reply, ExtractionFailure):
        return reply
    outcome = Sandbox(given).run([reply.content], kind=reply.contract, num_bytes=len(reply.content))
    if isinstance(outcome, ExtractionFailure):
        return outcome
    return outcome.found, zstandard.ZstdDecompressor().decompress(outcome.body).decode()


def pages_of(found: tuple[ExtractedMessage, str] | ExtractionFailure) -> list[str] | None:
    """The text of each page."""
    assert not isinstance(found, ExtractionFailure), found
    described, text = found
    if described.pages is None:
        return None
    ends = [*described.pages[1:], len(text)]
    return [text[start:end].strip() for start, end in zip(described.pages, ends, strict=True)]


def failure(found: tuple[ExtractedMessage, str] | ExtractionFailure) -> tuple[str, str]:
    assert isinstance(found, ExtractionFailure), found
    return found.code.value, found.message


def docling(markdown: str, *, pages: tuple[object, ...] = (), **fields: object) -> Conduct:
    """Answers as docling-serve does; `|` ends a page, `pages` are those with text."""

    def conduct(connected: socket.socket) -> None:
        items = [{"prov": [{"page_no": page}], "content_layer": "body"} for page in pages]
        items.append({"prov": [{"page_no": 99}], "content_layer": "furniture"})
        content = {"texts": items, "tables": [{"prov": []}], "pictures": [{}]}
        document = {"md_content": markdown.replace("|", MARKS[-1]), "json_content": content}
        answer = {"document": document, "status": "success", "errors": [], **fields}
        http(json.dumps(answer).encode())(connected)

    return conduct


# The mark between pages that the request on this connection asked for.
MARKS = [""]


def marked(conduct: Conduct, server: list[Server]) -> Conduct:
    def answer(connected: socket.socket) -> None:
        (mark,) = re.findall(rb"<!-- page [0-9a-f]{32} -->", server[0].requests[-1])
        MARKS.append(mark.decode())
        conduct(connected)

    return answer


def by_docling(conduct: Conduct, **fields: int) -> tuple[ExtractedMessage, str] | ExtractionFailure:
    started: list[Server] = []
    with serving(marked(conduct, started)) as server:
        started.append(server)
        return extracted(server, PDF, **fields)


def by_open_webui(answer: object) -> tuple[ExtractedMessage, str] | ExtractionFailure:
    with serving(http(json.dumps(answer).encode())) as server:
        return extracted(server, extractor_kind="open-webui")


def test_docling_gets_the_document_as_a_form_with_its_key(tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text(f"{KEY}\n")
    started: list[Server] = []
    with serving(marked(docling("Hello"), started)) as server:
        started.append(server)
        extracted(f"http://127.0.0.1:{server.port}/base/", OCTETS, extractor_key_file=str(key))
        (request,) = server.requests
    head, _, body = request.partition(b"\r\n\r\n")
    line, _, headers = head.partition(b"\r\n")
    assert line == b"POST /base/v1/convert/file HTTP/1.1"
    assert b"\r\nX-Api-Key: sesame" in head
    form = message_from_bytes(headers + b"\r\n\r\n" + body)
    parts = [each for each in form.get_payload() if not isinstance(each, str)]
    given = [(each.get_param("name", header="content-disposition"), each) for each in parts]
    values = [(name, each.get_payload()) for name, each in given if name != "files"]
    assert {("to_formats", "md"), ("to_formats", "json"), ("target_type", "inbody")} <= set(values)
    assert ("document_timeout", "120") in values
    (file,) = [each for name, each in given if name == "files"]
    assert (file.get_filename(), file.get_content_type()) == ("document.pdf", "application/pdf")
    assert OCTETS in body


def test_the_pages_of_docling_are_those_of_the_document() -> None:
    found = by_docling(docling("# Title\n\nfirst|second", pages=(1, 2, 1)))
    assert pages_of(found) == ["# Title\n\nfirst", "second"]
    assert not isinstance(found, ExtractionFailure)
    assert found[0].title == "Title"
    skipping = by_docling(docling("first|fourth", pages=(1, 4)))
    assert pages_of(skipping) == ["first", "", "", "fourth"], "pages without text count"


@pytest.mark.parametrize("pages", [(), (1,), (1, 2, 3), (1, "2"), (0, 1), (1, True), (1, 2.5)])
def test_pages_that_docling_does_not_tell_for_certain_are_none(pages: tuple[object, ...]) -> None:
    found = by_docling(docling("first|second", pages=pages))
    assert pages_of(found) is None
    assert not isinstance(found, ExtractionFailure)
    assert found[1] == "first\n\nsecond"


def test_a_document_that_docling_read_in_part_says_so() -> None:
    found = by_docling(docling("some", status="partial_success"))
    assert not isinstance(found, ExtractionFailure)
    assert [each.code for each in found[0].warnings] == ["extracted_in_part"]


@pytest.mark.parametrize("status", ["failure", "skipped"])
def test_a_document_that_docling_cannot_read_fails(status: str) -> None:
    assert failure(by_docling(docling("", status=status)))[0] == "extractor_refused"


def test_open_webui_gets_the_bytes_with_its_key(tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text(KEY)
    with serving(http(b'{"page_content": "Hello", "metadata": {}}')) as server:
        found = extracted(server, OCTETS, extractor_kind="open-webui", extractor_key_file=str(key))
        (request,) = server.requests
    head, _, body = request.partition(b"\r\n\r\n")
    assert head.startswith(b"PUT /process HTTP/1.1\r\n")
    for header in (b"Authorization: Bearer sesame", b"Content-Type: application/pdf"):
        assert b"\r\n" + header in head
    assert (body, pages_of(found)) == (OCTETS, None)


@pytest.mark.parametrize("first", [0, 1])
def test_a_list_for_open_webui_whose_parts_are_numbered_is_pages(first: int) -> None:
    texts = ["one", "", "three"]
    answer = [
        {"page_content": text, "metadata": {"page": number}} for number, text in enumerate(texts, start=first)
    ]
    assert pages_of(by_open_webui(answer)) == texts


def test_any_other_list_for_open_webui_has_no_pages() -> None:
    for numbers in ([1, 3], [2, 3], [1, None], ["1", "2"]):
        answer = [{"page_content": "text", "metadata": {"page": number}} for number in numbers]
        found = by_open_webui([*answer, {"page_content": "end"}])
        assert pages_of(found) is None
        assert not isinstance(found, ExtractionFailure)
        assert found[1] == "text\n\ntext\n\nend"


@pytest.mark.parametrize(
    "answer",
    [
        *(
            None,
            "text",
            7,
            [],
            {},
            [None],
            [[]],
            {"page_content": None},
            {"page_content": 7},
            [{"metadata": 7}],
        ),
        {"document": {"md_content": "of another contract"}, "status": "success"},
    ],
)
def test_an_answer_that_is_not_the_contract_is_named(answer: object) -> None:
    assert failure(by_open_webui(answer))[0] == ("document_empty" if answer == [] else "extractor_invalid")


@pytest.mark.parametrize(
    "body",
    [
        *(b"", b"<html>502</html>", b"[" * 100_000, b"\xff\xfe", b"null", b"[]", b'{"status": "success"}'),
        *(b'{"status": "success", "document": []}', b'{"status": "success", "document": {"md_content": 7}}'),
        b'{"status": "success", "document": {"md_content": "x", "json_content": {"texts": [7]}}}',
        b'{"status": "success", "document": {"md_content": "x", "json_content": {"texts": 7}}}',
        b'{"status": "success", "document": {"md_content": "", "json_content": {"texts": [{"prov": [7]}]}}}',
    ],
)
def test_garbage_from_docling_is_named(body: bytes) -> None:
    assert failure(by_docling(http(body)))[0] == "extractor_invalid"


def test_a_text_or_pages_beyond_the_limits_are_refused() -> None:
    assert failure(by_docling(docling("x" * 101), max_characters=100))[0] == "document_too_large"
    far = by_docling(docling("x|y", pages=(1, 10**12)))
    assert failure(far)[0] == "document_too_many_pages"


@pytest.mark.parametrize(
    ("conduct", "code", "words"),
    [
        (http(b"", status="503 Busy"), "extractor_unavailable", "HTTP 503"),
        (http(b"", status="429 Later"), "extractor_unavailable", "HTTP 429"),
        (http(b"", status="404 Nothing"), "extractor_unavailable", "HTTP 404"),
        (http(b"", status="401 Who"), "extractor_unavailable", "refuses its key"),
        (http(b"", status="422 No"), "extractor_refused", "HTTP 422"),
        (http(b"", status="413 Large"), "extractor_refused", "HTTP 413"),
        (resetting, "extractor_unavailable", "broke the connection"),
        (half_closing, "extractor_unavailable", "broke the connection"),
        (answering(b"SSH-2.0-OpenSSH\r\n"), "extractor_unavailable", "broke the connection"),
        (
            answering(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{"),
            "extractor_unavailable",
            "broke the connection",
        ),
        (forever(b"x" * 65536, first=b"HTTP/1.1 200 OK\r\n\r\n"), "document_too_large", "larger than 1 MiB"),
    ],
)
def test_a_server_that_fails_is_one_clear_error(conduct: Conduct, code: str, words: str) -> None:
    with serving(conduct) as server:
        found = failure(extracted(server, extractor_reply_mb=1))
    assert found[0] == code
    assert words in found[1]
    assert "127.0.0.1" not in found[1], "callers learn no address"


@pytest.mark.parametrize(
    "conduct",
    [
        silent,
        forever(b"x", first=b"HTTP/1.1 200 OK\r\n\r\n", pause=0.01),
        forever(b"X: x\r\n", first=b"HTTP/1.1 200 OK\r\n", pause=0.05),
    ],
    ids=["silent", "dripping", "dripping-headers"],
)
def test_a_server_that_hangs_is_left_in_time(conduct: Conduct) -> None:
    with serving(conduct) as server:
        found = failure(extracted(server, extractor_seconds=0.5))
    assert found == ("extractor_unavailable", "The external extractor did not answer within 0.5 seconds.")


def test_a_server_that_does_not_listen_is_unavailable() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    assert failure(extracted(f"http://127.0.0.1:{port}"))[0] == "extractor_unavailable"


def test_no_redirect_is_followed() -> None:
    with serving(silent) as other:
        headers = f"Location: http://127.0.0.1:{other.port}/\r\n".encode()
        for status in ("301 There", "302 There", "307 There", "308 There"):
            with serving(http(b"", status=status, headers=headers)) as server:
                code, message = failure(extracted(server))
            assert (code, "redirects" in message) == ("extractor_unavailable", True)
    assert other.num_connections == 0


def test_a_packed_answer_is_not_unpacked() -> None:
    bomb = zstandard.ZstdCompressor().compress(bytes(10_000_000))
    for encoding in ("gzip", "zstd", "br"):
        with serving(http(bomb, headers=f"Content-Encoding: {encoding}\r\n".encode())) as server:
            assert failure(extracted(server, extractor_kind="open-webui"))[0] == "extractor_invalid"
        assert b"Accept-Encoding: identity" in server.requests[0]


def interrupted(given: DocumentSettings, at: Callable[[ExternalExchange], None]) -> None:
    talk = exchange(given)
    at(talk)
    with pytest.raises(InterruptedExtractionError):
        talk.run([PDF], kind=DocumentKind.PDF)


def test_an_exchange_is_interrupted_at_once() -> None:
    connected = threading.Event()

    def waiting(other: socket.socket) -> None:
        connected.set()
        other.recv(1)

    def interrupt_soon(talk: ExternalExchange) -> None:
        def interrupt() -> None:
            connected.wait(PATIENCE)
            talk.interrupt()

        threading.Thread(target=interrupt, daemon=True).start()

    with serving(waiting) as server:
        interrupted(settings(server, extractor_seconds=1000), interrupt_soon)
        interrupted(settings(server, extractor_seconds=1000), ExternalExchange.interrupt)


def test_a_key_that_cannot_be_read_stops_the_start(tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.write_text("\n")
    for file in (empty, tmp_path / "missing"):
        with pytest.raises(ValueError, match="extractor_key_file"):
            ExternalExtractor.of_settings(settings("http://127.0.0.1:1", extractor_key_file=str(file)))
    assert ExternalExtractor.of_settings(DocumentSettings()) is None


@pytest.mark.parametrize(
    "url", ["ftp://host", "host:5001", "http://", "http://user:key@host", "http://host?x"]
)
def test_a_wrong_address_is_refused(url: str) -> None:
    with pytest.raises(ValidationError, match="extractor_url"):
        DocumentSettings(extractor_url=url)


def test_every_format_is_a_kind_of_document() -> None:
    assert set(get_args(ExtractorFormat)) == {kind.value for kind in DocumentKind} - {"txt", "md"}
