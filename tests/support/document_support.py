"""Documents of every kind, good and bad, made on the spot."""

import io
import textwrap
import zipfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from email.message import EmailMessage
from functools import partial
from hashlib import sha256
from uuid import UUID

import docx
import openpyxl
import pptx
from pypdf import PdfReader, PdfWriter
from sqlalchemy.orm import Session, sessionmaker

from jobs import documents, files, turns
from jobs.documents import NewDocument, extraction
from jobs.documents.extraction import DocumentClaim
from jobs.files.storage import PartStore, RowStore
from jobs.models import DEFAULT_TENANT
from jobs.models.document import Document
from jobs.models.turn import EXTRACTION
from jobs.prompts.tokenizer import Tokenizer
from jobs.settings import DocumentSettings, LimitSettings
from jobs.states.document import DocumentKind
from support import runner_of
from worker.documents.attachments import AttachmentStore
from worker.documents.extractor import DocumentExtractor

MIB = 2**20
# What bad documents are read with: their bombs are larger than half of it, and quickly made.
SMALL_MEMORY_MB = 320
BOMB_BYTES = 200 * MIB
_XML = '<?xml version="1.0" encoding="UTF-8"?>'
_OFFICE = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
# Nine entities, each ten of the one before: a gigabyte of text in half a kilobyte.
ENTITY_BOMB = (
    _XML
    + "<!DOCTYPE b [<!ENTITY a0 'lol'>"
    + "".join(f"<!ENTITY a{level + 1} '{f'&a{level};' * 10}'>" for level in range(9))
    + "]>"
)


def make_pdf(pages: Sequence[str], *, title: str | None = None) -> bytes:
    """A PDF whose pages have these lines in Helvetica; Latin-1 only."""
    objects: list[bytes] = [b"<< /Type /Catalog /Pages 2 0 R >>", b""]
    objects.append(b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica /Encoding /WinAnsiEncoding >>")
    objects.append(b"<< /Title (%s) >>" % _escaped(title or ""))
    kids = []
    for page in pages:
        lines = b"".join(b"(%s) Tj T*\n" % _escaped(line) for line in page.split("\n"))
        content = zlib.compress(b"BT /F1 9 Tf 11 TL 40 800 Td\n" + lines + b"ET")
        head = b"<< /Length %d /Filter /FlateDecode >>\nstream\n" % len(content)
        objects.append(head + content + b"\nendstream")
        kids.append(b"%d 0 R" % (len(objects) + 1))
        objects.append(
            b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 595 842] /Contents %d 0 R"
            b" /Resources << /Font << /F1 3 0 R >> >> >>" % len(objects)
        )
    objects[1] = b"<< /Type /Pages /Count %d /Kids [%s] >>" % (len(kids), b" ".join(kids))
    out = io.BytesIO(b"%PDF-1.4\n")
    out.seek(0, io.SEEK_END)
    offsets = []
    for number, body in enumerate(objects, 1):
        offsets.append(out.tell())
        out.write(b"%d 0 obj\n%s\nendobj\n" % (number, body))
    start = out.tell()
    out.write(b"xref\n0 %d\n0000000000 65535 f \n" % (len(objects) + 1))
    out.write(b"".join(b"%010d 00000 n \n" % offset for offset in offsets))
    trailer = b"trailer << /Size %d /Root 1 0 R /Info 4 0 R >>\nstartxref\n%d\n%%%%EOF\n"
    out.write(trailer % (len(objects) + 1, start))
    return out.getvalue()


def prose_page(number: int, num_lines: int = 60) -> str:
    """A page full of words of its own."""
    words = " ".join(f"word{number}x{each} of the page" for each in range(num_lines * 5))
    return "\n".join([f"Page number {number}", *textwrap.wrap(words, 95)[: num_lines - 1]])


