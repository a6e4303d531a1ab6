"""Draws a trace: a line for each span, where it began and how long it took."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from PIL import Image, ImageDraw, ImageFont

from bench.tracing.receiver import SeenSpan

_WIDTH, _NAMES, _RIGHT = 1280, 420, 90  # of the picture, of the names, of the durations
_HEAD, _ROW, _FOOT, _PAD, _INDENT = 84, 22, 18, 14, 16
_NARROWEST: Final = 3  # pixels, so that a span of a millisecond is seen
_INK, _FAINT, _GRID, _STRIPE = (40, 44, 52), (110, 116, 126), (222, 226, 230), (248, 249, 250)
_FAILED: Final = (190, 60, 60)
_TOKEN: Final = (250, 220, 90)
# By the first word of a span's name.
_COLOURS: Final = {
    "POST": (90, 140, 160),
    "wait": (196, 200, 206),
    "plan": (196, 200, 206),
    "validate": (196, 200, 206),
    "chat": (38, 110, 180),
    "record": (140, 80, 170),
    "webhook": (52, 140, 80),
}
_OTHER: Final = (222, 160, 70)  # what has others below it


def draw(spans: Sequence[SeenSpan], file: Path, *, title: str) -> None:
    """Draw a PNG.

    Args:
        spans: of one trace; at least one.
        file: to write.
        title: its heading.
    """
    rows = list(in_order(spans))
    first, last = min(each.began for each in spans), max(each.ended for each in spans)
    height = _HEAD + _ROW * len(rows) + _FOOT
    image = Image.new("RGB", (_WIDTH, height), "white")
    canvas = ImageDraw.Draw(image)
    canvas.text((_PAD, 14), title, fill=_INK, font=ImageFont.load_default(20))
    seconds = (last - first) / 1e9
    words = f"trace {spans[0].trace_id}: {len(spans)} spans in {seconds:.2f} s (yellow: first token)"
    canvas.text((_PAD, 42), words, fill=_FAINT, font=ImageFont.load_default(12))
    for number in range(1, len(rows), 2):
        top = _HEAD + _ROW * number
        canvas.rectangle((0, top, _WIDTH, top + _ROW), fill=_STRIPE)
    _axis(canvas, seconds, height)
    for number, (depth, span) in enumerate(rows):
        _row(canvas, span, depth=depth, top=_HEAD + _ROW * number, first=first, last=last)
    file.parent.mkdir(parents=True, exist_ok=True)
    image.quantize(256).save(file, optimize=True)


def in_order(spans: Sequence[SeenSpan]) -> Iterator[tuple[int, SeenSpan]]:
    """List spans below those that they belong to, earlier ones first, each with its depth."""
    below: dict[str, list[SeenSpan]] = defaultdict(list)
    known = {each.span_id for each in spans}
    for each in spans:
        below[each.parent_id if each.parent_id in known else ""].append(each)

    def walk(parent_id: str, depth: int) -> Iterator[tuple[int, SeenSpan]]:
        for each in sorted(below[parent_id], key=lambda span: (span.began, span.ended)):
            yield depth, each
            yield from walk(each.span_id, depth + 1)

    return walk("", 0)


def _axis(canvas: ImageDraw.ImageDraw, seconds: float, height: int) -> None:
    for part in range(5):
        at = _NAMES + (_WIDTH - _RIGHT - _NAMES) * part / 4
        canvas.line((at, _HEAD - 4, at, height - _FOOT), fill=_GRID)
        words = f"{seconds * part / 4:.2f} s"
        canvas.text((at, _HEAD - 8), words, fill=_FAINT, font=ImageFont.load_default(11), anchor="mb")


def _row(
    canvas: ImageDraw.ImageDraw, span: SeenSpan, *, depth: int, top: float, first: int, last: int
) -> None:
    def x_of(moment: int) -> float:
        return _NAMES + (_WIDTH - _RIGHT - _NAMES) * (moment - first) / max(1, last - first)

    middle = top + _ROW / 2
    place = (_PAD + _INDENT * depth, middle)
    canvas.text(place, label_of(span), fill=_INK, font=ImageFont.load_default(13), anchor="lm")
    left, right = x_of(span.began), x_of(span.ended)
    right = max(right, left + _NARROWEST)
    colour = _FAILED if span.is_error else _COLOURS.get(span.name.split()[0], _OTHER)
    canvas.rectangle((left, top + 5, right, top + _ROW - 5), fill=colour)
    for _, moment in span.events:
        canvas.rectangle((x_of(moment) - 1, top + 3, x_of(moment) + 1, top + _ROW - 3), fill=_TOKEN)
    words = duration_of(span)
    canvas.text((_WIDTH - _PAD, middle), words, fill=_FAINT, font=ImageFont.load_default(11), anchor="rm")


def label_of(span: SeenSpan) -> str:
    """Return the span's name with what tells it from others of that name."""
    told = span.attributes
    tokens = told.get("gen_ai.usage.input_tokens"), told.get("gen_ai.usage.output_tokens")
    details = {
        "chat": f"{tokens[0]} + {tokens[1]} tokens",
        "webhook": f"{told.get('longbatch.event.type')}, {told.get('http.response.status_code')}",
    }
    detail = details.get(span.name.split()[0])
    return span.name if detail is None else f"{span.name}  ({detail})"


def duration_of(span: SeenSpan) -> str:
    """Write how long the span took."""
    seconds = (span.ended - span.began) / 1e9
    return f"{seconds:.2f} s" if seconds >= 1 else f"{1000 * seconds:.1f} ms"
