"""Bytes decoded by byte order mark, by label, as UTF-8, or by a guess with a warning."""

import codecs
import re
from collections.abc import Callable, Sequence
from typing import Final

from worker.extract.draft import ExtractionError, TextBuilder, clean

# Longer marks first: UTF-32's begins with UTF-16's.
_MARKS: Final = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
_DECLARED: Final = re.compile(
    rb"<(?:meta|\?xml)[^>]{0,200}?(?:charset|encoding)\s*=\s*[\"']?\s*([\w.:-]{2,40})", re.IGNORECASE
)
_DECLARED_WITHIN: Final = 4096
_SAMPLE_BYTES: Final = 2**17  # a guess from more is no better
_NUM_CANDIDATES: Final = 40

# Codecs by the lower-case name of an encoding, as the WHATWG's standard reads it: the superset that programs
# really write. The first that decodes every byte is used, or else the first.
_CODECS: Final = {
    "ascii": ("cp1252",),
    "iso8859-1": ("cp1252",),
    "iso8859-9": ("cp1254",),
    "iso8859-11": ("cp874",),
    "tis-620": ("cp874",),
    "gb2312": ("gb18030",),
    "gbk": ("gb18030",),
    "shift_jis": ("cp932", "shift_jis_2004"),
    "shift_jis_2004": ("cp932", "shift_jis_2004"),
    "shift_jisx0213": ("cp932", "shift_jis_2004"),
    "cp932": ("cp932", "shift_jis_2004"),
    "euc_jp": ("euc_jp", "euc_jis_2004"),
    "euc_jis_2004": ("euc_jp", "euc_jis_2004"),
    "euc_kr": ("cp949",),
    "big5": ("cp950", "big5hkscs"),
    "big5hkscs": ("cp950", "big5hkscs"),
    "cp950": ("cp950", "big5hkscs"),
    "iso2022_jp": ("iso2022_jp", "iso2022_jp_ext", "iso2022_jp_2", "iso2022_jp_nec"),
}
# Labels of mail that the WHATWG's standard refuses to read.
_MAIL_LABELS: Final = {
    "iso-2022-kr": "iso2022_kr",
    "csiso2022kr": "iso2022_kr",
    "hz-gb-2312": "hz",
    "hz": "hz",
    "iso-2022-cn": "iso2022_cn",
    "iso-2022-cn-ext": "iso2022_cn",
    "x-iso-2022-cn-gb": "iso2022_cn",
}
_NOT_OF_TEXT: Final = frozenset(
    {"idna", "punycode", "unicode-escape", "raw-unicode-escape", "undefined", "charmap", "mbcs", "oem"}
)
_MIN_NULS_OF_WIDE: Final = 2  # a single NUL may be damage
# Names that programs make up, such as `cp-850` and `x-windows-1251`.
_CODE_PAGE: Final = re.compile(r"^(x-)?(windows|cp|ibm|ms|dos)-?(?=\d)")
_WIDE: Final = ("utf-16", "utf-32")
_MULTIBYTE: Final = ("gb", "hz", "cp93", "cp94", "cp95", "shift", "euc", "big5", "johab", "iso2022")

# Escape sequences that only these seven-bit encodings have.
_ESCAPES: Final = (
    (re.compile(rb"\x1b\$\)C"), "iso2022_kr"),
    (re.compile(rb"\x1b\$[)*+][AEGHIJKLM]"), "iso2022_cn"),
    (re.compile(rb"\x1b\$[@B]|\x1b\$\([DOPQ]|\x1b\([JI]"), "iso2022_jp"),
)
_HZ: Final = re.compile(rb"~\{((?:[\x21-\x77][\x21-\x7e])+)~\}")
# Punctuation and the letters of level 1, each in a pair.
_HZ_FREQUENT: Final = re.compile(rb"[\x21-\x57][\x21-\x7e]")

_HIGH: Final = re.compile("[\x80-\U0010ffff]")
_ESCAPED: Final = re.compile("[\udc80-\udcff]")
_REPLACED: Final = "\ufffd"
_NULS: Final = re.compile("\0+")
# Controls that text does not have, besides NUL; some programs of DOS end their files with \x1a.
_CONTROL: Final = re.compile("[\x01-\x06\x0e-\x19\x1c-\x1f]")
_NOT_OF_BYTES: Final = re.compile(rb"[\x00-\x06\x0e-\x19\x1c-\x1f]")
_MAX_CONTROLS: Final = 0.02
_MAX_NULS: Final = 0.6  # fields of fixed width may be mostly padding

