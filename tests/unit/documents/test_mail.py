"""The text of mails as programs write them: parts, encodings, mails within, files, and damage."""

# ruff: noqa: E501, RUF001  # tables of mails, texts in many alphabets

import base64
import quopri
from collections.abc import Sequence

import pytest

from formats.mails import HEAD, PNG, mail, packed, part, several
from jobs.documents.kinds import HEAD_BYTES, UploadHints, find_kind
from worker.extract.__main__ import read
from worker.extract.draft import ExtractionError, ExtractionLimits, TextBuilder

LIMITS = ExtractionLimits(memory_bytes=2**31, seconds=60, max_pages=100, max_characters=1_000_000)
PLAIN = "text/plain; charset=utf-8"
HTML = "text/html; charset=utf-8"
INNER = mail(part("Please pay invoice 889."), head="From: Carl <c@example.org>\nSubject: Inner\n")


def opened(data: bytes) -> TextBuilder:
    return read("eml", data, LIMITS)


def body_of(data: bytes) -> str:
    """The text after the headers, white space collapsed."""
    return " ".join(opened(data).text().partition("\n\n")[2].split())


def codes(draft: TextBuilder) -> list[object]:
    return [warning["code"] for warning in draft.warnings]


def files_of(draft: TextBuilder) -> list[str]:
    return [file.name for file in draft.attachments]


def test_all_text_parts_are_read_in_order() -> None:
    picture = packed(PNG, 'image/png; name="crack.png"', "Content-Disposition: inline")
    both = several("alternative", part("Three."), part("<p>Three.</p>", HTML))
    draft = opened(mail(several("mixed", part("One."), picture, part("Two."), both, part("Footer."))))
    assert " ".join(draft.text().partition("\n\n")[2].split()) == (
        "One. Two. Three. Footer. Attachments: crack.png"
    )
    assert [(file.name, file.data) for file in draft.attachments] == [("crack.png", PNG)]


@pytest.mark.parametrize(
    ("plain", "html", "expected"),
    [
        ("The report is late by 9 days.", "<p>The report is late by <b>9 days</b>.</p>", "The report is late by 9 days."),
        ("", "<p>Late by 9 days.</p>", "Late by 9 days."),
        (" \n ", "<p>Late.</p>", "Late."),
        ("This message needs an HTML viewer.", "<p>Late.</p>", "Late."),
        ("Ihr E-Mail-Programm unterstützt kein HTML.", "<p>Zu spät.</p>", "Zu spät."),
        ("Votre messagerie n'affiche pas le HTML.", "<p>En retard.</p>", "En retard."),
        ("Su cliente de correo no admite HTML.", "<p>Tarde.</p>", "Tarde."),
        ("このメールはHTML形式です。", "<p>納品は九日遅れます。</p>", "納品は九日遅れます。"),
        ("您的邮件客户端不支持HTML。", "<p>货物晚到九天。</p>", "货物晚到九天。"),
        ("Просмотрите письмо в формате HTML.", "<p>Опоздание.</p>", "Опоздание."),
        ("View this email in your browser: http://a.example/1", "<p>Prices rise by 3%.</p>", "Prices rise by 3%."),
        ("Prices rise.", "<p>Prices rise. From May on, each order costs 3% more.</p>",
         "Prices rise. From May on, each order costs 3% more."),
        ("Code 4711 opens it.", "<p>A parcel waits for you in the locker at the station.</p>",
         "Code 4711 opens it. A parcel waits for you in the locker at the station."),
    ],
)  # fmt: skip
def test_the_form_of_a_mail_that_tells_more_is_read(plain: str, html: str, expected: str) -> None:
    assert body_of(mail(several("alternative", part(plain), part(html, HTML)))) == expected
    related = several("related", part(html, HTML), packed(PNG, "image/png", "Content-ID: <a>"))
    assert expected in body_of(mail(several("alternative", part(plain), related)))


def test_a_form_of_the_body_may_have_a_name() -> None:
    named = part("<p>Nine days late.</p>", f'{HTML}; name="body.html"', "Content-Disposition: inline")
    draft = opened(mail(several("alternative", part("Needs HTML.", f"{PLAIN}; name=body.txt"), named)))
    assert draft.text().endswith("\n\nNine days late.")


