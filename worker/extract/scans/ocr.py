"""The text in pictures of pages, by models that are part of the package rapidocr; nothing is downloaded.

The models read Latin letters, Chinese and Japanese. Lines in any other script, and lines that are too
unclear, come out as few letters with wide blanks, or with low scores. Such a line is marked, never guessed; a
page that is mostly such lines is not read.
"""

import importlib.util
import math
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from worker.extract.confine import allow_ocr
from worker.extract.draft import ExtractionError, OcrLimits, TextBuilder
from worker.extract.scans.reading_order import PageLine, arrange
from worker.extract.scans.tesseract import read_with_tesseract

ILLEGIBLE: Final = "[illegible]"  # stands for a line, as in printed transcriptions
READS: Final = "Latin letters, Chinese and Japanese"
# As measured by bench.scans: legible lines score 0.9 and more, those of other scripts 0.4 to 0.87.
_LEAST_SCORE: Final = 0.88
# Visible characters for each line height of width: Latin text has 2, Chinese 1, unread scripts 0.0 to 0.3.
_LEAST_DENSITY: Final = 0.4
_MOST_ILLEGIBLE: Final = 0.4  # share of the lines' total width; above it the page counts as unread
_LONGEST_SIDE: Final = 2000  # pixels; A4 at 170 dots per inch. The models are no better with more
_SAMPLE: Final = 6  # lines that tell whether a page stands on its head
_LEAST_CONTRAST: Final = 24  # of 255 shades; below it a page is blank
_ENGINE: Final = "EngineConfig.onnxruntime"
_OUT_OF_MEMORY: Final = ("bad_alloc", "bad allocation", "allocate", "nsufficient memory")


def is_installed() -> bool:
    """Return True if the extra `ocr` is."""
    return importlib.util.find_spec("rapidocr") is not None


