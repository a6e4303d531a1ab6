"""Debian's tesseract, called as a library: for pages in scripts that the models of `ocr` do not read.

A confined process starts no other, so the command is of no use here. The library and its languages are the
packages libtesseract5 and tesseract-ocr-rus, -ara and so on.
"""

import ctypes
import os
import re
from typing import Any, Final

_LIBRARY: Final = "libtesseract.so.5"
_LANGUAGES: Final = re.compile(r"[A-Za-z0-9_]+(\+[A-Za-z0-9_]+)*")
_LEAST_CONFIDENCE: Final = 75  # of 100, over all words: pages get 95, those in another script 27 to 39


def read_with_tesseract(picture: Any, languages: str, *, seconds: float) -> str:  # noqa: ANN401
    """Read a page.

    Returns:
        Its text; empty if tesseract or a language is missing, is not sure, or needs too long.
    """
    if not _LANGUAGES.fullmatch(languages):
        return ""
    os.environ["OMP_THREAD_LIMIT"] = "1"
    try:
        library = _opened()
    except OSError:
        return ""
    api = ctypes.c_void_p(library.TessBaseAPICreate())
    try:
        if library.TessBaseAPIInit3(api, None, languages.encode()) != 0:
            return ""
        gray = picture.convert("L")
        pixels = gray.tobytes()
        library.TessBaseAPISetImage(api, pixels, gray.width, gray.height, 1, gray.width)
        monitor = ctypes.c_void_p(library.TessMonitorCreate())
        library.TessMonitorSetDeadlineMSecs(monitor, int(seconds * 1000))
        failed = library.TessBaseAPIRecognize(api, monitor)
        if failed or library.TessBaseAPIMeanTextConf(api) < _LEAST_CONFIDENCE:
            return ""
        text = ctypes.cast(library.TessBaseAPIGetUTF8Text(api), ctypes.c_char_p).value or b""
        return text.decode(errors="replace").strip()
    finally:
        library.TessBaseAPIDelete(api)


def _opened() -> ctypes.CDLL:
    """Open the library; raises OSError if it is missing."""
    library = ctypes.CDLL(_LIBRARY)
    for name in ("TessBaseAPICreate", "TessMonitorCreate", "TessBaseAPIGetUTF8Text"):
        getattr(library, name).restype = ctypes.c_void_p
    return library
