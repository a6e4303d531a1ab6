"""The text of xlsx files: each sheet is a page, each row a line."""

import io
import sys

from worker.extract.archive import open_archive, require
from worker.extract.draft import TextBuilder


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
