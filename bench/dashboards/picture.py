"""Draws panels as a picture, in the places that the dashboard gives them."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from PIL import Image, ImageDraw, ImageFont

from bench.soak.picture import COLOURS, GRID, INK, PALE

Points = Sequence[tuple[float, float]]

_UNIT_WIDTH, _UNIT_HEIGHT, _TOP = 64, 40, 56  # of the dashboard's grid; its head
_PAD, _LEFT, _TITLE, _AXIS, _LINE = 8, 62, 26, 18, 15
_FAINT = (110, 116, 126)
_MAX_NAMED: Final = 6  # curves in a legend; the others are drawn, and counted there


@dataclass(frozen=True, slots=True)
class Panel:
    """A panel with what its queries found.

    Attributes:
        unit: Grafana's name of it: `short`, `s`, `bytes` or `percentunit`.
        place: x, y, width and height in the dashboard's grid.
        curves: by name; time and value.
    """

    title: str
    unit: str
    place: tuple[int, int, int, int]
    curves: Mapping[str, Points]


def draw(panels: Sequence[Panel], file: Path, *, title: str, since: float, until: float) -> None:
    """Draw a PNG.

    Args:
        panels: of the dashboard.
        file: to write.
        title: its heading.
        since: Unix time of the left end.
        until: Unix time of the right end.
    """
    width = max(x + w for x, _, w, _ in (each.place for each in panels)) * _UNIT_WIDTH
    height = max(y + h for _, y, _, h in (each.place for each in panels)) * _UNIT_HEIGHT
    image = Image.new("RGB", (width, height + _TOP), "white")
    canvas = ImageDraw.Draw(image)
    canvas.text((_PAD, 16), title, fill=INK, font=ImageFont.load_default(20))
    for panel in panels:
        _panel(canvas, panel, since=since, until=until)
    file.parent.mkdir(parents=True, exist_ok=True)
    image.quantize(64).save(file, optimize=True)


def _panel(canvas: ImageDraw.ImageDraw, panel: Panel, *, since: float, until: float) -> None:
    x, y, w, h = panel.place
    left, top = x * _UNIT_WIDTH + _LEFT, y * _UNIT_HEIGHT + _TOP + _TITLE
    right = (x + w) * _UNIT_WIDTH - _PAD
    named = sorted(panel.curves, key=lambda name: -max(value for _, value in panel.curves[name]))
    num_lines = (min(len(named), _MAX_NAMED) + 1) // 2 if named else 1
    bottom = (y + h) * _UNIT_HEIGHT + _TOP - _AXIS - _LINE * num_lines - _PAD
    canvas.text((left - _LEFT + _PAD, top - 22), panel.title, fill=INK, font=ImageFont.load_default(15))
    canvas.rectangle((left, top, right, bottom), fill=PALE)
    highest = max((value for curve in panel.curves.values() for _, value in curve), default=0.0) or 1.0
    for part in range(3):
        level = bottom - (bottom - top) * part / 2
        canvas.line((left, level, right, level), fill=GRID)
        words = amount(highest * part / 2, panel.unit)
        canvas.text((left - 6, level), words, fill=_FAINT, font=ImageFont.load_default(11), anchor="rm")
        minutes = f"{(until - since) * part / 120:.2g} min"
        place = (left + (right - left) * part / 2, bottom + 4)
        anchor = ("la", "ma", "ra")[part]
        canvas.text(place, minutes, fill=_FAINT, font=ImageFont.load_default(11), anchor=anchor)
    if not named:
        middle = ((left + right) / 2, (top + bottom) / 2)
        canvas.text(middle, "no data", fill=_FAINT, font=ImageFont.load_default(14), anchor="mm")
    for number, name in enumerate(named):
        colour = COLOURS[number % len(COLOURS)]
        points = [
            (
                left + (right - left) * (at - since) / (until - since),
                bottom - (bottom - top) * value / highest,
            )
            for at, value in panel.curves[name]
        ]
        if len(points) > 1:
            canvas.line(points, fill=colour, width=2)
        if number < _MAX_NAMED:
            words = name if number < _MAX_NAMED - 1 else f"{name}{_others(len(named))}"
            place = (left + (right - left) / 2 * (number % 2), bottom + _AXIS + _LINE * (number // 2))
            canvas.text(place, words[:44], fill=colour, font=ImageFont.load_default(12))


def _others(num: int) -> str:
    return f" and {num - _MAX_NAMED} more" if num > _MAX_NAMED else ""


def legend_of(template: str, labels: Mapping[str, str]) -> str:
    """Name a curve by its panel's template, such as `{{lane}} p50`."""
    return re.sub(r"{{\s*(\w+)\s*}}", lambda found: labels.get(found[1], ""), template).strip()


def amount(value: float, unit: str) -> str:
    """Write a value as Grafana would, shortly."""
    if unit == "percentunit":
        return f"{value:.0%}"
    if unit == "bytes":
        return f"{value / 2**20:,.0f} MiB"
    if unit == "s" and 0 < value < 1:
        return f"{1000 * value:.3g} ms"
    return f"{value:,.3g}{' s' if unit == 's' else ''}" if value < 1000 else f"{value:,.0f}"
