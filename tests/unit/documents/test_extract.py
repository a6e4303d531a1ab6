"""The text of every kind of document, as the confined process gives it."""

# ruff: noqa: RUF001  # texts in many alphabets

import sys
from bisect import bisect_right
from collections.abc import Callable, Iterator
from itertools import pairwise

import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from document_support import (
    make_docx,
    make_eml,
    make_epub,
    make_pdf,
    make_pptx,
    make_xlsx,
    prose_page,
)
from jobs.settings import DocumentSettings
from jobs.states.document import DocumentErrorCode, DocumentKind
from worker.documents.sandbox import ExtractedMessage, ExtractionFailure, InterruptedExtractionError, Sandbox
from worker.extract.__main__ import read
from worker.extract.draft import ExtractionError, ExtractionLimits, TextBuilder
from worker.extract.language import detect

LIMITS = ExtractionLimits(memory_bytes=2**30, seconds=10, max_pages=100, max_characters=10_000)


def run(data: bytes, kind: str, **changed: float) -> tuple[ExtractedMessage, str] | ExtractionFailure:
    sandbox = Sandbox(DocumentSettings(**changed))
    outcome = sandbox.run([data], kind=DocumentKind(kind), num_bytes=len(data))
    if isinstance(outcome, ExtractionFailure):
        return outcome
    return outcome.found, zstandard.ZstdDecompressor().decompress(outcome.body).decode()


def extract(data: bytes, kind: str) -> tuple[ExtractedMessage, str]:
    outcome = run(data, kind)
    assert not isinstance(outcome, ExtractionFailure), outcome
    found, text = outcome
    assert found.num_chars == len(text)
    return found, text


def refusal(data: bytes, kind: str, **changed: float) -> ExtractionFailure:
    outcome = run(data, kind, **changed)
    assert isinstance(outcome, ExtractionFailure)
    return outcome


@pytest.mark.parametrize(
    "text", ["a\r\nb\rc\n", "\ufeffwith a mark", "Grüße \U0001f30a\n\n\n", "\x1b[1m\x0c bell \x07"]
)
def test_a_text_is_exactly_the_file(text: str) -> None:
    assert extract(text.encode(), "txt")[1] == text
    assert extract(text.encode(), "md")[1] == text


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-be", "utf-32"])
def test_a_byte_order_mark_tells_the_encoding(encoding: str) -> None:
    raw = "Grüße und Küsse".encode(encoding)
    found, text = extract(raw if encoding != "utf-16-be" else b"\xfe\xff" + raw, "txt")
    assert text.removeprefix("\ufeff") == "Grüße und Küsse"
    assert found.warnings == []


@pytest.mark.parametrize(
    ("encoding", "text"),
    [
        ("cp1252", "Die Straße ist für Fußgänger gesperrt – das müssen wir überprüfen, und sie ist zu."),
        (
            "iso8859_2",
            "Zażółć gęślą jaźń, proszę państwa. To jest zwykły tekst po polsku, nie ma się czego bać.",
        ),
        ("cp1251", "Привет, как дела? Это обычный русский текст для проверки."),
        ("shift_jis", "これは日本語のテキストです。文字コードを確認します。"),
    ],
)
def test_another_encoding_is_guessed_and_reported(encoding: str, text: str) -> None:
    found, read = extract(text.encode(encoding), "txt")
    assert read == text
    assert [warning.code for warning in found.warnings] == ["encoding_guessed"]


def test_markup_becomes_paragraphs_headings_lists_and_rows() -> None:
    source = (
        "<!doctype html><html><head><title>A &amp; B</title><style>x{}</style></head><body><h1>Head</h1>"
        "<p>One\n <b>two</b></p><ul><li>a<li>b</ul><table><tr><th>1<td>2</tr></table><script>bad()</script>"
        "<pre>x\n\n  y</pre><p>end<br>of it</body></html>"
    )
    found, text = extract(source.encode(), "html")
    assert text == "# Head\n\nOne two\n\n- a\n- b\n\n1 | 2\n\nx\n\n  y\n\nend\nof it"
    assert found.title == "A & B"


def test_a_page_s_declared_encoding_is_followed() -> None:
    source = '<html><head><meta charset="windows-1251"></head><body>Да</body></html>'
    found, text = extract(source.encode("cp1251"), "html")
    assert (text, found.warnings) == ("Да", [])


def test_every_page_of_a_pdf_stands_at_its_offset() -> None:
    pages = [prose_page(1), "", prose_page(3), "short"]
    found, text = extract(make_pdf(pages, title="The (title)"), "pdf")
    assert found.pages is not None
    assert found.pages == sorted(found.pages)
    bounds = [*found.pages, len(text)]
    shown = [text[start:end].strip() for start, end in pairwise(bounds)]
    assert shown == pages
    assert [(warning.code, warning.pages) for warning in found.warnings] == [("pages_without_text", [2])]
    assert (found.title, found.language) == ("The (title)", "en")
    assert bisect_right(found.pages, text.index("word3x0")) == 3
    assert bisect_right(found.pages, len(text) - 1) == 4


def test_a_word_that_a_line_of_a_pdf_breaks_is_whole_again() -> None:
    assert extract(make_pdf(["A long exam-\nple, 1990-\n2000."]), "pdf")[1] == "A long example, 1990-\n2000."


