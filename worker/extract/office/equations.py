"""Equations of Office (OMML) as one line of text: E = mc^2, (a+b)/2, √(x), ∑_(i=1)^n i."""

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

M: Final = "{http://schemas.openxmlformats.org/officeDocument/2006/math}"
_PROPERTIES: Final = "Pr"  # the end of the names of elements that hold no text
_MOST_DEPTH: Final = 200
_MOST_FIELD_DEPTH: Final = 10
_PLAIN: Final = r"([^\\,;]{0,200}?)"
_FIELD_FRACTION: Final = re.compile(rf"\\f\s?\({_PLAIN}[,;]{_PLAIN}\)", re.IGNORECASE)
_FIELD_ROOT: Final = re.compile(rf"\\r\s?\((?:{_PLAIN}[,;])?{_PLAIN}\)", re.IGNORECASE)
_FIELD_SWITCH: Final = re.compile(r"\\[a-z]+\d*\s?", re.IGNORECASE)


def linear(element: Any, depth: int = 0) -> str:  # noqa: ANN401  # lxml is untyped
    """Return the text of an element of an equation."""
    if depth > _MOST_DEPTH or not isinstance(element.tag, str):
        return ""
    _, _, name = element.tag.rpartition("}")
    if name in {"t", "delText"}:
        return "" if name == "delText" else element.text or ""
    if name.endswith(_PROPERTIES) or name in {"del", "moveFrom"}:
        return ""
    build = _BUILDERS.get(name) if element.tag.startswith(M) else None
    return build(element, depth + 1) if build else _children(element, depth + 1)


def linear_field(code: str) -> str:
    """Return the text of a field of equations (EQ), as Word had before OMML, such as (1)/(2)."""
    for _ in range(_MOST_FIELD_DEPTH):
        before = code
        code = _FIELD_FRACTION.sub(r"(\1)/(\2)", code)
        code = _FIELD_ROOT.sub(
            lambda found: f"({found[2]})^(1/{found[1]})" if found[1] else f"√({found[2]})", code
        )
        if code == before:
            break
    return " ".join(_FIELD_SWITCH.sub("", code).split())


def _children(element: Any, depth: int) -> str:  # noqa: ANN401
    return "".join(linear(child, depth) for child in element)


def _part(element: Any, name: str, depth: int) -> str:  # noqa: ANN401
    found = element.find(M + name)
    return "" if found is None else _children(found, depth).strip()


def _setting(element: Any, name: str, default: str) -> str:  # noqa: ANN401
    found = element.find(f"*/{M}{name}")
    return default if found is None else found.get(f"{M}val", default)


def _grouped(text: str) -> str:
    """Put brackets around anything but a single term."""
    bare = text.replace(".", "").replace(",", "")
    return text if len(text) <= 1 or bare.isalnum() else f"({text})"


def _fraction(element: Any, depth: int) -> str:  # noqa: ANN401
    above, below = _part(element, "num", depth), _part(element, "den", depth)
    if _setting(element, "type", "bar") == "noBar":
        return f"({above} choose {below})"
    return f"{_grouped(above)}/{_grouped(below)}"


def _root(element: Any, depth: int) -> str:  # noqa: ANN401
    degree, inner = _part(element, "deg", depth), _part(element, "e", depth)
    sign = {"": "√", "2": "√", "3": "∛", "4": "∜"}.get(degree)
    return f"{sign}({inner})" if sign else f"root({degree}, {inner})"


def _scripts(element: Any, depth: int) -> str:  # noqa: ANN401
    base, below, above = (_part(element, name, depth) for name in ("e", "sub", "sup"))
    return base + (f"_{_grouped(below)}" if below else "") + (f"^{_grouped(above)}" if above else "")


def _before_scripts(element: Any, depth: int) -> str:  # noqa: ANN401
    base, below, above = (_part(element, name, depth) for name in ("e", "sub", "sup"))
    return (f"_{_grouped(below)}" if below else "") + (f"^{_grouped(above)}" if above else "") + base


def _nary(element: Any, depth: int) -> str:  # noqa: ANN401
    below, above = _part(element, "sub", depth), _part(element, "sup", depth)
    sign = _setting(element, "chr", "∫")
    limits = (f"_{_grouped(below)}" if below else "") + (f"^{_grouped(above)}" if above else "")
    return f"{sign}{limits} {_part(element, 'e', depth)}"


def _delimited(element: Any, depth: int) -> str:  # noqa: ANN401
    begin, end = _setting(element, "begChr", "("), _setting(element, "endChr", ")")
    inner = [_children(each, depth).strip() for each in element.iterfind(f"{M}e")]
    return begin + f" {_setting(element, 'sepChr', '|')} ".join(inner) + end


def _matrix(element: Any, depth: int) -> str:  # noqa: ANN401
    rows = [
        ", ".join(_children(each, depth).strip() for each in row.iterfind(f"{M}e"))
        for row in element.iterfind(f"{M}mr")
    ]
    return "[" + "; ".join(rows) + "]"


def _lines(element: Any, depth: int) -> str:  # noqa: ANN401
    return "; ".join(_children(each, depth).strip() for each in element.iterfind(f"{M}e"))


def _function(element: Any, depth: int) -> str:  # noqa: ANN401
    name, inner = _part(element, "fName", depth), _part(element, "e", depth)
    return f"{name}{inner}" if inner.startswith("(") else f"{name} {inner}"


def _limit(sign: str) -> "Callable[[Any, int], str]":
    def build(element: Any, depth: int) -> str:  # noqa: ANN401
        return f"{_part(element, 'e', depth)}{sign}{_grouped(_part(element, 'lim', depth))}"

    return build


def _accent(element: Any, depth: int) -> str:  # noqa: ANN401
    return _part(element, "e", depth) + _setting(element, "chr", "\u0302")


_BUILDERS: Final[Mapping[str, Callable[[Any, int], str]]] = {
    "f": _fraction,
    "rad": _root,
    "sSup": _scripts,
    "sSub": _scripts,
    "sSubSup": _scripts,
    "sPre": _before_scripts,
    "nary": _nary,
    "d": _delimited,
    "m": _matrix,
    "eqArr": _lines,
    "func": _function,
    "limLow": _limit("_"),
    "limUpp": _limit("^"),
    "acc": _accent,
}
