"""The text of Outlook's messages: msg files and winmail.dat, in all forms of a body."""

# ruff: noqa: E501, RUF001  # tables of mails, texts in many alphabets

import struct

import pytest
from compressed_rtf import compress

from formats.mails import (
    PNG,
    mail,
    make_msg_of,
    make_msg_with_mail,
    make_tnef,
    make_tnef_with_mail,
    packed,
    part,
    several,
)
from worker.extract.__main__ import read
from worker.extract.draft import ExtractionLimits, TextBuilder
from worker.extract.rtf_html import html_of_rtf

LIMITS = ExtractionLimits(memory_bytes=2**31, seconds=60, max_pages=100, max_characters=1_000_000)
SUBJECT, SUBJECT_8, TO = 0x0037001F, 0x0037001E, 0x0E04001F
BODY, BODY_8, HTML, RTF = 0x1000001F, 0x1000001E, 0x10130102, 0x10090102
NAME, DATA, CONTENT_ID = 0x3707001F, 0x37010102, 0x3712001F
CODE_PAGE, INTERNET_CODE_PAGE = 0x3FFD0003, 0x3FDE0003
PDF = b"%PDF-1.4" * 1000
ENCAPSULATED = (
    rb"{\rtf1\ansi\ansicpg1252\fromhtml1 \deff0{\fonttbl{\f0\fswiss Arial;}{\f1\fcharset204 Arial;}}"
    rb"{\colortbl\red0\green0\blue0;}\uc1\pard\plain\f0 {\*\htmltag19 <html>}{\*\htmltag64 <p>}\htmlrtf {\htmlrtf0 "
    rb"The sea \'96 calm \u9731?. {\*\htmltag84 <b>}\htmlrtf {\b\htmlrtf0 \f1 \'c4\'e0\f0 {\*\htmltag92 </b>}\htmlrtf }\htmlrtf0"
    rb"{\*\htmltag72 </p>}\htmlrtf\par}\htmlrtf0{\*\mhtmltag1 <no>}\par {\*\htmltag27 </html>}}"
)


def wide(text: str) -> bytes:
    return text.encode("utf-16-le")


def number(value: int) -> bytes:
    return struct.pack("<Q", value)


def opened(data: bytes, kind: str = "msg") -> TextBuilder:
    return read(kind, data, LIMITS)


def body_of(draft: TextBuilder) -> str:
    return " ".join(draft.text().partition("\n\n")[2].split())


def in_mail(tnef: bytes) -> TextBuilder:
    """A mail whose content is in this winmail.dat."""
    dat = packed(tnef, 'application/ms-tnef; name="winmail.dat"')
    return opened(mail(several("mixed", part(" "), dat)), "eml")


@pytest.mark.parametrize(
    ("code_page", "encoding", "text"),
    [
        (1251, "cp1251", "Договор"),
        (1250, "cp1250", "Zażółć"),
        (1253, "cp1253", "Γειά σου"),
        (932, "cp932", "①㈱髙島屋"),
        (936, "gbk", "朱镕基"),
        (949, "cp949", "똠방각하"),
        (950, "big5", "政策"),
        (1255, "cp1255", "שלום"),
        (20866, "koi8-r", "Договор"),
        (28592, "iso8859-2", "Zażółć"),
        (65001, "utf-8", "Größe €"),
        (50220, "iso-2022-jp", "請求書"),
    ],
)
def test_texts_that_are_not_unicode_are_in_the_message_s_code_page(
    code_page: int, encoding: str, text: str
) -> None:
    for name in (CODE_PAGE, INTERNET_CODE_PAGE):
        values = {SUBJECT_8: text.encode(encoding), BODY_8: text.encode(encoding), name: number(code_page)}
        draft = opened(make_msg_of(values))
        assert (draft.title, body_of(draft)) == (text, text)
    html = f"<p>{text}</p>".encode(encoding)
    assert (
        body_of(opened(make_msg_of({TO: wide("Bob"), HTML: html, INTERNET_CODE_PAGE: number(code_page)})))
        == text
    )


def test_html_without_a_code_page_may_declare_its_own() -> None:
    html = '<meta charset="windows-1251"><p>Договор</p>'.encode("cp1251")
    assert body_of(opened(make_msg_of({TO: wide("Bob"), HTML: html}))) == "Договор"


def test_a_body_of_rtf_alone_is_read() -> None:
    plain = rb"{\rtf1\ansi\ansicpg1251\deff0 The sea \endash  \'c4\'e0.\par Second.}"
    assert body_of(opened(make_msg_of({TO: wide("Bob"), RTF: compress(plain)}))) == "The sea – Да. Second."
    assert (
        body_of(opened(make_msg_of({TO: wide("Bob"), RTF: compress(plain, False)})))
        == "The sea – Да. Second."
    )
    assert (
        body_of(opened(make_msg_of({TO: wide("Bob"), RTF: compress(ENCAPSULATED)}))) == "The sea – calm ☃. Да"
    )
    damaged = compress(plain)[:-9] + b"\0" * 9
    draft = opened(make_msg_of({SUBJECT: wide("Late"), RTF: damaged}))
    assert [warning["code"] for warning in draft.warnings] == ["parts_damaged"]
    assert "Subject: Late" in draft.text()