def test_a_word_document_has_headings_paragraphs_and_rows() -> None:
    found, text = extract(make_docx(), "docx")
    assert text == (
        "# First part\n\nThe first paragraph is about the weather.\n\ncell 0 | cell 1\ncell 2 | cell 3\n\n"
        "## Second part\n\nThe last paragraph is about the sea.\n\n"
    )
    assert (found.title, found.pages) == ("A report", None)


def test_slides_sheets_and_chapters_are_pages() -> None:
    made: dict[str, Callable[[], bytes]] = {
        "pptx": lambda: make_pptx([("One", "first"), ("Two", "second")]),
        "xlsx": lambda: make_xlsx({"One": [["first", 1, None, 2.5], [None]], "Two": [["second"]]}),
        "epub": lambda: make_epub(["<h1>One</h1><p>first</p>", "<h1>Two</h1><p>second</p>"]),
    }
    for kind, make in made.items():
        found, text = extract(make(), kind)
        assert found.pages is not None, kind
        first, second = text[: found.pages[1]].strip(), text[found.pages[1] :].strip()
        assert first.startswith("# One\n\nfirst"), kind
        assert second == "# Two\n\nsecond", kind
    assert "first\t1\t\t2.5" in extract(made["xlsx"](), "xlsx")[1]


def test_a_mail_has_its_headers_its_body_and_the_names_of_what_is_attached() -> None:
    found, text = extract(make_eml(text="The sea is calm.\n", html="<p>not this</p>"), "eml")
    assert text.startswith(
        "From: Ann <ann@example.org>\nTo: bob@example.org\nSubject: Grüße from the sea\n\nThe sea"
    )
    assert text.endswith("\nAttachments: map.bin\n")
    assert "not this" not in text
    assert found.title == "Grüße from the sea"
    assert "The sea is calm" in extract(make_eml(html="<p>The sea is calm.</p>"), "eml")[1]


@pytest.mark.parametrize(
    ("language", "text"),
    [
        ("en", "It was the best of times and it was the worst of times for those who were there with us."),
        (
            "de",
            "Es war die beste Zeit, und es war auch die schlechteste Zeit für alle, die nicht dabei waren.",
        ),
        ("fr", "C'était le meilleur des temps et le pire des temps pour ceux qui étaient dans la ville."),
        (
            "es",
            "Era el mejor de los tiempos y era el peor de los tiempos para los que no estaban en la ciudad.",
        ),
        ("ja", "それは最良の時代であり、それは最悪の時代でもあった。"),
        ("zh", "这是最好的时代，这是最坏的时代，这是智慧的年代，这是愚蠢的年代。"),
        ("ru", "Это было лучшее из всех времён, и это было худшее из всех времён для них."),
        ("ar", "كان ذلك في أفضل الأوقات وكان ذلك في أسوأ الأوقات على كل من كان هناك"),
        (None, "x = 1; y = 2; print(x + y)"),
        (None, "12345 67890"),
    ],
)
def test_the_language_is_that_of_most_of_the_text(language: str | None, text: str) -> None:
    assert detect(text) == language


def test_a_document_that_takes_too_long_is_ended() -> None:
    found = refusal(b"<div>a" * 3_000_000, "html", extraction_seconds=0.4)
    assert found.code is DocumentErrorCode.TIMEOUT


def test_a_document_that_needs_too_much_memory_is_ended() -> None:
    found = refusal(b"a" * 150_000_000, "txt", extraction_memory_mb=256, max_characters=200_000_000)
    assert found.code is DocumentErrorCode.OUT_OF_MEMORY


def test_a_kind_of_the_extra_says_so_where_that_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "lxml", None)
    with pytest.raises(ExtractionError, match="longbatch") as refused:
        read("docx", make_docx(), LIMITS)
    assert refused.value.code == "missing_extra"


def test_an_interrupted_extraction_has_no_outcome() -> None:
    sandbox = Sandbox(DocumentSettings())
    sandbox.interrupt()
    with pytest.raises(InterruptedExtractionError):
        sandbox.run([b"a"], kind=DocumentKind.TXT, num_bytes=1)


def test_an_extraction_that_is_interrupted_half_way_has_none_either() -> None:
    sandbox = Sandbox(DocumentSettings())

    def chunks() -> Iterator[bytes]:
        yield b"a"
        sandbox.interrupt()
        yield b"b"

    with pytest.raises(InterruptedExtractionError):
        sandbox.run(chunks(), kind=DocumentKind.TXT, num_bytes=1_000_000)


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=40), max_size=12))
@settings(suppress_health_check=list(HealthCheck))
def test_page_offsets_never_fall_and_every_page_stands_at_its_own(pages: list[str]) -> None:
    draft = TextBuilder(LIMITS)
    draft.announce_pages(len(pages))
    kept = []
    for page in pages:
        draft.begin_page()
        before = len(draft.text())
        draft.write(page)
        kept.append(draft.text()[before:])
    text = draft.text()
    assert draft.pages is not None
    assert draft.pages == sorted(draft.pages)
    for number, (start, page) in enumerate(zip(draft.pages, kept, strict=True), 1):
        assert text[start : start + len(page)] == page
        if page:
            assert bisect_right(draft.pages, start) == number
            assert bisect_right(draft.pages, start + len(page) - 1) == number
