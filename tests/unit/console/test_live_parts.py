"""Parts of pages that many streams show alike."""

from itertools import count

from api.console.live import SharedParts


def test_a_part_is_rendered_once_for_each_state_and_viewer() -> None:
    parts, rendered = SharedParts(), count(1)

    def render() -> str:
        return str(next(rendered))

    first, second = object(), object()
    assert [parts.html("mine", first, render) for _ in range(3)] == ["1"] * 3
    assert parts.html("theirs", first, render) == "2"
    assert [parts.html("mine", second, render) for _ in range(3)] == ["3"] * 3
    for number in range(1000):
        parts.html(number, first, str)
    assert len(parts._parts) <= 64
