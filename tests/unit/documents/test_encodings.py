"""Texts in many encodings, with and without a label, and with damage."""

# ruff: noqa: RUF001  # letters of other alphabets are the point of this module

import pytest

from jobs.documents.kinds import UploadHints, find_kind
from worker.extract.__main__ import read
from worker.extract.draft import ExtractionError, ExtractionLimits, TextBuilder
from worker.extract.encodings import decode_labelled

LIMITS = ExtractionLimits(memory_bytes=2**31, seconds=60, max_pages=5000, max_characters=20_000_000)


def text_of(raw: bytes, kind: str = "txt", encoding: str = "") -> tuple[str, dict[str, str]]:
    draft = read(kind, raw, LIMITS, encoding=encoding)
    return draft.text(), {str(each["code"]): str(each["message"]) for each in draft.warnings}


@pytest.mark.parametrize(
    ("encoding", "text"),
    [
        ("cp1252", "L'été dernier, les élèves étaient très contents de leurs vacances à la mer."),
        ("cp1250", "Spotkanie rozpocznie się w poniedziałek. Proszę przesłać odpowiedź."),
        ("iso8859-2", "Schůzka začne v pondělí v deset hodin. Prosím, pošlete svou odpověď."),
        ("cp1254", "Toplantı pazartesi günü başlayacak. Lütfen cevabınızı gönderin, teşekkürler."),
        ("cp1257", "Susitikimas prasidės pirmadienį. Prašome kuo greičiau atsiųsti atsakymą."),
        ("cp1251", "Привет, мир"),
        ("koi8-r", "Встреча начнётся в понедельник в десять часов."),
        ("cp866", "Встреча начнётся в понедельник в десять часов."),
        ("mac_cyrillic", "Встреча начнётся в понедельник в десять часов."),
        ("cp1253", "Η συνάντηση αρχίζει τη Δευτέρα. Παρακαλώ στείλτε την απάντησή σας."),
        ("cp1255", "הפגישה תתחיל ביום שני בשעה עשר. נא לשלוח את תשובתכם בהקדם."),
        ("cp1256", "يبدأ الاجتماع يوم الاثنين في الساعة العاشرة."),
        ("cp874", "การประชุมจะเริ่มในวันจันทร์เวลาสิบนาฬิกา กรุณาส่งคำตอบโดยเร็ว"),
        ("cp932", "会議は月曜日の十時に始まります。できるだけ早くお返事をお送りください。"),
        ("euc_jp", "会議は月曜日の十時に始まります。できるだけ早くお返事をお送りください。"),
        ("iso2022_jp", "会議は月曜日の十時に始まります。"),
        ("iso2022_kr", "회의는 월요일 열 시에 시작합니다."),
        ("hz", "会议将于星期一上午十点开始。请尽快回复。"),
        ("gb18030", "会议将于星期一上午十点开始。请尽快回复。"),
        ("big5", "會議將於星期一上午十點開始。請盡快回覆。"),
        ("cp949", "회의는 월요일 열 시에 시작합니다. 가능한 한 빨리 답변을 보내 주시기 바랍니다."),
        ("johab", "회의는 월요일 열 시에 시작합니다. 가능한 한 빨리 답변을 보내 주시기 바랍니다."),
        ("utf-16-le", "Notes\nAll agreed on the plan.\n"),
        ("utf-16-be", "Заметки\nВсе согласны.\n"),
        ("utf-32-le", "Notes: größer\n"),
        ("utf-32-be", "Notes: größer\n"),
    ],
)
def test_an_encoding_without_a_label_is_found_and_reported(encoding: str, text: str) -> None:
    found, warnings = text_of(text.encode(encoding))
    assert found == text
    assert "encoding_guessed" in warnings


def test_iso_2022_cn_is_read() -> None:
    raw = b"\x1b$)A\x0e" + bytes(each & 0x7F for each in "会议".encode("gb2312")) + b"\x0f: ok\n"
    assert text_of(raw)[0] == "会议: ok\n"


@pytest.mark.parametrize("bad", [b"\xff", b"\xc3", b"\xe2\x82", b"\xf0\x9f"])
def test_utf_8_with_bad_bytes_stays_utf_8(bad: bytes) -> None:
    before, after = "Größe und Prüfung\n" * 400, "Ende für heute, größer\n"
    found, warnings = text_of(before.encode() + "Maß ".encode() + bad + b" x\n" + after.encode())
    assert found.startswith(before)
    assert found.endswith(after)
    assert "\ufffd" in found
    assert "line 401" in warnings["characters_replaced"]


