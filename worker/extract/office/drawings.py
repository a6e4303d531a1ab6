"""What drawings of Office show as text: charts as small tables, diagrams (SmartArt) as lines."""

from collections.abc import Iterator
from typing import Any, Final

from worker.extract.office.number_formats import GENERAL, general, shown
from worker.extract.office.package import DamagedPartError, Package

A: Final = "{http://schemas.openxmlformats.org/drawingml/2006/main}"
C: Final = "{http://schemas.openxmlformats.org/drawingml/2006/chart}"
CX: Final = "{http://schemas.microsoft.com/office/drawing/2014/chartex}"
DGM: Final = "{http://schemas.openxmlformats.org/drawingml/2006/diagram}"
_MOST_POINTS: Final = 100_000  # of one series
# A part of a diagram that is no text of its author: layouts, and links between points.
_NO_NODES: Final = frozenset({"pres", "parTrans", "sibTrans", "doc"})


def paragraph_text(paragraph: Any) -> str:  # noqa: ANN401  # lxml is untyped
    """Return the text of a paragraph of a drawing, on one line."""
    pieces = [
        " " if each.tag == f"{A}br" else each.text or ""
        for each in paragraph.iter(f"{A}t", f"{A}br", f"{A}tab")
    ]
    return " ".join("".join(pieces).split())


def chart_lines(package: Package, part: str) -> Iterator[str]:
    """Yield title, axes and data of a chart; warn if it is damaged."""
    try:
        root = package.xml(part)
    except DamagedPartError:
        package.warn_damaged("a chart")
        return
    yield from _extended_lines(root) if root.tag.startswith(CX) else _lines(root)


def diagram_lines(package: Package, part: str) -> Iterator[str]:
    """Yield the text of each box of a diagram; warn if it is damaged."""
    root = package.optional(part, "a diagram")
    if root is None:
        return
    for point in root.iter(f"{DGM}pt"):
        if point.get("type", "node") not in _NO_NODES:
            lines = [paragraph_text(each) for each in point.iter(f"{A}p")]
            if text := " ".join(line for line in lines if line):
                yield f"- {text}"


def _lines(root: Any) -> Iterator[str]:  # noqa: ANN401
    chart = root.find(f"{C}chart")
    if chart is None:
        return
    yield f"[Chart: {_title(chart)}]" if _title(chart) else "[Chart]"
    axes = [_title(axis) for axis in chart.iterfind(f"{C}plotArea/*") if axis.tag.endswith("Ax")]
    if any(axes):
        yield "Axes: " + "; ".join(axis for axis in axes if axis)
    series = [_Series(each) for each in chart.iter(f"{C}ser")]
    yield from _table(series)
    for shape in root.iter("{http://schemas.openxmlformats.org/drawingml/2006/chartDrawing}sp"):
        for paragraph in shape.iter(f"{A}p"):
            if text := paragraph_text(paragraph):
                yield text


def _table(series: "list[_Series]") -> Iterator[str]:
    """Yield a row for each category; series whose categories differ have tables of their own."""
    while series:
        together = [each for each in series if each.categories == series[0].categories]
        series = [each for each in series if each.categories != together[0].categories]
        places = sorted({place for each in together for place in (*each.categories, *each.values)})
        if not places:
            names = [each.name for each in together if each.name]
            if names:
                yield "Series without stored values: " + ", ".join(names)
            continue
        yield " | ".join(["Category", *(each.name for each in together)])
        for place in places:
            cells = [each.values.get(place, "") for each in together]
            yield " | ".join([together[0].categories.get(place, str(place + 1)), *cells])


class _Series:
    """The points of a series, by their places."""

    def __init__(self, element: Any) -> None:  # noqa: ANN401
        name = element.find(f"{C}tx")
        self.name = "" if name is None else " ".join(_points(name).values()) or _rich(name)
        found = next((x for x in (element.find(C + n) for n in ("cat", "xVal")) if x is not None), None)
        self.categories = {} if found is None else _categories(found)
        found = next((x for x in (element.find(C + n) for n in ("val", "yVal")) if x is not None), None)
        self.values = {} if found is None else _points(found)
        if (sizes := element.find(f"{C}bubbleSize")) is not None:
            for place, size in _points(sizes).items():
                self.values[place] = f"{self.values.get(place, '')} (size {size})".strip()


def _categories(element: Any) -> dict[int, str]:  # noqa: ANN401
    levels = [_points(level) for level in element.iter(f"{C}lvl")]
    if not levels:
        return _points(element)
    # The first level is the innermost; an outer one names the first of its own and holds until the next.
    out = {place: [text] for place, text in levels[0].items()}
    for level in levels[1:]:
        held = ""
        for place in sorted(out):
            held = level.get(place, held)
            out[place].insert(0, held)
    return {place: " ".join(text for text in texts if text) for place, texts in out.items()}


def _points(element: Any) -> dict[int, str]:  # noqa: ANN401
    code = element.findtext(f".//{C}formatCode") or GENERAL
    out: dict[int, str] = {}
    for point in element.iter(f"{C}pt"):
        text = point.findtext(f"{C}v") or ""
        try:
            place = int(point.get("idx", "")[:9])
        except ValueError:
            place = len(out)
        if len(out) >= _MOST_POINTS:
            break
        is_number = point.getparent().tag in {f"{C}numCache", f"{C}numLit"}
        out[place] = _number(text, point.get("formatCode") or code) if is_number else " ".join(text.split())
    if not out and (value := element.findtext(f"{C}v")):
        out[0] = value
    return out


def _number(text: str, code: str) -> str:
    try:
        return shown(float(text), code)
    except ValueError:
        return text


def _title(element: Any) -> str:  # noqa: ANN401
    title = element.find(f"{C}title")
    if title is None:
        return ""
    return _rich(title) or " ".join(_points(title).values())


def _rich(element: Any) -> str:  # noqa: ANN401
    return " ".join(text for each in element.iter(f"{A}p") if (text := paragraph_text(each)))


def _extended_lines(root: Any) -> Iterator[str]:  # noqa: ANN401
    """Yield the data of the newer kinds: waterfall, treemap, funnel and the like."""
    titles = [_rich(each) for each in root.iter(f"{CX}title")]
    yield f"[Chart: {titles[0]}]" if titles and titles[0] else "[Chart]"
    for each in root.iter(f"{CX}series"):
        if name := (each.findtext(f"{CX}tx/{CX}txData/{CX}v") or "").strip():
            yield name
    for data in root.iter(f"{CX}data"):
        rows: dict[int, list[str]] = {}
        for dimension in data:
            is_number = dimension.tag == f"{CX}numDim"
            for level in dimension.iter(f"{CX}lvl"):
                for number, point in enumerate(level.iter(f"{CX}pt")):
                    text = " ".join((point.text or "").split())
                    place = int(index) if (index := point.get("idx", "")[:9]).isdecimal() else number
                    rows.setdefault(place, []).append(_plain(text) if is_number else text)
        for place in sorted(rows)[:_MOST_POINTS]:
            yield " | ".join(rows[place])


def _plain(text: str) -> str:
    try:
        return general(float(text))
    except ValueError:
        return text
