"""Plot how full an engine was over time: slots above, KV blocks below, for each contender."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

from bench.simulation.occupancy import Moment, average
from jobs.engines.capacity import Capacity

_WIDTH, _MARGIN, _GAP = 1200, 60, 46
_SLOTS_HEIGHT, _BLOCKS_HEIGHT = 60, 110
_INK, _PALE, _GRID = (40, 44, 52), (238, 240, 243), (205, 209, 214)
_FILLS = ((38, 110, 180), (196, 98, 40))


def draw(contenders: Mapping[str, Sequence[Moment]], capacity: Capacity, *, title: str, file: Path) -> None:
    """Draw a PNG whose panels share one time axis, so that makespans compare easily."""
    end_s = max(moments[-1].at_s for moments in contenders.values())
    panel = _GAP + _SLOTS_HEIGHT + 8 + _BLOCKS_HEIGHT
    image = Image.new("RGB", (_WIDTH, _MARGIN + panel * len(contenders) + 30), "white")
    canvas = ImageDraw.Draw(image)
    canvas.text((_MARGIN, 16), title, fill=_INK, font=ImageFont.load_default(20))
    top = _MARGIN
    for (name, moments), fill in zip(contenders.items(), _FILLS, strict=False):
        slots = average(moments, lambda moment: moment.slots) / capacity.max_batch_size
        blocks = average(moments, lambda moment: moment.booked_blocks) / capacity.max_blocks
        words = f"{name}: {moments[-1].at_s:.0f} s, slots {slots:.0%} full, blocks reserved {blocks:.0%}"
        canvas.text((_MARGIN, top + 12), words, fill=_INK, font=ImageFont.load_default(16))
        top += _GAP
        steps = [(moment.at_s, moment.slots / capacity.max_batch_size) for moment in moments]
        _panel(canvas, steps, top=top, height=_SLOTS_HEIGHT, end_s=end_s, fill=fill, label="slots")
        top += _SLOTS_HEIGHT + 8
        steps = [(moment.at_s, moment.booked_blocks / capacity.max_blocks) for moment in moments]
        _panel(canvas, steps, top=top, height=_BLOCKS_HEIGHT, end_s=end_s, fill=fill, label="blocks")
        top += _BLOCKS_HEIGHT
    _axis(canvas, top=top, end_s=end_s)
    file.parent.mkdir(parents=True, exist_ok=True)
    image.quantize(32).save(file, optimize=True)


def _panel(
    canvas: ImageDraw.ImageDraw,
    steps: Sequence[tuple[float, float]],
    *,
    top: int,
    height: int,
    end_s: float,
    fill: tuple[int, int, int],
    label: str,
) -> None:
    """Draw shares of a whole over time as filled steps on a pale background."""
    right = _WIDTH - _MARGIN // 2
    canvas.rectangle((_MARGIN, top, right, top + height), fill=_PALE)
    canvas.text((6, top + height // 2 - 8), label, fill=_INK, font=ImageFont.load_default(14))
    for (at_s, share), (until_s, _) in zip(steps, [*steps[1:], (steps[-1][0], 0.0)], strict=True):
        left, stop = (_MARGIN + (right - _MARGIN) * each / end_s for each in (at_s, until_s))
        if share > 0 and stop > left:
            canvas.rectangle((left, top + height * (1 - min(share, 1.0)), stop, top + height), fill=fill)


def _axis(canvas: ImageDraw.ImageDraw, *, top: int, end_s: float) -> None:
    right = _WIDTH - _MARGIN // 2
    for part in range(11):
        x = _MARGIN + (right - _MARGIN) * part / 10
        canvas.line((x, top, x, top + 5), fill=_GRID)
        canvas.text(
            (x - 10, top + 8), f"{end_s * part / 10:.0f} s", fill=_INK, font=ImageFont.load_default(12)
        )