def test_a_line_of_another_encoding_within_utf_8_is_read() -> None:
    raw = "Größe in UTF-8\n".encode() * 5 + "naïve café\n".encode("cp1252") + "größer\n".encode()
    found, warnings = text_of(raw)
    assert "naïve café" in found
    assert "line 6" in warnings["encoding_guessed"]


def test_nul_bytes_are_left_out_and_located() -> None:
    found, warnings = text_of(b"Line one\nLine two\0\0\0end\n" + b"more text\n" * 9)
    assert "two end" in found
    assert "3 NUL bytes" in warnings["characters_replaced"]
    assert "byte 17" in warnings["characters_replaced"]


def test_padding_and_separators_are_no_wide_characters() -> None:
    padded = b"Fixed     " + bytes(10) + b"Name      " + bytes(10) + b"\n"
    assert text_of(padded * 9)[0].startswith("Fixed     Name")
    assert text_of(b"abc\0def\0ghi\0")[0] == "abc def ghi"


def test_circled_numbers_of_japanese_mail_are_read() -> None:
    assert text_of(b"\x1b$B-!-j\x1b(B ok")[0] == "①㈱ ok"


def test_binary_bytes_are_refused_with_their_place() -> None:
    with pytest.raises(ExtractionError, match="at byte 4"):
        read("txt", b"text" + bytes(range(8)) * 50, LIMITS)


def test_a_named_encoding_takes_precedence_over_guesses() -> None:
    text = "Où est-il ?"
    found, warnings = text_of(text.encode("cp850"), encoding="cp850")
    assert (found, warnings) == (text, {})
    assert text_of("価格は100円".encode("euc_jp"), encoding="euc-jp")[0] == "価格は100円"


@pytest.mark.parametrize(
    ("label", "encoding", "text"),
    [
        ("iso-8859-1", "cp1252", "It’s 12 € – “net”"),
        ("us-ascii", "cp1252", "It’s 12 €"),
        ("gb2312", "gbk", "朱镕基"),
        ("shift_jis", "cp932", "①㈱髙島屋"),
        ("ks_c_5601-1987", "cp949", "똠방각하"),
        ("iso-8859-8-i", "iso8859-8", "שלום"),
        ("iso-2022-kr", "iso2022_kr", "회의는"),
        ("utf-8", "utf-8", "Größe"),
        ("iso-8859-1", "utf-8", "Prüfung für Größe"),
        ("x-unknown", "utf-8", "Größe"),
        ("rot13", "utf-8", "Größe"),
        ("utf-16", "utf-8", "Größe"),
    ],
)
def test_labels_are_read_as_browsers_do_unless_they_are_wrong(label: str, encoding: str, text: str) -> None:
    assert decode_labelled(text.encode(encoding), label, TextBuilder(LIMITS)) == text


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-32"])
def test_html_keeps_no_byte_order_mark(encoding: str) -> None:
    assert text_of("<html><p>Maß</p>".encode(encoding), "html")[0] == "Maß"


def test_a_long_text_is_guessed_from_a_sample_with_its_letters() -> None:
    raw = b"plain ascii line\n" * 60_000 + "Привет, это последняя строка журнала.\n".encode("cp1251")
    assert text_of(raw)[0].endswith("Привет, это последняя строка журнала.\n")


@pytest.mark.parametrize(
    "text",
    ["An email… Email-ception!!!", "It’s 5 € – “fine”.", "Wait…", "Größe: 5 • Preis: 9 €", "Ça va… à demain"],
)
def test_a_short_text_of_windows_is_no_text_of_dos(text: str) -> None:
    assert text_of(text.encode("cp1252"))[0] == text


@pytest.mark.parametrize(
    "text",
    ["Die Prüfung der Größe von Äpfeln läuft über fünf Jahre.", "L'été dernier, la fenêtre était fermée."],
)
def test_a_text_of_dos_is_read_as_such(text: str) -> None:
    assert text_of(text.encode("cp850"))[0] == text


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
def test_chinese_in_utf16_needs_no_mark_although_its_one_ends_in_nul(encoding: str) -> None:
    text = "本合同自双方签字之日起生效，有效期为一年。\n第一条 一般规定\n"
    raw = text.encode(encoding)
    assert find_kind(UploadHints(raw, raw, "a.txt")) == "txt"
    assert text_of(raw)[0] == text
