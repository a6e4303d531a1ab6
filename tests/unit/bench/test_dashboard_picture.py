"""The dashboard's picture has each panel in its place, with the curves that its queries found."""

from pathlib import Path

import pytest
from PIL import Image

from bench.dashboards.picture import Panel, amount, draw, legend_of

FIRST_COLOUR = (38, 110, 180)


@pytest.mark.parametrize(
    ("value", "unit", "words"),
    [
        *((0.25, "percentunit", "25%"), (3 * 2**20, "bytes", "3 MiB"), (0.0125, "s", "12.5 ms")),
        *((90.0, "s", "90 s"), (0.5, "short", "0.5"), (12_000.0, "short", "12,000")),
    ],
)
def test_a_value_is_written_in_the_panel_s_unit(value: float, unit: str, words: str) -> None:
    assert amount(value, unit) == words


def test_a_legend_names_the_labels_that_it_asks_for() -> None:
    labels = {"lane": "batch", "engine": "a"}
    assert legend_of("{{lane}} p50", labels) == "batch p50"
    assert legend_of("{{ engine }} {{reason}}", labels) == "a"


def colours_in(picture: Image.Image, *, right_half: bool) -> set[tuple[int, ...]]:
    width, height = picture.size
    half = picture.crop((width // 2, 0, width, height) if right_half else (0, 0, width // 2, height))
    return {colour for _, colour in half.getcolors(2**24) or [] if isinstance(colour, tuple)}


def test_each_panel_is_drawn_in_its_place(tmp_path: Path) -> None:
    full = Panel("full", "s", (0, 0, 8, 7), {"a": [(0.0, 1.0), (60.0, 2.0)]})
    empty = Panel("empty", "s", (8, 0, 8, 7), {})
    draw([full, empty], tmp_path / "made.png", title="two", since=0.0, until=60.0)
    with Image.open(tmp_path / "made.png") as opened:
        picture = opened.convert("RGB")
    assert FIRST_COLOUR in colours_in(picture, right_half=False)
    assert FIRST_COLOUR not in colours_in(picture, right_half=True)