@dataclass(slots=True)
class PageReader:
    """A reader of pictures, which loads the models for the first one and counts what became of each.

    Attributes:
        read: numbers of the pages that it read, from 1.
        illegible: of those with writing that it cannot read.
        skipped: of those for which no time was left, or that were too many or too large.
        blank: of those without writing.
    """

    limits: OcrLimits
    read: list[int] = field(default_factory=list)
    illegible: list[int] = field(default_factory=list)
    skipped: list[int] = field(default_factory=list)
    blank: list[int] = field(default_factory=list)
    _engine: Any = None
    _started_at: float = math.inf

    def may_read(self, number: int) -> bool:
        """Return True if pages and time are left for this page, which otherwise counts as skipped.

        Ask before the page is drawn: to draw the thousands that are left takes longer than the document may.
        """
        is_over = len(self.read) + len(self.illegible) >= self.limits.max_pages or self._is_late()
        if is_over:
            self.skipped.append(number)
        return not is_over

    def read_page(self, number: int, picture: Any) -> str:  # noqa: ANN401  # Pillow's image
        """Return the text of a page that it may read, empty if it has none that can be read.

        Raises:
            MemoryError: the page needs more memory than the limit allows.
        """
        low, high = picture.convert("L").resize((200, 200)).getextrema()
        if high - low < _LEAST_CONTRAST:
            self.blank.append(number)
            return ""
        if self._engine is None:
            self._load()
        lines = self._lines(picture)
        if lines is None:
            self.skipped.append(number)
            return ""
        return self._judge(number, lines) or self._read_otherwise(number, picture)

    def _read_otherwise(self, number: int, picture: Any) -> str:  # noqa: ANN401
        """Read an illegible page with tesseract, if the operator named its languages."""
        if number not in self.illegible[-1:] or not self.limits.languages:
            return ""
        left = self._started_at + self.limits.seconds - time.monotonic()
        text = read_with_tesseract(picture, self.limits.languages, seconds=left)
        if text:
            self.illegible.pop()
            self.read.append(number)
        return text

    def report(self, draft: TextBuilder) -> None:
        """Add the warnings about the pages.

        Raises:
            RefusedError: no page has text, and some may have writing.
        """
        is_empty = not draft.text().strip()
        if self.illegible:
            message = f"OCR reads {READS}; {len(self.illegible)} pages are in another script, or too unclear."
            if is_empty:
                raise ExtractionError("document_illegible", message)
            draft.warn("pages_illegible", message, self.illegible)
        if self.skipped:
            message = f"{len(self.skipped)} pages were not read: OCR reached its limit of pages or time."
            if is_empty:
                raise ExtractionError("document_timeout", message)
            draft.warn("pages_without_text", message, self.skipped)
        if self.read:
            draft.warn("pages_read_by_ocr", f"{len(self.read)} pages were read by OCR.", self.read)

    def _load(self) -> None:
        """Load the models, under the limits of OCR from now on."""
        allow_ocr(self.limits)
        import cv2
        import rapidocr

        cv2.setNumThreads(1)
        models = Path(rapidocr.__file__).parent / "models"
        params: dict[str, Any] = {
            # Named, so that the package looks for no other and has nothing to download.
            "Det.model_path": str(models / "PP-OCRv6_det_small.onnx"),
            "Rec.model_path": str(models / "PP-OCRv6_rec_small.onnx"),
            # A line at a time: 0.8 GB instead of 1.1, no slower, and the clock is looked at in between.
            "Rec.rec_batch_num": 1,
            "Global.max_side_len": _LONGEST_SIDE,
            "Global.log_level": "critical",
            f"{_ENGINE}.intra_op_num_threads": 1,
            f"{_ENGINE}.inter_op_num_threads": 1,
        }
        self._engine = rapidocr.RapidOCR(params=params)
        self._started_at = time.monotonic()

    def _is_late(self) -> bool:
        return time.monotonic() - self._started_at > self.limits.seconds

    def _lines(self, picture: Any) -> list[PageLine] | None:  # noqa: ANN401
        """Find the lines of the page; None if the time ends before the last one."""
        picture.thumbnail((_LONGEST_SIDE, _LONGEST_SIDE))
        crops, boxes = self._upright(picture.convert("RGB"))
        lines = []
        for crop, box in zip(crops, boxes, strict=True):
            if self._is_late():
                return None
            xs, ys = [float(corner[0]) for corner in box], [float(corner[1]) for corner in box]
            text = self._recognize(crop)
            middle, height = sum(ys) / len(ys), float(crop.shape[0])
            line = PageLine(min(xs), max(xs), middle, height, text or ILLEGIBLE, is_sure=bool(text))
            lines.append(line)
        return lines

    def _upright(self, picture: Any) -> tuple[list[Any], list[Any]]:  # noqa: ANN401
        """Cut out the lines of a page, turned if it lies on its side or stands on its head.

        The package has a model for that, which looks at single lines. It turned up to two of three lines of
        upright pages, so whole pages are turned here: by the shape of their lines, and by which way more
        lines are legible.
        """
        crops, boxes = self._detect(picture)
        num_tall = sum(_extent(box, 1) > 2 * _extent(box, 0) for box in boxes)
        if num_tall > len(boxes) / 2:
            picture = picture.rotate(90, expand=True)
            crops, boxes = self._detect(picture)
        sample = sorted(crops, key=lambda crop: -crop.shape[1])[:_SAMPLE]
        num_sure = sum(bool(self._recognize(crop)) for crop in sample)
        if num_sure < len(sample) / 2:
            turned = sum(bool(self._recognize(crop[::-1, ::-1])) for crop in sample)
            if turned > num_sure:
                return self._detect(picture.rotate(180))
        return crops, boxes

    def _detect(self, picture: Any) -> tuple[list[Any], list[Any]]:  # noqa: ANN401
        """Find the lines: their pixels, and the corners of each."""
        import numpy as np

        pixels = np.ascontiguousarray(np.asarray(picture)[:, :, ::-1])
        try:
            resized, record = self._engine.preprocess_img(pixels)
            crops, found = self._engine.detect_and_crop(resized, record)
        except Exception as error:  # noqa: BLE001  # also the package's way to say that there is no text
            _raise_if_out_of_memory(error)
            return [], []
        return list(crops), list(found.boxes)

    def _recognize(self, crop: Any) -> str:  # noqa: ANN401
        """Return the text of a line; empty if it is not sure."""
        try:
            known = self._engine.recognize_txt([crop])
        except Exception as error:  # noqa: BLE001  # one line must not lose the page
            _raise_if_out_of_memory(error)
            return ""
        height, width = crop.shape[:2]
        text = (known.txts or ("",))[0].strip()
        score = float((known.scores or (0.0,))[0])
        is_dense = len("".join(text.split())) >= _LEAST_DENSITY * width / height
        return text if score >= _LEAST_SCORE and is_dense else ""

    def _judge(self, number: int, lines: list[PageLine]) -> str:
        """Return the page's text, unless too little of it is sure."""
        width = sum(line.width for line in lines)
        if not width:
            self.blank.append(number)
            return ""
        if sum(line.width for line in lines if not line.is_sure) > _MOST_ILLEGIBLE * width:
            self.illegible.append(number)
            return ""
        self.read.append(number)
        return "\n".join(arrange(lines))


def _extent(box: Any, axis: int) -> float:  # noqa: ANN401
    """Return how far a box reaches from left to right (0) or from top to bottom (1)."""
    places = [float(corner[axis]) for corner in box]
    return max(places) - min(places)


def _raise_if_out_of_memory(error: Exception) -> None:
    """Turn the many ways in which the libraries say that memory ended into one."""
    if isinstance(error, MemoryError) or any(sign in str(error) for sign in _OUT_OF_MEMORY):
        raise MemoryError from error