def make_docx() -> bytes:
    document = docx.Document()
    document.core_properties.title = "A report"
    document.add_heading("First part", 1)
    document.add_paragraph("The first paragraph is about the weather.")
    table = document.add_table(2, 2)
    for number, cell in enumerate(table._cells):
        cell.text = f"cell {number}"
    document.add_heading("Second part", 2)
    document.add_paragraph("The last paragraph is about the sea.")
    return _saved(document.save)


def make_pptx(slides: Sequence[tuple[str, str]]) -> bytes:
    presentation = pptx.Presentation()
    for title, body in slides:
        slide = presentation.slides.add_slide(presentation.slide_layouts[1])
        slide.shapes.title.text = title
        slide.placeholders[1].text = body
    return _saved(presentation.save)


def make_xlsx(sheets: Mapping[str, Sequence[Sequence[object]]]) -> bytes:
    book = openpyxl.Workbook()
    book.remove(book.active)
    for name, rows in sheets.items():
        sheet = book.create_sheet(name)
        for row in rows:
            sheet.append(list(row))
    return _saved(book.save)


def make_epub(chapters: Sequence[str], *, title: str = "A book", **others: bytes) -> bytes:
    """Chapters are the bodies of XHTML pages; others are members by their names, `__` for a slash."""
    names = [f"c{number}.xhtml" for number in range(len(chapters))]
    manifest = "".join(
        f'<item id="i{name}" href="{name}" media-type="application/xhtml+xml"/>' for name in names
    )
    spine = "".join(f'<itemref idref="i{name}"/>' for name in names)
    members = {
        "mimetype": "application/epub+zip",
        "META-INF/container.xml": f'{_XML}<container xmlns="urn:oasis:names:tc:opendocument:xmlns:container">'
        '<rootfiles><rootfile full-path="OPS/book.opf"/></rootfiles></container>',
        "OPS/book.opf": f'{_XML}<package xmlns="http://www.idpf.org/2007/opf"><metadata'
        f' xmlns:dc="http://purl.org/dc/elements/1.1/"><dc:title>{title}</dc:title></metadata>'
        f"<manifest>{manifest}</manifest><spine>{spine}</spine></package>",
    }
    pages = {
        f"OPS/{name}": f"{_XML}<html><body>{body}</body></html>"
        for name, body in zip(names, chapters, strict=True)
    }
    return zipped(members | pages | {name.replace("__", "/"): body for name, body in others.items()})


def make_eml(*, html: str | None = None, text: str | None = None) -> bytes:
    message = EmailMessage()
    message["From"] = "Ann <ann@example.org>"
    message["To"] = "bob@example.org"
    message["Subject"] = "Grüße from the sea"
    if text is not None:
        message.set_content(text)
    if html is not None:
        message.add_alternative(html, subtype="html") if text else message.set_content(html, subtype="html")
    message.add_attachment(b"abc", maintype="application", subtype="octet-stream", filename="map.bin")
    return message.as_bytes()


def zipped(members: Mapping[str, str | bytes]) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, body in members.items():
            archive.writestr(name, body)
    return out.getvalue()


def encrypted_pdf() -> bytes:
    writer = PdfWriter(clone_from=PdfReader(io.BytesIO(make_pdf(["A secret."]))))
    writer.encrypt("password", algorithm="AES-256")
    return _saved(writer.write)