def test_files_in_either_form_are_kept() -> None:
    pdf = packed(b"%PDF-1.4", "application/pdf; name=a.pdf")
    rich = several("mixed", part("<p>One two three.</p>", HTML), pdf, part("<p>Four.</p>", HTML))
    draft = opened(mail(several("alternative", part("One two three. Four."), rich)))
    assert files_of(draft) == ["a.pdf"]
    assert draft.text().count("One two three") == 1


def test_pictures_that_html_shows_are_decoration() -> None:
    logo = packed(PNG, "image/png; name=logo.png", "Content-ID: <logo@x>")
    shown = part('<p>Hello <img src="cid:logo@x"></p>', HTML)
    assert files_of(opened(mail(several("related", shown, logo)))) == []
    only = part('<p><img src="cid:logo@x"></p>', HTML)
    assert files_of(opened(mail(several("related", only, logo)))) == ["logo.png"]
    assert files_of(opened(mail(several("related", part("<p>Hi</p>", HTML), logo)))) == ["logo.png"]


def test_mails_within_are_read_with_their_headers() -> None:
    within = part(INNER, "message/rfc822", "Content-Disposition: attachment")
    text = body_of(mail(several("mixed", part("See attached."), within, part("Footer."))))
    assert text == (
        "See attached. --- Attached mail --- From: Carl <c@example.org> Subject: Inner Please pay invoice 889. "
        "--- End of attached mail --- Footer."
    )
    digest = several("digest", b"\n" + INNER, b"\n" + INNER.replace(b"889", b"890"))
    text = body_of(mail(digest))
    assert text.index("invoice 889") < text.index("invoice 890")
    encoded = packed(INNER, "message/rfc822")
    assert "Subject: Inner Please pay invoice 889." in body_of(mail(several("mixed", encoded)))
    as_file = packed(INNER, "application/octet-stream; name=fwd.eml")
    assert "Subject: Inner Please pay invoice 889." in body_of(mail(several("mixed", as_file)))
    deep = INNER
    for _ in range(5):
        deep = mail(part(deep, "message/rfc822"))
    assert body_of(deep).count("Attached mail") == 5


def test_a_report_of_a_delivery_is_read() -> None:
    status = part("Reporting-MTA: dns; a.example\n\nFinal-Recipient: rfc822; b@example.org\nAction: failed",
                  "message/delivery-status")  # fmt: skip
    returned = part("Subject: Lost letter\nFrom: me@example.org", "text/rfc822-headers")
    report = several("report", part("It could not be delivered."), status, returned)
    text = body_of(mail(report))
    for each in ("could not be delivered", "Final-Recipient: rfc822; b@example.org", "Subject: Lost letter"):
        assert each in text


def test_text_files_are_read_under_their_names() -> None:
    table = packed(
        "name;sum\nÄrger;4200".encode(),
        "text/csv; charset=utf-8",
        "Content-Disposition: attachment; filename=sums.csv",
    )
    page = part("<h1>Plan</h1>", "text/html", "Content-Disposition: attachment; filename=plan.html")
    draft = opened(mail(several("mixed", part("See files."), table, page)))
    assert draft.text().endswith(
        "See files.\n\n--- Attached file: sums.csv ---\n\nname;sum\nÄrger;4200\n\n"
        "--- Attached file: plan.html ---\n\n# Plan\n\n\nAttachments: sums.csv, plan.html\n"
    )
    assert draft.warnings == []
    long = packed(b"line\n" * 100_000, "text/plain; name=long.log")
    assert files_of(opened(mail(several("mixed", part("a"), long)))) == ["long.log"]


@pytest.mark.parametrize(
    ("headers", "name"),
    [
        (["application/pdf"], "attachment-1.pdf"),
        (["application/x-who-knows"], "attachment-1.bin"),
        (["application/octet-stream; name*=utf-8''Gr%C3%BC%C3%9Fe.pdf"], "Grüße.pdf"),
        (['application/pdf; name*0="long "; name*1="name.pdf"'], "long name.pdf"),
        (['application/pdf; name="=?iso-2022-jp?B?GyRCQEE1YT1xGyhCLnBkZg==?="'], "請求書.pdf"),
        (["application/pdf", 'Content-Disposition: attachment; filename="C:\\\\Temp\\\\a b.pdf"'], "a b.pdf"),
        (["application/pdf", "Content-Disposition: attachment; filename=Rücklage.pdf"], "Rücklage.pdf"),
        (["text/plain; name=odd.pdf"], "odd.pdf"),
    ],
)  # fmt: skip
def test_every_file_is_attached_under_a_name(headers: Sequence[str], name: str) -> None:
    kind, *others = headers
    draft = opened(mail(several("mixed", part("See the file."), packed(b"%PDF-1.4 ...", kind, *others))))
    assert files_of(draft) == [name]
    assert f"Attachments: {name}" in draft.text()
    alone = opened(mail(packed(b"%PDF-1.4 ...", kind, *others)))
    assert files_of(alone) == [name]