# A text is not what has these: letters of two alphabets in one word, drawings, controls or small marks
# between letters, a capital after a small letter of another kind than its own.
_SCRIPTS: Final = (
    r"A-Za-z\u00aa\u00ba\u00c0-\u024f",
    r"\u0370-\u03ff\u1f00-\u1fff",
    r"\u0400-\u04ff",
    r"\u0590-\u05ff",
    r"\u0600-\u06ff\ufb50-\ufdff\ufe70-\ufefe",
    r"\u0e00-\u0e7f",
)
_MIXED: Final = re.compile(
    "|".join(f"[{one}](?=[{other}])" for one in _SCRIPTS for other in _SCRIPTS if one != other)
)
_ODD: Final = re.compile(
    "[\x00-\x08\x0b\x0e-\x19\x1c-\x1f\x7f-\x9f\ue000-\uf8ff\ufffd]"
    r"|(?<=[^\W\d_])[\u2500-\u259f](?=[^\W\d_])"
    r"|(?<=\w)[\u00bf\u00a1\u00ab\u00a8\u00b8\u00ac\u00a4](?=\w)"
    r"|[\u02c0-\u02ff\u00a0-\u00bf\u2010-\u22ff](?=[\u00c0-\u024f])"
    r"|[a-zß-öø-ÿ\u0430-\u044f\u03b1-\u03c9](?=[À-ÖØ-Þ\u0410-\u042f\u0391-\u03a9])"
)
_WESTERN: Final = "cp1252"
_LATIN: Final = re.compile("cp125|iso8859")
_MIN_BADNESS: Final = 0.05  # real texts reach this: a brand's name with a Hebrew prefix, a formula
_TIE: Final = 0.85  # measured: texts of other encodings reach 0.8 of their own confidence in cp1252
_OF_DOS: Final = re.compile(r"cp(?:437|7\d\d|85\d|86\d)$|mac|hp.?roman", re.IGNORECASE)
_FEW: Final = 20  # characters beyond ASCII
# In DOS, these bytes are letters.
_WITHIN_WORDS: Final = re.compile("[^\\W\\d_][\u201a\u201e\u2026\u2018\u201c\u201d\u2022\u2122][^\\W\\d_]")
# Bytes that one line in another encoding plausibly has: letters and punctuation of Windows, in cp1252.
_PLAIN_LINE: Final = re.compile(
    "[\u20ac\u2013\u2014\u2018-\u201e\u2022\u2026\u2122"
    "\u00a0\u00a7\u00a9\u00ab\u00ae\u00b0-\u00b5\u00b7"
    "\u00bb-\u00bd\u00bf\u00a1À-ÏÑ-ÖØ-Ýß-ïñ-öø-ý]"
)


def decode(raw: bytes, draft: TextBuilder) -> str:
    """Decode the bytes; keep every character, including byte order mark and line ends.

    A mark decides, then the encoding that the document's owner named, then the bytes.

    Raises:
        ExtractionError: the bytes are not text.
    """
    marked = next((encoding for mark, encoding in _MARKS if raw.startswith(mark)), None)
    if marked:
        text = _decode_utf8(raw, draft) if marked == "utf-8" else _decode_by([marked], raw, draft)
    elif draft.encoding:
        text = _decode_by(_codecs_of(draft.encoding) or [draft.encoding], raw, draft)
    elif wide := _wide_without_mark(raw):
        draft.warn("encoding_guessed", f"The text has no byte order mark; it was read as {wide.upper()}.")
        text = _decode_by([wide], raw, draft)
    elif escaped := _escaped(raw):
        draft.warn("encoding_guessed", f"The text has escape sequences; it was read as {_shown(escaped)}.")
        text = _decode_by(_CODECS.get(escaped, (escaped,)), raw, draft)
    else:
        text = _decode_utf8(raw, draft)
    return _check(text, raw, draft)


def decode_labelled(raw: bytes, label: str, draft: TextBuilder) -> str:
    """Decode bytes whose encoding is declared, as the WHATWG's standard reads the label.

    A byte order mark takes precedence and is left out. A label that is unknown, or evidently wrong, counts
    as none: `decode` then decides.

    Raises:
        ExtractionError: the bytes are not text.
    """
    found = _codecs_of(label)
    if any(raw.startswith(mark) for mark, _ in _MARKS):
        return decode(raw, draft).removeprefix("\ufeff")
    if found and not draft.encoding and found[0] != "utf-8":
        if not _is_wrong(raw, found[0]):
            return _check(_decode_by(found, raw, draft), raw, draft)
        if _is_utf8(raw):
            shown = clean(label).strip()[:40]
            draft.warn("encoding_guessed", f"The text is labelled {shown}; it was read as UTF-8.")
    return decode(raw, draft)


