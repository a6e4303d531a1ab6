import pytest

from longbatch.markdown import defused


@pytest.mark.parametrize(
    "text",
    [
        "![](https://example.org/?secret)",
        "\\![a](https://example.org)",
        "[click](javascript:alert(1))",
        "[a]: https://example.org\n\n[a]",
        "<img src=https://example.org>",
        "\\<img src=https://example.org>",
        "<https://example.org>",
        "<!-- hidden --><?php ?></p>",
    ],
)
def test_nothing_in_it_is_a_link_an_image_or_html(text: str) -> None:
    shown = defused(text)
    assert not any(live in shown for live in ("](", "]:", "<i", "<h", "<!", "<?", "</"))


def test_what_is_only_form_stays() -> None:
    text = "# Title\n\n- *one*, `[2]`\n- 1 < 2 > 0\n\n## Next [3]\n\n> _quoted_ \\[x\\]"
    assert defused(text) == text


def test_no_terminal_obeys_it() -> None:
    assert defused("a\x1b]0;title\x07\tb\x9b2J\nc") == "a]0;title\tb2J\nc"