@pytest.mark.parametrize(
    ("text", "encoding", "label"),
    [
        ("It’s 12 € – “net”", "cp1252", "iso-8859-1"),
        ("朱镕基同志", "gbk", "gb2312"),
        ("똠방각하", "cp949", "ks_c_5601-1987"),
        ("①㈱髙島屋", "cp932", "shift_jis"),
        ("שלום לכולם", "iso8859_8", "iso-8859-8-i"),
        ("Die Prüfung ist fertig für die Größe.", "utf-8", "x-unknown"),
        ("Die Prüfung ist fertig für die Größe.", "cp1252", "unknown-8bit"),
        ("Zażółć", "iso8859_2", "iso-8859-2"),
    ],
)
def test_encodings_are_those_that_programs_mean(text: str, encoding: str, label: str) -> None:
    raw = text.encode(encoding)
    assert (
        body_of(mail(part(raw, f'text/plain; charset="{label}"', "Content-Transfer-Encoding: 8bit"))) == text
    )
    assert body_of(mail(packed(raw, f"text/plain; charset={label}"))) == text
    printable = part(
        quopri.encodestring(raw),
        f"text/plain; charset={label}",
        "Content-Transfer-Encoding: quoted-printable",
    )
    assert body_of(mail(printable)) == text
    assert body_of(mail(part(f"<p>{text}</p>".encode(encoding), f"text/html; charset={label}"))) == text
    word = f"=?{label}?B?{base64.b64encode(raw).decode()}?="
    assert opened(f"Subject: {word}\nTo: b@example.org\n\nHello".encode()).title == text


@pytest.mark.parametrize("encoding", ["utf-8", "cp1252"])
def test_a_mail_that_declares_nothing_is_read(encoding: str) -> None:
    raw = "From: Jürgen <j@example.org>\nSubject: Grüße\n\nDie Prüfung für die Größe 40 ist am Montag.\n".encode(
        encoding
    )
    draft = opened(raw)
    assert draft.title == "Grüße"
    assert "Jürgen" in draft.text()
    assert "Die Prüfung für die Größe 40 ist am Montag." in draft.text()


def test_the_charset_of_html_may_be_inside() -> None:
    html = '<html><head><meta charset="windows-1251"></head><body>Договор</body></html>'
    assert body_of(mail(part(html.encode("cp1251"), "text/html"))) == "Договор"
    assert body_of(mail(part(html.encode("cp1251"), "text/html; charset=us-ascii"))) == "Договор"


def test_encoded_words_may_split_a_character_and_stand_in_a_row() -> None:
    first, second = (base64.b64encode(half).decode() for half in ("日".encode()[:2], "日".encode()[2:]))
    head = f"Subject: =?utf-8?B?{first}?=\n =?utf-8?B?{second}?= and =?iso-8859-1?Q?caf=E9_=80?=\nTo: a@b.example\n"
    assert opened(f"{head}\nHello".encode()).title == "日 and café €"


def test_bytes_that_are_no_text_spoil_no_mail() -> None:
    word = base64.b64encode(b"\0\x81\xff\0").decode()
    draft = opened(f"Subject: =?x-unknown?B?{word}?= late\nTo: b@example.org\n\nHello".encode())
    assert draft.text().endswith("late\n\nHello")
    odd = part(b"He\0llo \x81\x8d\xff.", "text/plain; charset=x-unknown")
    assert "llo" in opened(mail(several("mixed", part("First."), odd))).text()


def test_format_flowed_joins_its_lines() -> None:
    text = "This is a \nlong line.\n> quoted \n> too\n-- \nAnn\n"
    shown = "This is a long line.\n> quoted too\n-- \nAnn"
    assert shown in opened(mail(part(text, "text/plain; format=flowed"))).text()
    text = "長い \n行。\n"
    assert "長い行。" in opened(mail(part(text, f"{PLAIN}; format=flowed; delsp=yes"))).text()
    assert opened(mail(part("a \n" * 300_000, "text/plain; format=flowed"))).text().endswith("a a a ")


