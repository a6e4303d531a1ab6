"""The text of xlsx files: each sheet is a page, each row a line."""

import io
import sys

from worker.extract.archive import open_archive, require
from worker.extract.draft import ExtractionError, TextBuilder, refuse_corrupt


def read_xlsx(data: bytes, draft: TextBuilder) -> None:
    """Read an xlsx: the last computed values, separated by tabs, without empty rows."""
    with open_archive(data, draft.limits) as archive:
        require(archive, "xl/workbook.xml", "xlsx")
    # The library would import numpy for types that no file has: a quarter of a second, and threads.
    sys.modules.setdefault("numpy", None)  # type: ignore[arg-type]  # makes the import fail
    import openpyxl

    book = openpyxl.load_workbook(io.BytesIO(data), read_only=True, data_only=True, keep_links=False)
    draft.set_title(book.properties.title)
    draft.announce_pages(len(book.worksheets))
    for sheet in book.worksheets:
        draft.begin_page()
        draft.write(f"# {sheet.title}\n\n")
        sheet.reset_dimensions()  # a wrong size in the file would produce rows that do not exist
        for row in sheet.iter_rows(values_only=True):
            cells = ["" if value is None else " ".join(str(value).split()) for value in row]
            line = "\t".join(cells).rstrip("\t")
            if line:
                draft.write(line + "\n")


def read_xls(data: bytes, draft: TextBuilder) -> None:
    """Read an xls, the format of Excel 97 to 2003: the values, separated by tabs, without empty rows."""
    from python_calamine import CalamineError, CalamineWorkbook, PasswordError

    try:
        book = CalamineWorkbook.from_filelike(io.BytesIO(data))
    except PasswordError:
        raise ExtractionError("document_encrypted", "The workbook needs a password.") from None
    except CalamineError:
        refuse_corrupt("The workbook is truncated or damaged.")
    draft.announce_pages(len(book.sheet_names))
    for number, name in enumerate(book.sheet_names):
        draft.begin_page()
        draft.write(f"# {name}\n\n")
        for row in book.get_sheet_by_index(number).iter_rows():
            line = "\t".join(" ".join(_shown(value).split()) for value in row).rstrip("\t")
            if line:
                draft.write(line + "\n")


def _shown(value: object) -> str:
    """Return a value as a person reads it: the format keeps whole numbers as fractions."""
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)