def test_html_within_rtf_is_html_again() -> None:
    html = html_of_rtf(ENCAPSULATED)
    assert html is not None
    assert html.replace("\r\n", "") == "<html><p>The sea – calm ☃. <b>Да</b></p></html>"
    assert html_of_rtf(rb"{\rtf1 plain}") is None
    assert html_of_rtf(b"{\\rtf1\\fromhtml1 " + b"{" * 100_000 + b"x") == "x"


def test_a_placeholder_gives_way_to_html() -> None:
    values = {TO: wide("Bob"), BODY: wide("Please use an HTML viewer."), HTML: b"<p>Nine days late.</p>"}
    assert body_of(opened(make_msg_of(values))) == "Nine days late."


def test_a_mail_within_is_read_in_its_place() -> None:
    inner = {SUBJECT: wide("Inner"), TO: wide("Carl"), BODY: wide("Pay invoice 889.")}
    draft = opened(make_msg_with_mail({SUBJECT: wide("Outer"), BODY: wide("See attached.")}, inner))
    assert draft.title == "Outer"
    assert body_of(draft) == (
        "See attached. --- Attached mail --- To: Carl Subject: Inner Pay invoice 889. --- End of attached mail ---"
    )
    deep = opened(make_msg_with_mail({SUBJECT: wide("Outer")}, inner, num_levels=50))
    assert [warning["code"] for warning in deep.warnings] == ["parts_not_read"]


def test_attached_files_are_kept_and_pictures_of_the_html_are_not() -> None:
    files = [
        {NAME: wide("a.pdf"), DATA: PDF},
        {DATA: PDF[:5000]},
        {NAME: wide("logo.png"), DATA: PNG, CONTENT_ID: wide("logo@x")},
        {NAME: wide("linked.doc"), 0x37050003: number(4)},
    ]
    values = {SUBJECT: wide("Files"), HTML: b'<p>Hello <img src="cid:logo@x"></p>'}
    draft = opened(make_msg_of(values, files))
    assert [(file.name, file.data) for file in draft.attachments] == [
        ("a.pdf", PDF),
        ("attachment-2.bin", PDF[:5000]),
    ]
    assert draft.text().endswith("Attachments: a.pdf, attachment-2.bin, linked.doc\n")
    assert "linked.doc" in str(draft.warnings[0]["message"])


def test_a_meeting_has_its_times() -> None:
    ticks = 133_000_000_000_000_000
    values = {
        SUBJECT: wide("Board"),
        BODY: wide("Bring figures."),
        0x00600040: number(ticks),
        0x00610040: number(ticks),
    }
    assert body_of(opened(make_msg_of(values))) == (
        "Start: 2022-06-18T04:26:40+00:00 End: 2022-06-18T04:26:40+00:00 Bring figures."
    )


def test_winmail_is_read_like_the_message_it_is() -> None:
    files = [("Grüße.pdf", b"%PDF-1.4\0\0"), ("b.txt", b"abc")]
    for values in (
        {BODY: wide("Nine days.")},
        {HTML: b"<p>Nine days.</p>"},
        {RTF: compress(rb"{\rtf1 Nine days.}")},
    ):
        draft = in_mail(make_tnef(values, files))
        assert body_of(draft) == "Nine days. Attachments: Grüße.pdf, b.txt"
        assert [(file.name, file.data) for file in draft.attachments] == files
    assert body_of(in_mail(make_tnef({BODY_8: "Да".encode("cp1251")}, code_page=1251))) == "Да"
    inner = make_tnef({SUBJECT: wide("Inner"), BODY: wide("Pay invoice 889.")})
    text = body_of(in_mail(make_tnef_with_mail({BODY: wide("See attached.")}, inner)))
    assert "See attached. --- Attached mail --- Subject: Inner Pay invoice 889." in text


def test_damage_of_winmail_is_a_warning_and_what_is_before_it_is_read() -> None:
    whole = make_tnef({BODY: wide("Nine days.")}, [("a.pdf", b"%PDF-1.4")])
    for data, code in (
        (whole[:-20], "parts_damaged"),
        (b"\0" * 60, "parts_damaged"),
        (whole[:6], "parts_not_read"),
    ):
        draft = in_mail(data)
        assert code in [warning["code"] for warning in draft.warnings]
        assert "winmail.dat" in str(draft.warnings)
        assert draft.text().startswith("From: Ann")
    assert "Nine days." in in_mail(whole[:-20]).text()
    for at in range(6, len(whole), 7):  # whatever byte is wrong
        in_mail(whole[:at] + b"\xff" + whole[at + 1 :])