def test_a_calendar_entry_is_read() -> None:
    calendar = (
        "BEGIN:VCALENDAR\nMETHOD:REQUEST\nBEGIN:VTIMEZONE\nTZID:Europe/Berlin\nEND:VTIMEZONE\nBEGIN:VEVENT\n"
        "SUMMARY;LANGUAGE=en:Board\n  meeting\nDTSTART;TZID=Europe/Berlin:20260314T090000\nDTEND:20260314T100000Z\n"
        'LOCATION:Room 5\\, ground floor\nORGANIZER;CN="Ann: chair":mailto:ann@example.org\n'
        "ATTENDEE;CN=Bob;ROLE=REQ-PARTICIPANT:MAILTO:bob@example.org\nATTENDEE:mailto:c@example.org\n"
        "DESCRIPTION:Bring the\\nfigures.\nBEGIN:VALARM\nDESCRIPTION:Reminder\nEND:VALARM\nEND:VEVENT\nEND:VCALENDAR\n"
    )
    text = opened(mail(part(calendar, "text/calendar; charset=utf-8; method=REQUEST"))).text()
    assert text.endswith(
        "Invitation:\nSummary: Board meeting\nStart: 2026-03-14 09:00 (Europe/Berlin)\nEnd: 2026-03-14 10:00 UTC\n"
        "Place: Room 5, ground floor\nOrganizer: Ann: chair <ann@example.org>\n"
        "Attendees: Bob <bob@example.org>, c@example.org\nDescription: Bring the\nfigures."
    )
    invitation = several("alternative", part("Bring the figures."), part(calendar, "text/calendar"))
    assert body_of(mail(invitation)).count("figures") == 1
    assert "Start: 2026-03-14" in body_of(mail(invitation))


