"""HTML as a person reads it in a browser."""

import pytest

from worker.extract.__main__ import read
from worker.extract.draft import ExtractionError, ExtractionLimits

LIMITS = ExtractionLimits(memory_bytes=2**31, seconds=60, max_pages=5000, max_characters=20_000_000)


def page(source: str) -> tuple[str, dict[str, str]]:
    draft = read("html", source.encode(), LIMITS)
    return draft.text(), {str(each["code"]): str(each["message"]) for each in draft.warnings}


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("<p>See <img src=a alt='Chart of sales'>", "See [Image: Chart of sales]"),
        ("<ruby>漢字<rp>(</rp><rt>かんじ</rt><rp>)</rp></ruby>を読む", "漢字(かんじ)を読む"),
        ("<ruby>東<rt>とう</ruby>京", "東(とう)京"),
        ("<table><tr><td>a<td>b<tr><td>c<td>d</table>", "a | b\nc | d"),
        ("<table><tr><td><p>a</p><td><p>b</p></table>", "a | b"),
        ("<details><summary>More</summary>hidden detail</details>", "More\nhidden detail"),
        ("<input value=Ann><input type=checkbox checked>Yes<input type=radio>No", "Ann [x] Yes [ ] No"),
        ("<p>Pick <select><option>A<option selected>B</select> now", "Pick B now"),
        ("<p>Pick <select><option>A<option>B</select>", "Pick A"),
        ("<textarea>\nline 1\n  line 2</textarea>", "line 1\n  line 2"),
        ("<ol start=3><li>three<li>four</ol>", "3. three\n4. four"),
        ("<iframe srcdoc='<p>inner &amp;amp; text'></iframe>", "inner & text"),
        ("<object data=x><p>fallback</object><canvas>no</canvas>", "fallback"),
        ("<svg><title>t</title><text>one</text></svg>", "one"),
        ("<p>10<sup>6</sup> of the 2<sup>nd</sup>", "10⁶ of the 2nd"),
        ("<p>costs <del>10</del> 12", "costs ~~10~~ 12"),
        ("<p>a<math><mfrac><mi>a</mi><mn>2</mn></mfrac></math>", "a(a)/(2)"),
        ("<template><p>no</p></template><p>yes", "yes"),
        (
            "<html xmlns='http://www.w3.org/1999/xhtml'><title/>x<a id='b'/>y <![CDATA[1 < 2]]></html>",
            "xy 1 < 2",
        ),
        ("<div>" * 50_000 + "deep", "deep"),
    ],
)
def test_a_page_is_read_as_it_is_shown(source: str, text: str) -> None:
    assert page(source)[0] == text


@pytest.mark.parametrize(
    "hidden",
    ["hidden", "style='display:none'", "style='color:red; VISIBILITY : hidden'", "style='mso-hide:all'"],
)
def test_hidden_text_is_left_out_and_counted(hidden: str) -> None:
    text, warnings = page(f"<p {hidden}>secret<p>shown")
    assert text == "shown"
    assert "6 characters" in warnings["hidden_parts"]


def test_a_page_that_a_script_draws_is_refused_as_such() -> None:
    with pytest.raises(ExtractionError, match="script"):
        page("<html><script>draw()</script><div id=root></div>")


def test_text_for_browsers_without_scripts_is_read_only_if_there_is_no_other() -> None:
    text, warnings = page("<body><script>x</script><noscript>Enable it</noscript><div></div>")
    assert (text, list(warnings)) == ("Enable it", ["parts_not_read"])
    assert page("<body><noscript>Enable it</noscript><p>Text")[0] == "Text"


def test_frames_are_named() -> None:
    text, warnings = page("<frameset><frame src=a><frame src=b><noframes><p>nf</noframes></frameset>")
    assert text == "nf"
    assert "2 frames" in warnings["parts_not_read"]


def test_lists_count_as_they_say() -> None:
    source = "<ol type=a start=2><li>x<li>y</ol><ol type=I><li>z</ol><ol reversed><li>two<li>one</ol>"
    assert page(source)[0].split("\n\n") == ["b. x\nc. y", "I. z", "2. two\n1. one"]


def test_each_reading_of_ruby_gets_parentheses_once() -> None:
    assert page("<ruby>漢<rp>(</rp><rt>かん</rt><rp>)</rp>字<rt>じ</rt></ruby>")[0] == "漢(かん)字(じ)"


def test_soft_hyphens_and_closed_dialogs_are_not_seen() -> None:
    source = "<p>Donau&shy;dampf&shy;schiff</p><dialog>no</dialog><dialog open>yes</dialog>"
    assert page(source)[0].split() == ["Donaudampfschiff", "yes"]
