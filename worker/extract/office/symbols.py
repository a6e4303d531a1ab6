"""Characters of symbol fonts, which programs store by their place in the font."""

from collections.abc import Mapping
from typing import Final

TICKED: Final = "☑"
UNTICKED: Final = "☐"
UNKNOWN: Final = "\ufffd"

_WINGDINGS: Final[Mapping[int, str]] = {
    0x21: "✏", 0x22: "✂", 0x28: "☎", 0x2A: "✉", 0x36: "⌛", 0x3F: "✍", 0x41: "✌", 0x43: "👍", 0x44: "👎",
    0x45: "☜", 0x46: "☞", 0x47: "☝", 0x48: "☟", 0x4A: "☺", 0x4B: "😐", 0x4C: "☹", 0x4D: "💣", 0x4E: "☠",
    0x51: "✈", 0x52: "☼", 0x54: "❄", 0x58: "✠", 0x59: "✡", 0x5A: "☪", 0x6C: "●", 0x6D: "❍", 0x6E: "■",
    0x6F: UNTICKED, 0x70: "❐", 0x71: "❑", 0x72: "❒", 0x73: "⬧", 0x74: "⧫", 0x75: "◆", 0x76: "❖", 0x77: "⬥",
    0x78: "☒", 0x7A: "⌘", 0x80: "⓪", **{0x81 + n: chr(0x2460 + n) for n in range(10)},
    **{0x8B + n: chr(0x24FF if not n else 0x2775 + n) for n in range(11)},
    0x9E: "·", 0x9F: "•", 0xA1: "○", 0xA2: "○", 0xA4: "◉", 0xA5: "◎", 0xA7: "▪", 0xA8: UNTICKED, 0xAA: "✦",
    0xAB: "★", 0xAC: "✶", 0xAD: "✴", 0xAF: "✵", 0xB7: "🕐", 0xD5: "⌫", 0xD6: "⌦", 0xD8: "➢", 0xDC: "➲",
    0xDF: "←", 0xE0: "→", 0xE1: "↑", 0xE2: "↓", 0xE3: "↖", 0xE4: "↗", 0xE5: "↙", 0xE6: "↘", 0xE7: "←",
    0xE8: "➔", 0xE9: "↑", 0xEA: "↓", 0xEF: "⇦", 0xF0: "⇨", 0xF1: "⇧", 0xF2: "⇩", 0xF3: "⬄", 0xF4: "⇳",
    0xFB: "✗", 0xFC: "✓", 0xFD: "☒", 0xFE: TICKED,
}  # fmt: skip
_WINGDINGS_2: Final[Mapping[int, str]] = {
    0x4F: "✗", 0x50: "✓", 0x51: "☒", 0x52: TICKED, 0x53: "☒", 0x54: "☒", 0x55: "⊗", 0x56: "⊗", 0x57: "⊘",
    0x96: "•", 0x97: "●", 0x98: "●", 0x99: "○", 0x9A: "○", 0x9E: "■", 0x9F: "■", 0xA0: "■", 0xA1: UNTICKED,
    0xA2: UNTICKED, 0xA3: UNTICKED, 0xA4: UNTICKED, 0xAE: "◆",
}  # fmt: skip
_WEBDINGS: Final[Mapping[int, str]] = {
    0x31: "▫", 0x61: "✓", 0x63: UNTICKED, 0x67: "■", 0x6E: "●", 0x72: "✗", 0x73: "?", 0x3D: "■",
}  # fmt: skip
# Adobe's Symbol encoding, from 0x20 and from 0xA0 on.
_SYMBOL_LOW: Final = (
    " !∀#∃%&∋()∗+,−./0123456789:;<=>?≅ΑΒΧΔΕΦΓΗΙϑΚΛΜΝΟΠΘΡΣΤΥςΩΞΨΖ[∴]⊥_‾αβχδεφγηιϕκλμνοπθρστυϖωξψζ{|}∼"  # noqa: RUF001
)
_SYMBOL_HIGH: Final = (
    "€ϒ′≤⁄∞ƒ♣♦♥♠↔←↑→↓°±″≥×∝∂•÷≠≡≈…|—↵ℵℑℜ℘⊗⊕∅∩∪⊃⊇⊄⊂⊆∈∉∠∇®©™∏√⋅¬∧∨⇔⇐⇑⇒⇓◊⟨®©™∑⎛⎜⎝⎡⎢⎣⎧⎨⎩⎪\ufffd⟩∫⌠⎮⌡⎞⎟⎠⎤⎥⎦⎫⎬⎭"  # noqa: RUF001
)
_SYMBOL: Final[Mapping[int, str]] = {
    **{0x20 + place: char for place, char in enumerate(_SYMBOL_LOW)},
    **{0xA0 + place: char for place, char in enumerate(_SYMBOL_HIGH)},
}
_FONTS: Final[Mapping[str, Mapping[int, str]]] = {
    "wingdings": _WINGDINGS,
    "wingdings 2": _WINGDINGS_2,
    "wingdings 3": {
        0x66: "←", 0x67: "→", 0x68: "↑", 0x69: "↓", 0x75: "▶", 0x74: "◀", 0x7D: "▶", 0x70: "▲", 0x71: "▼",
        0x84: "▶",
    },
    "webdings": _WEBDINGS,
    # Symbol, and what systems without it have in its place.
    **dict.fromkeys(("symbol", "symbol neu", "standard symbols l", "standard symbols ps"), _SYMBOL),
}  # fmt: skip


def is_symbol_font(font: str | None) -> bool:
    """Return True if the font's characters are symbols."""
    return (font or "").lower() in _FONTS


def symbol(font: str, code: int) -> str:
    """Return the character at a place of a font; UNKNOWN if there is no such character in Unicode here."""
    known = _FONTS.get(font.lower())
    if known is None:
        # Other fonts hold their own pictures in the private area, and usual characters elsewhere.
        return UNKNOWN if 0xE000 <= code <= 0xF8FF or not 0x20 <= code < 0x110000 else chr(code)
    place = code - 0xF000 if 0xF000 <= code <= 0xF0FF else code
    return known.get(place, UNKNOWN) if place != 0x20 else " "


def in_symbols(font: str, text: str) -> str:
    """Return a text of a symbol font as usual characters; those above one byte are usual already."""
    return "".join(
        symbol(font, ord(each)) if ord(each) < 0x100 or 0xF000 <= ord(each) <= 0xF0FF else each
        for each in text
    )