def decode_markup(raw: bytes, draft: TextBuilder) -> str:
    """Decode HTML or XML, which may declare its encoding, without byte order marks; see `decode`."""
    declared = _DECLARED.search(raw[:_DECLARED_WITHIN])
    label = declared[1].decode() if declared else ""
    if label.lower().startswith(_WIDE):  # then the declaration could not be read
        label = ""
    return decode_labelled(raw, label, draft).replace("\ufeff", "")


def _codecs_of(label: str) -> Sequence[str]:
    """Return the codecs for a label, best first; none if it is unknown."""
    from webencodings import lookup

    name = label.strip().lower()
    if name in _MAIL_LABELS:
        return [_MAIL_LABELS[name]]
    try:
        if found := lookup(name):
            name = found.codec_info.name
        codec = codecs.lookup(_CODE_PAGE.sub("cp", name))
    except (LookupError, ValueError):  # ValueError: NUL or surrogates
        return ()
    if codec.name in _NOT_OF_TEXT or not codec._is_text_encoding:  # noqa: SLF001  # typeshed's own name of it
        return ()
    return _CODECS.get(codec.name, (codec.name,))


def _is_wrong(raw: bytes, codec: str) -> bool:
    """Return True if the label cannot be right."""
    if codec.startswith(_WIDE):
        return b"\0" not in raw
    if b"\0" in raw and _wide_without_mark(raw):
        return True
    if codec.startswith(_MULTIBYTE):  # a few words in them may be valid UTF-8 by chance
        return bool(codec.startswith("iso2022") and re.search(rb"[\x80-\xff]", raw))
    return _is_utf8(raw) or _escaped(raw) is not None


def _is_utf8(raw: bytes) -> bool:
    """Return True if the bytes are UTF-8, and not just ASCII."""
    try:
        return not raw.isascii() and bool(raw.decode())
    except UnicodeDecodeError:
        return False


def _decode_by(names: Sequence[str], raw: bytes, draft: TextBuilder) -> str:
    """Decode with the first codec that knows every byte; otherwise replace what the first does not know.

    Raises:
        ExtractionError: more than a tenth is unknown to the codec.
    """
    for name in names:
        try:
            return _codec(name)(raw, "strict")
        except UnicodeError:
            continue
    text = _codec(names[0])(raw, "replace")
    num = text.count(_REPLACED)
    if num * 10 > len(text) + 10:
        message = f"The text is not valid {_shown(names[0])}: most of it cannot be decoded."
        raise ExtractionError("document_corrupt", message)
    _warn_of_replaced(text, num, f"not valid {_shown(names[0])}", draft)
    return text


def _codec(name: str) -> Callable[[bytes, str], str]:
    if name == "iso2022_cn":
        return _decode_iso2022_cn
    if name == "iso2022_jp_nec":
        return _decode_iso2022_jp_nec
    return lambda raw, errors: raw.decode(name, errors)


def _decode_iso2022_cn(raw: bytes, errors: str) -> str:
    """Decode ISO-2022-CN, which Python lacks: GB 2312 between shift-out and shift-in, without CNS 11643."""

    def shifted(found: re.Match[bytes]) -> bytes:
        return found[1].translate(_TO_HIGH)

    plain = re.sub(rb"\x0e([^\x0f\r\n]*)\x0f?", shifted, raw)
    return re.sub(rb"\x1b\$[)*+][A-M]", b"", plain).decode("gb18030", errors)


def _decode_iso2022_jp_nec(raw: bytes, errors: str) -> str:
    """Decode ISO-2022-JP with the characters of NEC that mails in Japan have, such as circled numbers."""
    plain = re.sub(rb"\x1b\$[@B]([^\x1b]*)", lambda found: found[1].translate(_TO_HIGH), raw)
    return re.sub(rb"\x1b\([BJ]", b"", plain).decode("euc_jis_2004", errors)


_TO_HIGH: Final = bytes(byte | 0x80 if 0x20 < byte < 0x7F else byte for byte in range(256))


