"""The states of documents, the moves between them, and the codes that explain the result."""

from enum import StrEnum


class DocumentState(StrEnum):
    """Where a document is in its life; TRANSITIONS lists the moves."""

    EXTRACTING = "extracting"  # its bytes are stored; a worker extracts the text
    READY = "ready"  # its text is stored, its bytes are deleted
    FAILED = "failed"  # it has no text, and `error` says why
    DELETED = "deleted"  # hidden; its row is pruned later


class DocumentKind(StrEnum):
    """The format of a document's bytes."""

    TXT = "txt"
    MD = "md"
    HTML = "html"
    PDF = "pdf"
    DOCX = "docx"
    PPTX = "pptx"
    XLSX = "xlsx"
    EPUB = "epub"
    EML = "eml"
    MSG = "msg"
    ODT = "odt"
    ODS = "ods"
    ODP = "odp"
    RTF = "rtf"
    XLS = "xls"
    PNG = "png"
    JPG = "jpg"
    TIFF = "tiff"


class DocumentErrorCode(StrEnum):
    """Why a document has no text: the codes of `error`."""

    EMPTY = "document_empty"
    ENCRYPTED = "document_encrypted"
    CORRUPT = "document_corrupt"
    TOO_LARGE = "document_too_large"
    TOO_MANY_PAGES = "document_too_many_pages"
    TIMEOUT = "document_timeout"
    OUT_OF_MEMORY = "document_out_of_memory"
    UNSUPPORTED = "unsupported_document"
    ILLEGIBLE = "document_illegible"  # OCR sees writing, and cannot read it
    UNCOUNTABLE = "prompt_uncountable"
    MISSING_EXTRA = "missing_extra"
    EXTRACTOR_UNAVAILABLE = "extractor_unavailable"  # an external one, in every attempt
    EXTRACTOR_REFUSED = "extractor_refused"  # it cannot read the document
    EXTRACTOR_INVALID = "extractor_invalid"  # what it answers is not its contract, in every attempt
    BYTES_LOST = "file_bytes_lost"
    UNREADABLE = "content_unreadable"  # its bytes are sealed, and no configured key opens them
    ABANDONED = "extraction_abandoned"  # every attempt lost its worker, or failed


class DocumentWarningCode(StrEnum):
    """What a reader of the text should know: the codes of `warnings`."""

    PAGES_WITHOUT_TEXT = "pages_without_text"  # scanned, most likely
    PAGES_READ_BY_OCR = "pages_read_by_ocr"
    PAGES_ILLEGIBLE = "pages_illegible"  # writing that OCR cannot read
    ENCODING_GUESSED = "encoding_guessed"
    EXTRACTED_IN_PART = "extracted_in_part"  # an external extractor could not read all of it
    CHARACTERS_REPLACED = "characters_replaced"  # bytes that are not valid in the encoding
    ATTACHMENTS_NOT_READ = "attachments_not_read"
    ATTACHMENTS_SEPARATE = "attachments_separate"  # they are documents of their own
    FORM_NOT_READABLE = "form_not_readable"  # an XFA form, or one whose values cannot be read
    FORMULAS_WITHOUT_VALUES = "formulas_without_values"  # shown as formulas
    HIDDEN_PARTS = "hidden_parts"  # hidden sheets, slides or text; the message says whether they were read
    PARTS_DAMAGED = "parts_damaged"  # and left out; the rest was read
    PARTS_NOT_READ = "parts_not_read"  # pictures with text, drawings, scripts: the message names them
    EXTENSION_DIFFERS = "extension_differs"  # the bytes are of another kind than the name suggests


_S = DocumentState

# verb -> (the states it may start from, the state it leads to).
TRANSITIONS: dict[str, tuple[frozenset[DocumentState], DocumentState]] = {
    "finish": (frozenset({_S.EXTRACTING}), _S.READY),
    "fail": (frozenset({_S.EXTRACTING}), _S.FAILED),
    "restart": (frozenset({_S.FAILED}), _S.EXTRACTING),  # the same bytes were sent again
    "remove": (frozenset({_S.EXTRACTING, _S.READY, _S.FAILED}), _S.DELETED),
}