def zip_bomb(main: str, *, num_bytes: int = BOMB_BYTES) -> bytes:
    """An Office document whose main part unpacks to so much."""
    out = io.BytesIO()
    relation = "officeDocument"
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("[Content_Types].xml", f"{_XML}<Types/>")
        archive.writestr("_rels/.rels", f'{_XML}<Relationship Type="{_OFFICE}/{relation}" Target="{main}"/>')
        with archive.open(main, "w") as member:
            for _ in range(num_bytes // MIB):
                member.write(b" " * MIB)
    return out.getvalue()


def lying_zip_bomb(main: str, *, num_bytes: int = BOMB_BYTES) -> bytes:
    """The same, with a directory that declares a hundred bytes."""
    raw = bytearray(zip_bomb(main, num_bytes=num_bytes))
    size = num_bytes.to_bytes(4, "little")
    return bytes(raw.replace(size, (100).to_bytes(4, "little")))


def entity_bomb(kind: str) -> bytes:
    """A document whose main XML unfolds to a gigabyte."""
    use = "&a9;"
    if kind == "epub":
        opf = f"{ENTITY_BOMB}<package xmlns='http://www.idpf.org/2007/opf'>{use}</package>"
        return _with_member(make_epub(["<p>a</p>"]), "OPS/book.opf", opf)
    if kind == "docx":
        w = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"
        body = (
            f"<w:document xmlns:w='{w}'><w:body><w:p><w:r><w:t>{use}</w:t></w:r></w:p></w:body></w:document>"
        )
        return _with_member(make_docx(), "word/document.xml", ENTITY_BOMB + body)
    if kind == "pptx":
        made = make_pptx([("a", "b")])
        return _with_member(made, "ppt/slides/slide1.xml", f"{ENTITY_BOMB}<p>{use}</p>")
    made = make_xlsx({"a": [["b"]]})
    return _with_member(made, "xl/workbook.xml", f"{ENTITY_BOMB}<workbook>{use}</workbook>")


def inflating_pdf(num_bytes: int = 2 * BOMB_BYTES) -> bytes:
    """A PDF whose only page has a content that unpacks to so much: deflated, and deflated again."""
    packer = zlib.compressobj(9)
    piece = b"(aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa) Tj\n" * 16_384
    once = b"".join(packer.compress(piece) for _ in range(num_bytes // len(piece))) + packer.flush()
    twice = zlib.compress(once, 9)
    whole = make_pdf(["x"])
    begin = whole.index(b"5 0 obj")
    end = whole.index(b"endobj", begin)
    head = b"5 0 obj\n<< /Length %d /Filter [/FlateDecode /FlateDecode] >>\nstream\n" % len(twice)
    return whole[:begin] + head + twice + b"\nendstream\n" + whole[end:]


def bad_documents() -> dict[str, tuple[bytes, str, str]]:
    """By name: the bytes, what the file is called, and the code with which it has to end."""
    pdf = make_pdf([prose_page(number) for number in range(30)])
    report = make_docx()
    ole = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(600)
    makers: dict[str, tuple[Callable[[], bytes] | bytes, str, str]] = {
        "truncated pdf": (pdf[:600], "a.pdf", "document_corrupt"),
        "truncated docx": (report[: len(report) // 2], "a.docx", "document_corrupt"),
        "encrypted pdf": (encrypted_pdf, "a.pdf", "document_encrypted"),
        "encrypted docx": (ole + "EncryptedPackage".encode("utf-16-le"), "a.docx", "document_encrypted"),
        "word 97": (ole, "a.docx", "unsupported_document"),
        "zip bomb": (lambda: zip_bomb("word/document.xml"), "a.docx", "document_too_large"),
        "zip bomb that lies": (lambda: lying_zip_bomb("word/document.xml"), "a.docx", "document_corrupt"),
        "pptx bomb": (lambda: zip_bomb("ppt/presentation.xml"), "a.pptx", "document_too_large"),
        "xlsx bomb": (lambda: zip_bomb("xl/workbook.xml"), "a.xlsx", "document_too_large"),
        "epub bomb": (
            lambda: make_epub(["<p>a</p>"], OPS__big=bytes(BOMB_BYTES)),
            "a.epub",
            "document_too_large",
        ),
        **{
            f"entity bomb in {kind}": (partial(entity_bomb, kind), f"a.{kind}", "document_corrupt")
            for kind in ("docx", "pptx", "xlsx", "epub")
        },
        "pdf that inflates": (inflating_pdf, "a.pdf", "document_out_of_memory"),
        "10,000 pages": (lambda: make_pdf(["a"] * 10_000), "a.pdf", "document_too_many_pages"),
        "scanned": (lambda: make_pdf(["", ""]), "a.pdf", "document_empty"),
        "blank": (b" \n\t", "a.txt", "document_empty"),
        "blank html": (b"<html><body><script>x</script></body></html>", "a.html", "document_empty"),
        "zip that is no docx": (zipped({"a.txt": "a"}), "a.docx", "unsupported_document"),
        "binary late": (b"text" * 5000 + bytes(range(256)) * 100, "a.txt", "unsupported_document"),
        "too much text": (b"many words " * 2_000_000, "a.txt", "document_too_large"),
        "nested html": (b"<div>" * 300_000, "a.html", "document_empty"),
    }
    return {
        name: (made() if callable(made) else made, filename, code)
        for name, (made, filename, code) in makers.items()
    }


def _with_member(made: bytes, name: str, body: str) -> bytes:
    with zipfile.ZipFile(io.BytesIO(made)) as archive:
        members: dict[str, str | bytes] = {each: archive.read(each) for each in archive.namelist()}
    return zipped(members | {name: body})


def _saved(save: Callable[[io.BytesIO], object]) -> bytes:
    out = io.BytesIO()
    save(out)
    return out.getvalue()


def _escaped(line: str) -> bytes:
    raw = line.encode("cp1252")
    return raw.replace(b"\\", b"\\\\").replace(b"(", b"\\(").replace(b")", b"\\)")


DAY = timedelta(days=1)
LEASE = timedelta(seconds=30)


def mail_with(subject: str, *attached: tuple[str, bytes]) -> bytes:
    """A mail with these files, each by its name."""
    message = EmailMessage()
    message["From"], message["To"], message["Subject"] = "ann@a.example", "bob@b.example", subject
    message.set_content("See the files.")
    for name, data in attached:
        message.add_attachment(data, maintype="application", subtype="octet-stream", filename=name)
    return message.as_bytes()


def pdf_with(name: str, data: bytes) -> bytes:
    """A PDF of one page with this file attached."""
    writer = PdfWriter(clone_from=PdfReader(io.BytesIO(make_pdf([f"See {name}."]))))
    writer.add_attachment(name, data)
    out = io.BytesIO()
    writer.write(out)
    return out.getvalue()


def upload(
    session: Session,
    content: bytes = b"Hello",
    *,
    tenant_id: UUID = DEFAULT_TENANT,
    kind: DocumentKind = DocumentKind.TXT,
) -> tuple[Document, bool]:
    """The document of these bytes, as the API makes it."""
    file = documents.create_file(session, tenant_id=tenant_id)
    part = RowStore().put(content)
    files.add_part(session, file.id, part, start=0, tenant_id=tenant_id)
    new = NewDocument(file.id, sha256(content).digest(), len(content), kind, f"a.{kind}")
    return documents.finish_upload(session, new, tenant_id=tenant_id, lifetime=DAY)


def claim_one(session: Session) -> DocumentClaim:
    claim = claim_next(session)
    assert claim is not None
    return claim


def claim_next(session: Session) -> DocumentClaim | None:
    """The document whose turn it is, as a service worker takes it; None: none waits."""
    turn = turns.claim(session, EXTRACTION, lease=LEASE)
    session.expire_all()
    return extraction.begin_extraction(session, turn) if turn else None


class Extractor:
    """Extracts what waits, when it is told."""

    def __init__(
        self,
        sessions: sessionmaker[Session],
        tokenizer: Tokenizer,
        store: PartStore | None = None,
        limits: LimitSettings | None = None,
    ) -> None:
        self._runner = runner_of(sessions)
        store = store or RowStore()
        self._work = DocumentExtractor(
            DocumentSettings(),
            tokenizer,
            store,
            attachments=AttachmentStore(store, limits or LimitSettings()),
            on_ended=lambda: None,
        )

    def run_once(self) -> None:
        """Every document that waited has ended."""
        while self._runner.run_next(self._work):
            pass
