"""Pictures as documents: png, jpg, and tiff with a page in each of its frames; their text is read by OCR."""

import io
import warnings
from typing import Any, Final

from worker.extract.draft import ExtractionError, TextBuilder, refuse_corrupt
from worker.extract.scans.ocr import PageReader, is_installed

_FORMATS: Final = ("PNG", "JPEG", "TIFF")


def read_image(data: bytes, draft: TextBuilder) -> None:
    """Read a picture, frame by frame."""
    if not is_installed():
        raise ImportError("rapidocr")
    if not draft.limits.ocr.max_pages:
        raise ExtractionError("unsupported_document", "OCR is switched off here, so pictures are not read.")
    from PIL import Image, ImageOps

    warnings.simplefilter("ignore")  # the limit of pixels below is ours
    Image.MAX_IMAGE_PIXELS = None
    reader = PageReader(draft.limits.ocr)
    with Image.open(io.BytesIO(data), formats=_FORMATS) as picture:
        number = 0
        while _seek(picture, number):
            number += 1
            draft.announce_pages(number)
            _check_size(picture.size, draft)
            draft.begin_page()
            if not reader.may_read(number):
                continue
            try:
                picture.draft("RGB", (4000, 4000))  # a jpg is decoded at a fraction of its size
                frame = _flat(ImageOps.exif_transpose(picture))
            except OSError:
                refuse_corrupt("The picture is truncated or damaged.")
            draft.write(reader.read_page(number, frame))
    if len(reader.blank) == number:
        raise ExtractionError("document_empty", "The picture has no text.")
    reader.report(draft)


def _flat(picture: Any) -> Any:  # noqa: ANN401  # Pillow's image
    """Return the picture with 256 shades, and on white paper where it is transparent."""
    from PIL import Image

    if picture.mode.startswith("I;16"):
        return picture.convert("I").point(lambda shade: shade * (1 / 257) + 0).convert("L")
    if not picture.has_transparency_data:
        return picture
    paper = Image.new("RGBA", picture.size, "white")
    return Image.alpha_composite(paper, picture.convert("RGBA"))


def _seek(picture: Any, number: int) -> bool:  # noqa: ANN401
    """Go to a frame; return False after the last one."""
    try:
        picture.seek(number)
    except EOFError:
        return False
    return True


def _check_size(size: tuple[int, int], draft: TextBuilder) -> None:
    """Refuse a picture by its declared size, before its pixels are unpacked."""
    width, height = size
    most = draft.limits.ocr.max_pixels
    if width * height > most:
        message = f"The picture has {width:,} x {height:,} pixels; the maximum is {most:,} in all."
        raise ExtractionError("document_too_large", message)