def test_signed_mails_are_read_and_encrypted_ones_are_not_taken_for_empty() -> None:
    signature = packed(b"\0", "application/pkcs7-signature; name=smime.p7s")
    assert (
        opened(mail(several("signed", part("Signed text."), signature))).text().endswith("\n\nSigned text.")
    )
    content = part("Opaque text.")
    data_type = bytes.fromhex("06092a864886f70d010701")
    octets = b"\x04\x82" + len(content).to_bytes(2, "big") + content
    pieces = b"\x24\x80" + b"".join(
        b"\x04\x05" + content[at : at + 5] for at in range(0, len(content) // 5 * 5, 5)
    )
    for string in (
        octets,
        pieces + b"\x04" + bytes([len(content) % 5]) + content[-(len(content) % 5) :] + b"\0\0",
    ):
        sealed = (
            b"\x30\x80"
            + bytes.fromhex("06092a864886f70d010702")
            + b"\xa0\x80\x30\x80"
            + data_type
            + b"\xa0\x80"
            + string
        )
        assert (
            body_of(mail(packed(sealed, "application/pkcs7-mime; smime-type=signed-data"))) == "Opaque text."
        )
    enveloped = packed(bytes.fromhex("308006092a864886f70d010703"), "application/pkcs7-mime; name=smime.p7m")
    pgp = several(
        "encrypted",
        part("Version: 1", "application/pgp-encrypted"),
        part("-----BEGIN", "application/octet-stream"),
    )
    inline = part("-----BEGIN PGP MESSAGE-----\n\nhQEMA\n-----END PGP MESSAGE-----\n")
    for secret in (enveloped, pgp, inline):
        with pytest.raises(ExtractionError) as refused:
            opened(mail(secret))
        assert refused.value.code == "document_encrypted"
        draft = opened(mail(several("mixed", part("Key below."), secret)))
        assert codes(draft) == ["parts_not_read"]
        assert "Key below." in draft.text()


@pytest.mark.parametrize(
    "content",
    [
        part("--b\nContent-Type: text/plain\n\nFirst.\n--b\nContent-Type: text/plain\n\nSecond.\n--b--\n", "multipart/mixed"),
        part("--b\nContent-Type: text/plain\n\nFirst.\n--b\nContent-Type: text/plain\n\nSecond.\n", "multipart/mixed; boundary=b"),
        part("--other\nContent-Type: text/plain\n\nFirst.\n--other\n\nSecond.\n--other--\n", "multipart/mixed; boundary=b"),
        part("First.\nSecond.\n", "multipart/mixed; boundary=b"),
        part(base64.encodebytes(b"First. " + b"x" * 300 + b" Second one.")[:-3] + b"!", "text/plain", "Content-Transfer-Encoding: base64"),
        part("First. This is no base64 at all.\nSecond.", "text/plain", "Content-Transfer-Encoding: base64"),
    ],
)  # fmt: skip
def test_a_damaged_mail_is_read_as_far_as_it_can_be_with_a_warning(content: bytes) -> None:
    draft = opened(mail(content))
    assert "First." in draft.text()
    assert "Second" in draft.text()
    assert codes(draft) == ["parts_damaged"]


def test_a_footer_after_base64_is_kept() -> None:
    raw = base64.encodebytes("Hellö. ".encode()) + b"_______________\nlist mailing list\n"
    content = part(raw, PLAIN, "Content-Transfer-Encoding: base64")
    assert body_of(mail(content)).endswith("list mailing list")
    assert body_of(mail(content)).startswith("Hellö.")


def test_uuencoded_files_within_a_text_are_files() -> None:
    text = "Before.\nbegin 644 note.bin\n#86)C\n`\nend\nAfter.\n"
    draft = opened(mail(part(text)))
    assert [(file.name, file.data) for file in draft.attachments] == [("note.bin", b"abc")]
    assert "Before.\n\nAfter." in draft.text()


def test_each_mail_of_a_mailbox_is_a_page() -> None:
    mails = [
        HEAD + f"\nPlease pay invoice {number}.\n\n>From here on quoted.\n\nFrom 10:30 on 2026\nwe eat.\n"
        for number in (1, 2, 3)
    ]
    for end in ("\n", "\r\n"):
        mailbox = "".join(
            f"From a@example.org Mon Mar  2 10:00:0{n} 2026\n{each}\n" for n, each in enumerate(mails)
        )
        data = mailbox.replace("\n", end).encode()
        draft = opened(data)
        assert draft.pages is not None
        assert len(draft.pages) == 3
        assert draft.text()[draft.pages[1] :].startswith("From: Ann <ann@example.org>")
        assert "invoice 2." in draft.text()[draft.pages[1] : draft.pages[2]]
        assert "\nFrom here on quoted." in draft.text()
        for name in ("a.mbox", "a.eml"):
            assert find_kind(UploadHints(data[:HEAD_BYTES], b"", name)) == "eml"


def test_a_file_of_a_maildir_is_a_mail_and_a_memo_is_a_text() -> None:
    assert find_kind(UploadHints(mail(part("Hello.")), b"", "1772442000.M1P2.host:2,S")) == "eml"
    assert find_kind(UploadHints(mail(part("Hello.")), b"", "a.txt")) == "txt"
    assert find_kind(UploadHints(b"From: Ann\nTo: Bob\n\nThe plan.\n", b"", "memo")) == "txt"


@pytest.mark.parametrize("before", [b"\xef\xbb\xbf", b"\n\n", b"\xef\xbb\xbf\r\n"])
def test_what_an_editor_put_before_a_mail_does_not_matter(before: bytes) -> None:
    data = before + mail(part("Hello."))
    assert find_kind(UploadHints(data, b"", "a.eml")) == "eml"
    assert body_of(data) == "Hello."
    assert opened(data).text().startswith("From: Ann")


def test_an_encrypted_mail_of_a_mailbox_leaves_the_others_readable() -> None:
    secret = packed(bytes.fromhex("308006092a864886f70d010703"), "application/pkcs7-mime")
    mark = b"From a@example.org Mon Mar  2 10:00:00 2026\n"
    draft = opened(mark + mail(secret) + b"\n" + mark + mail(part("Hello.")))
    assert codes(draft) == ["parts_not_read"]
    assert "Hello." in draft.text()


def test_mails_with_many_or_deep_parts_end_with_a_warning() -> None:
    draft = opened(mail(several("mixed", *[part(f"part {number}.") for number in range(10_000)])))
    assert "part 1000." in draft.text()
    assert codes(draft) == ["parts_not_read"]
    deep = b"".join(b'Content-Type: multipart/mixed; boundary="b%d"\n\n--b%d\n' % (n, n) for n in range(2000))
    draft = opened(mail(several("mixed", part("Top."), deep + part("Bottom."))))
    assert codes(draft)[-1] == "parts_not_read"
    assert "Top." in draft.text()
    nested = b"Content-Type: message/rfc822\n\nFrom: x@example.org\n" * 1000 + b"\nBottom."
    draft = opened(mail(several("mixed", part("Top."), nested)))
    assert codes(draft)[-1] == "parts_not_read"
    assert "Top." in draft.text()


def test_a_file_that_is_no_mail_is_refused() -> None:
    with pytest.raises(ExtractionError, match="no headers"):
        opened(b"Just a text.\n")


@pytest.mark.parametrize("end", ["--b--", "--b-- ", "--b--\n\n--b--"])
def test_parts_after_an_end_mark_too_early_are_read(end: str) -> None:
    inner = part(b"--b\n" + part("Hello.") + f"\n{end}\n".encode(), 'multipart/alternative; boundary="b"')
    late = packed(b"PK\x03\x04", 'application/zip; name="a.zip"')
    draft = opened(mail(several("mixed", inner, late, part("Regards."), boundary="b")))
    assert " ".join(draft.text().partition("\n\n")[2].split()) == "Hello. Regards. Attachments: a.zip"
    assert files_of(draft) == ["a.zip"]


def test_text_after_the_end_mark_is_no_part() -> None:
    data = mail(several("mixed", part("Hello."), boundary="b")) + b"\nA list's footer about --b\n"
    assert body_of(data) == "Hello."


def test_answers_to_an_invitation_are_read() -> None:
    entry = "BEGIN:VCALENDAR\nMETHOD:REPLY\nBEGIN:VEVENT\nATTENDEE;PARTSTAT=DECLINED;CN=Ann:mailto:a@x\nEND:VEVENT"
    assert "Ann <a@x> (declined)" in body_of(mail(part(entry, "text/calendar; method=REPLY")))


def test_enriched_text_loses_its_commands_alone() -> None:
    source = "<bold>Due</bold>: <<5 EUR,\nnet<color><param>red</param>!</color>\n\nBye"
    draft = opened(mail(part(source, "text/enriched; charset=utf-8")))
    assert draft.text().endswith("Due: <5 EUR, net!\nBye")


def test_base64_with_foreign_characters_in_each_line_is_decoded() -> None:
    words = "The delivery is late by nine days, and the next one by ten. " * 3
    digits = base64.encodebytes(words.encode()).replace(b"\n", b"*\n")
    draft = opened(mail(part(digits, PLAIN, "Content-Transfer-Encoding: base64")))
    assert words.strip() in draft.text()
    assert codes(draft) == ["parts_damaged"]


def test_a_page_that_a_program_saved_as_mail_is_read_under_any_name() -> None:
    page = several("related", part("<p>Plan", HTML), part("p {color: red}", "text/css"))
    saved = b"MIME-Version: 1.0\n" + page
    assert find_kind(UploadHints(saved, b"", "a.doc")) == find_kind(UploadHints(saved, b"", "a.mht")) == "eml"
    assert opened(saved).text() == "Plan"


def test_a_mailbox_needs_no_extension() -> None:
    box = b"From a@x Fri Mar 13 10:00:00 2026\nSubject: one\n\n>From here\n"
    assert find_kind(UploadHints(box, b"", "Inbox")) == "eml"
    assert find_kind(UploadHints(b"From Monday at 10:00\nwe meet\n", b"", "note")) == "txt"


def test_a_mail_in_utf16_is_read() -> None:
    saved = mail(part("Größe", PLAIN)).decode().encode("utf-16")
    assert find_kind(UploadHints(saved, b"", "a.eml")) == "eml"
    assert body_of(saved) == "Größe"


@pytest.mark.parametrize(
    "plain", ["Your email client cannot display this message.", "Order 12, see below, thank you all"]
)
def test_a_shorter_html_with_other_words_is_read_too(plain: str) -> None:
    found = body_of(mail(several("alternative", part(plain, PLAIN), part("<p>Nine days late</p>", HTML))))
    assert found == ("Nine days late" if "client" in plain else f"{plain} Nine days late")


def test_blind_copies_of_a_sent_mail_are_read() -> None:
    assert "Bcc: Eve <e@x>\n" in opened(mail(part("x", PLAIN), head="From: a@x\nBcc: Eve <e@x>\n")).text()
