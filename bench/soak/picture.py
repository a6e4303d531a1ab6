"""Draws the curves of a run as a picture: one panel a measure, one colour a process or table."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from PIL import Image, ImageDraw, ImageFont

from bench.soak.curves import Curves, Point

_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _GAP = 1400, 230, 70, 240, 60, 60
INK, PALE, GRID, _FAULT = (40, 44, 52), (248, 249, 250), (215, 219, 224), (200, 60, 60)
COLOURS: Final = (
    (38, 110, 180),
    (196, 98, 40),
    (52, 140, 80),
    (140, 80, 170),
    (190, 60, 90),
    (110, 110, 40),
    (90, 140, 160),
    (120, 120, 120),
)
_TITLES: Final = {
    "memory": "Private memory of each process and its children, MiB",
    "descriptors": "Open descriptors",
    "threads": "Threads",
    "table": "Largest tables with their indexes, MiB",
}


def draw(
    curves: Curves, file: Path, *, title: str, faults: Sequence[float], calm_from_s: float, end_s: float
) -> None:
    """Draw a PNG with a panel for each kind of curve.

    Args:
        curves: of the run.
        file: to write.
        title: its heading.
        faults: seconds of the run at which there was one.
        calm_from_s: from then on there was none.
        end_s: of the run.
    """
    panels = {kind: _joined(kind, found) for kind, found in curves.points.items()}
    image = Image.new("RGB", (_WIDTH, _TOP + len(panels) * (_HEIGHT + _GAP)), "white")
    canvas = ImageDraw.Draw(image)
    canvas.text((_LEFT, 16), title, fill=INK, font=ImageFont.load_default(20))
    for number, (kind, series) in enumerate(panels.items()):
        top = _TOP + 24 + number * (_HEIGHT + _GAP)
        _panel(canvas, _TITLES[kind], series, top=top, end_s=end_s, faults=faults, calm_from_s=calm_from_s)
    file.parent.mkdir(parents=True, exist_ok=True)
    image.quantize(64).save(file, optimize=True)


def _joined(kind: str, found: Mapping[str, Sequence[Point]]) -> dict[str, list[list[Point]]]:
    """Put the curves of one program's processes together; of tables take the largest."""
    if kind == "table":
        largest = sorted(found, key=lambda name: -found[name][-1][1])[: len(COLOURS)]
        return {name: [list(found[name])] for name in largest}
    joined: dict[str, list[list[Point]]] = defaultdict(list)
    for name, points in found.items():
        joined[name.split()[0]].append(list(points))
    return joined


def _panel(
    canvas: ImageDraw.ImageDraw,
    title: str,
    series: Mapping[str, Sequence[Sequence[Point]]],
    *,
    top: int,
    end_s: float,
    faults: Sequence[float],
    calm_from_s: float,
) -> None:
    right, bottom = _WIDTH - _RIGHT, top + _HEIGHT
    highest = (
        max((value for curves in series.values() for curve in curves for _, value in curve), default=1) or 1
    )
    canvas.text((_LEFT, top - 22), title, fill=INK, font=ImageFont.load_default(16))
    canvas.rectangle((_LEFT, top, right, bottom), fill=PALE)

    def x_of(at_s: float) -> float:
        return _LEFT + (right - _LEFT) * at_s / end_s

    for part in range(5):
        y = bottom - _HEIGHT * part / 4
        canvas.line((_LEFT, y, right, y), fill=GRID)
        canvas.text((8, y - 8), f"{highest * part / 4:,.1f}", fill=INK, font=ImageFont.load_default(13))
        minutes = end_s * part / 240
        canvas.text(
            (x_of(end_s * part / 4) - 12, bottom + 6),
            f"{minutes:.0f} min",
            fill=INK,
            font=ImageFont.load_default(13),
        )
    for at_s in faults:
        canvas.line((x_of(at_s), bottom - 5, x_of(at_s), bottom), fill=_FAULT)
    canvas.line((x_of(calm_from_s), top, x_of(calm_from_s), bottom), fill=_FAULT)
    for number, (name, curves) in enumerate(sorted(series.items())):
        colour = COLOURS[number % len(COLOURS)]
        canvas.text((right + 12, top + 20 * number), name, fill=colour, font=ImageFont.load_default(15))
        for curve in curves:
            places = [(x_of(at_s), bottom - _HEIGHT * value / highest) for at_s, value in curve]
            if len(places) > 1:
                canvas.line(places, fill=colour, width=2)
