"""Texts decoded by the label of their encoding, as browsers and mail programs read it."""

# ruff: noqa: RUF001  # texts in many alphabets

import pytest

from worker.extract.draft import ExtractionLimits, TextBuilder
from worker.extract.encodings import decode_labelled


def decoded(raw: bytes, label: str) -> tuple[str, list[object]]:
    draft = TextBuilder(
        ExtractionLimits(memory_bytes=2**30, seconds=10, max_pages=100, max_characters=10_000)
    )
    text = decode_labelled(raw, label, draft)
    return text, [warning["code"] for warning in draft.warnings]


@pytest.mark.parametrize(
    ("text", "encoding", "label"),
    [
        ("It’s 12 € – “net”", "cp1252", "iso-8859-1"),
        ("It’s 12 €", "cp1252", " US-ASCII "),
        ("朱镕基", "gbk", "gb2312"),
        ("㐀朱", "gb18030", "GBK"),
        ("똠방각하", "cp949", "ks_c_5601-1987"),
        ("똠방각하", "cp949", "euc-kr"),
        ("①㈱髙島屋", "cp932", "shift_jis"),
        ("裏恒銹", "big5hkscs", "big5"),
        ("שלום", "iso8859_8", "iso-8859-8-i"),
        ("ığüşöç", "cp1254", "iso-8859-9"),
        ("สวัสดี", "cp874", "tis-620"),
        ("안녕하세요", "iso2022_kr", "iso-2022-kr"),
        ("你好", "hz", "hz-gb-2312"),
        ("Grüße", "cp850", "cp-850"),
        ("Привет", "cp1251", "x-windows-1251"),
        ("Grüße", "utf-7", "utf-7"),
        ("Grüße", "utf-16", "utf-8"),
        ("Grüße", "utf-8-sig", "iso-8859-1"),
        ("日本語ｶﾅ", "iso2022_jp_ext", "iso-2022-jp"),
    ],
)
def test_a_label_means_what_programs_write_under_it(text: str, encoding: str, label: str) -> None:
    assert decoded(text.encode(encoding), label) == (text, [])


def test_iso_2022_jp_may_hold_the_characters_that_windows_added() -> None:
    assert decoded(b"\x1b$B-!-j\x1b(B and \x1b$B$3$s\x1b(B", "iso-2022-jp") == ("①㈱ and こん", [])


@pytest.mark.parametrize("label", ["x-unknown", "", "default", "unicode_escape", "base64", "\udc80", "idna"])
def test_an_unknown_label_is_ignored(label: str) -> None:
    assert decoded("Die Prüfung \\u0041".encode(), label) == ("Die Prüfung \\u0041", [])
    text, warnings = decoded("Die Prüfung ist für das Auto und die Straße.".encode("cp1252"), label)
    assert (text, warnings) == ("Die Prüfung ist für das Auto und die Straße.", ["encoding_guessed"])


def test_bytes_that_contradict_most_of_the_label_are_guessed() -> None:
    for label in ("us-ascii", "windows-1251", "iso-8859-1", "koi8-r"):
        assert decoded("Größe, Maß".encode(), label) == ("Größe, Maß", ["encoding_guessed"])
    assert decoded("Die Prüfung".encode(), "us-ascii") == ("Die Prüfung", ["encoding_guessed"])
    raw = "Die Prüfung ist für das Auto und die Straße.".encode("cp1252")
    assert decoded(raw, "utf-8") == ("Die Prüfung ist für das Auto und die Straße.", ["encoding_guessed"])


def test_a_few_bytes_that_are_not_valid_are_replaced() -> None:
    raw = "Größe und ".encode() + b"\xff" + " Übung".encode()
    assert decoded(raw, "utf-8") == ("Größe und \ufffd Übung", ["characters_replaced"])