def _decode_utf8(raw: bytes, draft: TextBuilder) -> str:
    """Decode UTF-8, of which a few bytes may be invalid; otherwise guess the encoding."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        pass
    if not raw.startswith(codecs.BOM_UTF8) and not _is_nearly_utf8(raw):
        return _guess(raw, draft)
    text = raw.decode(errors="surrogateescape")
    lines = text.splitlines(keepends=True)
    bad = [place for place, line in enumerate(lines) if _ESCAPED.search(line)]
    num_other = 0
    for place in bad:
        if (other := _plain_line(lines[place])) is not None:
            if not num_other:
                first = place + 1
            lines[place] = other
            num_other += 1
    if num_other:
        what = "1 line is" if num_other == 1 else f"{num_other:,} lines are"
        draft.warn("encoding_guessed", f"{what} not UTF-8, from line {first:,} on, and read as {_WESTERN}.")
    text, num = _ESCAPED.subn(_REPLACED, "".join(lines))
    if num:
        _warn_of_replaced(text, num, "not valid UTF-8", draft)
    return text


def _is_nearly_utf8(raw: bytes) -> bool:
    """Return True if valid characters beyond ASCII outnumber the bytes that are not valid."""
    num_bad = num_high = 0
    for start in range(0, len(raw), _SAMPLE_BYTES):  # by parts, as a long text fills the memory
        text = raw[start : start + _SAMPLE_BYTES].decode(errors="surrogateescape")
        num_bad += len(_ESCAPED.findall(text))
        num_high += len(_HIGH.findall(text))
    return num_high >= 2 * num_bad


def _plain_line(line: str) -> str | None:
    """Return a line in cp1252 as text; None if it is UTF-8 with damage, or no plain text."""
    high = _HIGH.findall(line)
    if len(high) != len(_ESCAPED.findall(line)):
        return None
    text = line.encode(errors="surrogateescape").decode(_WESTERN, errors="replace")
    is_plain = all(_PLAIN_LINE.match(char) for char in _HIGH.findall(text))
    return text if is_plain and not _badness(text) else None


def _warn_of_replaced(text: str, num: int, why: str, draft: TextBuilder) -> None:
    at = text.index(_REPLACED)
    line = text.count("\n", 0, at) + 1
    what = "1 character is" if num == 1 else f"{num:,} characters are"
    where = f"the first in line {line:,}, after {at:,} characters"
    draft.warn("characters_replaced", f"{what} {why} and replaced by \ufffd, {where}.")


def _wide_without_mark(raw: bytes) -> str | None:
    """Return the encoding of a text in UTF-16 or UTF-32 that has no mark; None if it is neither."""
    sample = raw[:_SAMPLE_BYTES]
    if sample.count(0) < _MIN_NULS_OF_WIDE or len(raw) % 2:
        return None
    nuls = [sample[place::4].count(0) for place in range(4)]
    num_controls = len(_NOT_OF_BYTES.findall(sample.replace(b"\0", b"")))
    is_few = 3 * sum(nuls) < len(sample) and num_controls <= _MAX_CONTROLS * len(sample)
    if is_few and _is_utf8(sample + "é".encode()):  # a text with a few NULs
        return None
    high, low = nuls[0] + nuls[2], nuls[1] + nuls[3]
    if 4 * min(high, low) > max(high, low):  # both kinds of places have them: UTF-32, or no text
        names = ["utf-32-le", "utf-32-be"]
    else:
        names = ["utf-16-be" if high > low else "utf-16-le"]
    if found := next((name for name in names if _is_wide(sample, name)), None):
        return found
    # The low byte of a letter may be NUL too, as of the Chinese "one", U+4E00.
    names = ["utf-16-le", "utf-16-be"]
    return next((name for name in names if _is_wide(sample, name) and _is_east_asian(sample, name)), None)


def _is_east_asian(sample: bytes, name: str) -> bool:
    """Return True if most characters are East Asian."""
    text = sample.decode(name, "replace")
    return 2 * len(_EAST_ASIAN.findall(text)) > len(text)


def _is_wide(sample: bytes, name: str) -> bool:
    """Return True if the bytes are text in this encoding."""
    decoder = codecs.getincrementaldecoder(name)("replace")  # the sample may end within a character
    text = decoder.decode(sample)
    return bool(text) and 50 * len(_NOT_IN_WIDE.findall(text)) <= len(text)


_EAST_ASIAN: Final = re.compile("[\u3000-\u30ff\u4e00-\u9fff\uac00-\ud7a3\uff01-\uff5e]")
_NOT_IN_WIDE: Final = re.compile(
    "[\x00-\x08\x0b\x0e-\x1f\x7f-\x9f\ue000-\uf8ff\ufff0-\uffff\U000e0000-\U0010ffff]"
)


def _escaped(raw: bytes) -> str | None:
    """Return the encoding of a text of seven-bit bytes with escape sequences; None if it is no such text."""
    if not raw.isascii():
        return None
    if b"\x1b" in raw:
        return next((name for escape, name in _ESCAPES if escape.search(raw)), None)
    shifted = b"".join(_HZ.findall(raw[:_SAMPLE_BYTES])) if b"~{" in raw else b""
    is_hz = shifted and 2 * 2 * len(_HZ_FREQUENT.findall(shifted)) > len(shifted)
    return "hz" if is_hz else None


def _guess(raw: bytes, draft: TextBuilder) -> str:
    """Decode with the most probable encoding whose text looks like one."""
    from chardet import detect_all

    sample = _sample(raw)
    best, lowest, most = _WESTERN, 1.0, 0.0
    for each in detect_all(sample, ignore_threshold=True, compat_names=False)[:_NUM_CANDIDATES]:
        name, confidence = each["encoding"], each["confidence"]
        if name is None or name.startswith(_WIDE) or (text := _tried(sample, name)) is None:
            continue  # those in wide characters are found by their NULs
        badness = max(_badness(text), _MIN_BADNESS)
        if badness < lowest:
            best, lowest, most = name, badness, confidence
        elif name == _WESTERN and _LATIN.match(best) and badness == lowest and confidence >= _TIE * most:
            best = name
    if _OF_DOS.match(best) and _is_plain(sample):
        best = _WESTERN
    draft.warn("encoding_guessed", f"The text is not UTF-8; it was read as {_shown(best)}.")
    return _decode_by(_CODECS.get(best, (best,)), raw, draft)


def _is_plain(sample: bytes) -> bool:
    """Return True for a text with a few characters beyond ASCII, which all make sense in cp1252.

    Such a text may have too few for a guess, and programs of today do not write code pages of DOS.
    """
    text = sample.decode(_WESTERN, errors="replace")
    high = _HIGH.findall(text)
    is_plain = len(high) <= _FEW and all(_PLAIN_LINE.match(char) for char in high)
    return is_plain and not _WITHIN_WORDS.search(text) and not _badness(text)


def _tried(sample: bytes, name: str) -> str | None:
    for codec in _CODECS.get(name, (name,)):
        try:
            # The sample may end within a character.
            return codecs.getincrementaldecoder(codec)().decode(sample)
        except (UnicodeError, LookupError):
            continue
    return None


def _sample(raw: bytes) -> bytes:
    """Return the bytes that reveal the encoding: the lines that are not ASCII alone."""
    if len(raw) <= _SAMPLE_BYTES:
        return raw
    sample = bytearray()
    for line in raw.splitlines(keepends=True):
        if not line.isascii():
            sample += line
            if len(sample) >= _SAMPLE_BYTES:
                break
    return bytes(sample[:_SAMPLE_BYTES])


def _badness(text: str) -> float:
    """Return the share of high characters at which the text cannot be one."""
    found = len(_MIXED.findall(text)) + len(_ODD.findall(text))
    return found / max(1, len(_HIGH.findall(text)))


def _check(text: str, raw: bytes, draft: TextBuilder) -> str:
    """Remove NUL from a text.

    Raises:
        ExtractionError: it has too many controls for a text.
    """
    num_nuls = text.count("\0")
    num_controls = sum(1 for _ in _CONTROL.finditer(text))
    if num_nuls > _MAX_NULS * len(text) or num_controls > _MAX_CONTROLS * len(text) + 2:
        first = _NOT_OF_BYTES.search(raw)
        where = f", the first (0x{first[0].hex()}) at byte {first.start():,}" if first else ""
        message = f"The bytes are not text: they have control characters{where}."
        raise ExtractionError("unsupported_document", message)
    if not num_nuls:
        return text
    what = "1 NUL byte was" if num_nuls == 1 else f"{num_nuls:,} NUL bytes were"
    draft.warn("characters_replaced", f"{what} left out, the first at byte {raw.index(0):,}.")
    # Fields of fixed width are padded with them, lists separated by them.
    return _NULS.sub(lambda found: " " if _is_between(text, found) else "", text)


def _is_between(text: str, nuls: re.Match[str]) -> bool:
    """Return True if the NULs are between characters that are not blank."""
    before, after = text[max(0, nuls.start() - 1) : nuls.start()], text[nuls.end() : nuls.end() + 1]
    return bool(before.strip() and after.strip())


def _shown(name: str) -> str:
    return name.replace("_", "-") if name.startswith(("utf", "iso", "euc")) else name
