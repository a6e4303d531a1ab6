"""Control tokens that absorb the white space around them, found in time that grows with the text alone."""

import pytest

from jobs.prompts.chat_template import ControlToken, control_pattern, token_id

MASK = ControlToken("<mask>", 1, strips_left=True, strips_right=True)
END = ControlToken("</s>", 2)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("a \n <mask>\t b", [(1, " \n <mask>\t ")]),
        ("<mask>", [(1, "<mask>")]),
        ("a </s>  <mask>", [(2, "</s>"), (1, "  <mask>")]),
        ("<mask> <mask>", [(1, "<mask> "), (1, "<mask>")]),
        (" mask> < mask>", []),
    ],
)
def test_a_token_absorbs_all_white_space_around_it(text: str, found: list[tuple[int, str]]) -> None:
    assert [(token_id(each), each[0]) for each in control_pattern([MASK, END]).finditer(text)] == found


def test_a_long_run_of_blanks_is_read_once() -> None:
    """Read from each blank on, a million of them would take hours, under the interpreter lock."""
    text = "a" + " \n" * 500_000 + "b"
    assert control_pattern([MASK, END]).search(text) is None
