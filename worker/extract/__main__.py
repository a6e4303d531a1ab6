"""`python -m worker.extract …` reads a document and writes its text, or the reason why it has none.

The output: the length of the JSON as eight bytes, the JSON, the text as UTF-8, zstandard-compressed, and
attached files, whose sizes the JSON has.
"""

import argparse
import json
import struct
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Final

import zstandard

from worker.extract.confine import fork_confined
from worker.extract.draft import ExtractionError, ExtractionLimits, OcrLimits, TextBuilder
from worker.extract.language import detect

_LEVEL: Final = 3
Reader = Callable[[bytes, TextBuilder], None]


def main() -> int:
    """Read the document and write the outcome; return 0 even if there is no text."""
    arguments = _arguments()
    ocr = OcrLimits(
        arguments.ocr_memory,
        arguments.ocr_seconds,
        arguments.ocr_pages,
        arguments.ocr_pixels,
        arguments.ocr_languages,
    )
    limits = ExtractionLimits(
        arguments.memory, arguments.seconds, arguments.pages, arguments.characters, ocr, arguments.attached
    )
    if (exit_code := fork_confined(limits, parent=arguments.parent)) is not None:
        return exit_code
    try:
        data = sys.stdin.buffer.read(arguments.size)
        draft = read(arguments.kind, data, limits, encoding=arguments.encoding)
        text = draft.text()
        body = zstandard.ZstdCompressor(level=_LEVEL).compress(text.encode(errors="replace"))
        outcome = {**describe(draft, text), "size": len(body)}
        attached = [each.data for each in draft.attachments]
    except ExtractionError as refusal:
        outcome, body, attached = _refusal(refusal.code, refusal.message), b"", []
    except MemoryError:
        draft = text = None  # type: ignore[assignment]  # frees what fills the memory
        message = "The document needs more memory than the limit allows."
        outcome, body, attached = _refusal("document_out_of_memory", message), b"", []
    _write(outcome, body, attached)
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=_READERS)
    for name in ("size", "memory", "seconds", "pages", "characters", "attached", "parent"):
        parser.add_argument(f"--{name}", type=int, required=True)
    for name in ("memory", "seconds", "pages", "pixels"):
        parser.add_argument(f"--ocr-{name}", type=int, default=0)
    parser.add_argument("--ocr-languages", default="")
    parser.add_argument("--encoding", default="")
    return parser.parse_args()


def read(kind: str, data: bytes, limits: ExtractionLimits, *, encoding: str = "") -> TextBuilder:
    """Read the text and properties of a document.

    `encoding` is that of its text, as its owner named it; empty if not named.

    Raises:
        RefusedError: the document has no text; the error names the reason.
    """
    draft = TextBuilder(limits, encoding)
    try:
        module, function = _READERS[kind]
        reader: Reader = getattr(import_module(f"worker.extract.{module}"), function)
        reader(data, draft)
        _name_attachments(draft)
    except (ExtractionError, MemoryError):
        raise
    except ImportError as error:
        extra = "ocr" if module == "scans.images" else "docs"
        missing = f"Reading {kind} requires the extra `{extra}`: pip install 'longbatch-server[{extra}]'."
        raise ExtractionError("missing_extra", missing) from error
    except RecursionError:
        raise ExtractionError("document_corrupt", "The document is nested too deeply.") from None
    except Exception as error:  # parsers may raise anything on untrusted bytes
        raise ExtractionError("document_corrupt", f"The {kind} file cannot be read.") from error
    return draft


def _name_attachments(draft: TextBuilder) -> None:
    """Warn of the files within the document, none of which is part of its text."""
    if draft.attachments:
        names = ", ".join(each.name for each in draft.attachments)
        message = f"{len(draft.attachments)} attached files are not part of this text: {names}"
        draft.warn("attachments_separate", message)
    if draft.left_out:
        names = ", ".join(draft.left_out)
        message = f"{len(draft.left_out)} attached files are empty, too large or too many: {names}"
        draft.warn("attachments_not_read", message)


def _named_attachments(draft: TextBuilder) -> str:
    """Name the files of a document that is nothing but them."""
    if not draft.attachments:
        return ""
    names = ", ".join(each.name for each in draft.attachments)
    return f" It has attached files, which you can take out and send alone: {names}"[:900]


def describe(draft: TextBuilder, text: str) -> dict[str, object]:
    """Describe the text as JSON.

    Raises:
        RefusedError: the text is blank.
    """
    if not text.strip("\ufeff \t\r\n\f\v"):
        raise ExtractionError("document_empty", f"The document has no text.{_named_attachments(draft)}")
    return {
        "num_chars": len(text),
        "pages": draft.pages,
        "language": detect(text),
        "title": draft.title,
        "warnings": draft.warnings,
        "attachments": [{"name": each.name, "size": len(each.data)} for each in draft.attachments],
    }


def _refusal(code: str, message: str) -> dict[str, object]:
    return {"code": code, "message": message}


def _write(outcome: dict[str, object], body: bytes, attached: Sequence[bytes]) -> None:
    described = json.dumps(outcome).encode()
    out = sys.stdout.buffer
    out.write(struct.pack(">Q", len(described)))
    out.write(described)
    out.write(body)
    for data in attached:
        out.write(data)
    out.flush()


# Module and function for each kind, imported when needed: plain text starts in 40 ms, a workbook in 250.
_READERS: Final = {
    "txt": ("plain", "read_text"),
    "md": ("plain", "read_markdown"),
    "html": ("markup", "read_html"),
    "pdf": ("pdf", "read_pdf"),
    "docx": ("word", "read_docx"),
    "pptx": ("slides", "read_pptx"),
    "xlsx": ("sheets", "read_xlsx"),
    "epub": ("epub", "read_epub"),
    "eml": ("mail", "read_eml"),
    "msg": ("outlook", "read_msg"),
    "odt": ("open_document", "read_odt"),
    "ods": ("open_document", "read_ods"),
    "odp": ("open_document", "read_odp"),
    "rtf": ("rich_text", "read_rtf"),
    "xls": ("sheets", "read_xls"),
    "png": ("scans.images", "read_image"),
    "jpg": ("scans.images", "read_image"),
    "tiff": ("scans.images", "read_image"),
    # What an external extractor answered, by its contract.
    "docling": ("replies", "read_docling"),
    "open-webui": ("replies", "read_open_webui"),
}

if __name__ == "__main__":
    sys.exit(main())
