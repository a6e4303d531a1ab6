"""The text of pptx files: each slide, with its notes, is a page."""

import io
from collections.abc import Iterator
from typing import Any, Final

from worker.extract.archive import open_archive, require
from worker.extract.draft import TextBuilder

_MAX_DEPTH: Final = 20  # groups in groups


def read_pptx(data: bytes, draft: TextBuilder) -> None:
    """Read a pptx, slide by slide."""
    with open_archive(data, draft.limits) as archive:
        require(archive, "ppt/presentation.xml", "pptx")
    from pptx import Presentation

    presentation = Presentation(io.BytesIO(data))
    draft.set_title(presentation.core_properties.title)
    slides = presentation.slides
    draft.announce_pages(len(slides))
    for slide in slides:
        draft.begin_page()
        title = slide.shapes.title
        for shape in _shapes(slide.shapes):
            is_title = title is not None and shape.shape_id == title.shape_id
            for line in _shape_lines(shape):
                draft.write(f"# {line}\n\n" if is_title else f"{line}\n")
        if slide.has_notes_slide and (frame := slide.notes_slide.notes_text_frame) and frame.text.strip():
            draft.write(f"\n{frame.text.strip()}\n")


def _shapes(shapes: Any, depth: int = 0) -> Iterator[Any]:  # noqa: ANN401  # the library is untyped
    for shape in shapes:
        if hasattr(shape, "shapes") and depth < _MAX_DEPTH:
            yield from _shapes(shape.shapes, depth + 1)
        else:
            yield shape


def _shape_lines(shape: Any) -> Iterator[str]:  # noqa: ANN401
    if shape.has_text_frame:
        for paragraph in shape.text_frame.paragraphs:
            if line := paragraph.text.replace("\v", " ").strip():
                yield line
    elif getattr(shape, "has_table", False):
        for row in shape.table.rows:
            line = " | ".join(" ".join(cell.text.split()) for cell in row.cells)
            if line.strip(" |"):
                yield line
