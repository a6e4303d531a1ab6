"""The picture of a trace has a line for each span, below the one that it belongs to, where it was in time."""

from pathlib import Path

from PIL import Image

from bench.tracing.picture import draw, duration_of, in_order, label_of
from bench.tracing.receiver import SeenSpan

RUN, FAILED, TOKEN = (38, 110, 180), (190, 60, 60), (250, 220, 90)
NEAR = 12  # of 255: a picture has 256 colours
SECOND = 1_000_000_000


def span(
    name: str, span_id: str, parent_id: str, began: float, ended: float, *, is_error: bool = False
) -> SeenSpan:
    tokens = {"gen_ai.usage.input_tokens": 7, "gen_ai.usage.output_tokens": 3} if name == "chat m" else {}
    first = [("first_token", int((began + ended) / 2 * SECOND))] if name == "chat m" else []
    times = int(began * SECOND), int(ended * SECOND)
    return SeenSpan(name, "t" * 32, span_id, parent_id, *times, tokens, first, is_error)


SPANS = [
    span("chat m", "c", "b", 2, 3),
    span("webhook", "d", "b", 4, 4.0004, is_error=True),
    span("job", "b", "a", 0, 4),
    span("POST /v1/jobs", "a", "caller", 0, 0.1),
]


def test_spans_are_in_the_order_of_their_tree_whoever_comes_first() -> None:
    assert [(depth, each.span_id) for depth, each in in_order(SPANS)] == [
        (0, "a"),
        (1, "b"),
        (2, "c"),
        (2, "d"),
    ]


def test_a_label_tells_what_the_span_told() -> None:
    assert label_of(SPANS[0]) == "chat m  (7 + 3 tokens)"
    assert label_of(SPANS[2]) == "job"
    assert [duration_of(each) for each in SPANS] == ["1.00 s", "0.4 ms", "4.00 s", "100.0 ms"]


def test_each_span_is_drawn_where_it_was(tmp_path: Path) -> None:
    draw(SPANS, tmp_path / "made.png", title="one")
    with Image.open(tmp_path / "made.png") as opened:
        picture = opened.convert("RGB")
    width, height = picture.size
    places: dict[tuple[int, ...], list[int]] = {}
    for place in range(width * height):
        x, y = place % width, place // width
        seen = picture.getpixel((x, y))
        for colour in (RUN, FAILED, TOKEN):
            if isinstance(seen, tuple) and max(map(abs, map(int.__sub__, seen, colour))) < NEAR:
                places.setdefault(colour, []).append(x)
    assert min(places[RUN]) < min(places[TOKEN]) < max(places[RUN]) < min(places[FAILED])
    assert max(places[FAILED]) - min(places[FAILED]) >= 2, "even the shortest is seen"
