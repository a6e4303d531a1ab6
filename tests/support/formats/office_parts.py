"""Office documents assembled from parts as raw XML, for what the libraries do not write."""

from collections.abc import Mapping, Sequence

from document_support import zipped

_XML = '<?xml version="1.0" encoding="UTF-8" standalone="yes"?>'
_BASE = "http://schemas.openxmlformats.org"
_REL = f"{_BASE}/officeDocument/2006/relationships"
_STRICT = "http://purl.oclc.org/ooxml"
NAMES = " ".join(
    f'xmlns:{prefix}="{address}"'
    for prefix, address in {
        "w": f"{_BASE}/wordprocessingml/2006/main",
        "p": f"{_BASE}/presentationml/2006/main",
        "s": f"{_BASE}/spreadsheetml/2006/main",
        "a": f"{_BASE}/drawingml/2006/main",
        "c": f"{_BASE}/drawingml/2006/chart",
        "dgm": f"{_BASE}/drawingml/2006/diagram",
        "xdr": f"{_BASE}/drawingml/2006/spreadsheetDrawing",
        "m": f"{_BASE}/officeDocument/2006/math",
        "r": _REL,
        "mc": f"{_BASE}/markup-compatibility/2006",
        "w14": "http://schemas.microsoft.com/office/word/2010/wordml",
        "wps": "http://schemas.microsoft.com/office/word/2010/wordprocessingShape",
        "o": "urn:schemas-microsoft-com:office:office",
        "v": "urn:schemas-microsoft-com:vml",
        "t": "http://schemas.microsoft.com/office/spreadsheetml/2018/threadedcomments",
        "p188": "http://schemas.microsoft.com/office/powerpoint/2018/8/main",
    }.items()
)


def element(name: str, body: str, attributes: str = "") -> str:
    """A root element with all namespaces."""
    return f"{_XML}<{name} {NAMES} {attributes}>{body}</{name}>"


def relations(targets: Mapping[str, tuple[str, str]]) -> str:
    """A part of relations: kind and target by id."""
    each = "".join(
        f'<Relationship Id="{its_id}" Type="{_REL}/{kind}" Target="{target}"/>'
        for its_id, (kind, target) in targets.items()
    )
    return f'{_XML}<Relationships xmlns="{_BASE}/package/2006/relationships">{each}</Relationships>'


def package(
    main: str, parts: Mapping[str, str | bytes], related: Mapping[str, Mapping[str, tuple[str, str]]]
) -> bytes:
    """A package: its parts by path, and the relations of each part by its path."""
    members: dict[str, str | bytes] = {
        "[Content_Types].xml": f'{_XML}<Types xmlns="{_BASE}/package/2006/content-types"/>',
        "_rels/.rels": relations({"r1": ("officeDocument", main)}),
        **parts,
    }
    for path, targets in related.items():
        folder, _, name = path.rpartition("/")
        members[f"{folder}/_rels/{name}.rels"] = relations(targets)
    return zipped(members)


def make_word(
    body: str, parts: Mapping[str, tuple[str, str | bytes]] = {}, *, path: str = "word/document.xml"
) -> bytes:
    """A docx; `parts` are kind and content by file name, each related by its name as id."""
    folder = path.rpartition("/")[0]
    return package(
        path,
        {path: element("w:document", f"<w:body>{body}</w:body>")}
        | {f"{folder}/{name}": content for name, (_, content) in parts.items()},
        {path: {name: (kind, name) for name, (kind, _) in parts.items()}},
    )


def make_deck(slides: Sequence[str | bytes], parts: Mapping[str, tuple[str, str | bytes]] = {}) -> bytes:
    """A pptx; each slide is a whole part, and is related to all other parts."""
    listed = "".join(f'<p:sldId id="{256 + n}" r:id="s{n}"/>' for n in range(len(slides)))
    main = "ppt/presentation.xml"
    contents: dict[str, str | bytes] = {main: element("p:presentation", f"<p:sldIdLst>{listed}</p:sldIdLst>")}
    contents |= {f"ppt/slides/slide{n}.xml": slide for n, slide in enumerate(slides)}
    contents |= {f"ppt/slides/{name}": content for name, (_, content) in parts.items()}
    deck = {f"s{n}": ("slide", f"slides/slide{n}.xml") for n in range(len(slides))}
    deck |= {name: (kind, f"slides/{name}") for name, (kind, _) in parts.items() if kind.endswith("uthors")}
    each = {name: (kind, name) for name, (kind, _) in parts.items()}
    return package(
        main, contents, {main: deck} | {f"ppt/slides/slide{n}.xml": each for n in range(len(slides))}
    )


def slide(shapes: str, attributes: str = "") -> str:
    """A slide of these shapes."""
    return element("p:sld", f"<p:cSld><p:spTree>{shapes}</p:spTree></p:cSld>", attributes)


def shape(text: str, *, kind: str = "") -> str:
    """A shape with a paragraph of this text, or of these paragraphs."""
    place = f'<p:ph type="{kind}"/>' if kind else ""
    body = text if text.startswith("<") else f"<a:p><a:r><a:t>{text}</a:t></a:r></a:p>"
    return f"<p:sp><p:nvSpPr><p:nvPr>{place}</p:nvPr></p:nvSpPr><p:txBody>{body}</p:txBody></p:sp>"


def make_book(
    sheets: Mapping[str, tuple[str, str | bytes]],
    parts: Mapping[str, tuple[str, str | bytes]] = {},
    *,
    properties: str = "",
    sheet_parts: Mapping[str, tuple[str, str | bytes]] = {},
) -> bytes:
    """An xlsx; sheets are attributes and content by name, and each is related to all of `sheet_parts`."""
    listed = "".join(
        f'<s:sheet name="{name}" sheetId="{n}" r:id="s{n}" {attributes}/>'
        for n, (name, (attributes, _)) in enumerate(sheets.items(), 1)
    )
    main = "xl/workbook.xml"
    contents: dict[str, str | bytes] = {
        main: element("s:workbook", f"{properties}<s:sheets>{listed}</s:sheets>")
    }
    contents |= {f"xl/sheet{n}.xml": body for n, (_, body) in enumerate(sheets.values(), 1)}
    contents |= {f"xl/{name}": content for name, (_, content) in (*parts.items(), *sheet_parts.items())}
    book = {f"s{n}": ("worksheet", f"sheet{n}.xml") for n in range(1, len(sheets) + 1)}
    book |= {name: (kind, name) for name, (kind, _) in parts.items()}
    each = {name: (kind, name) for name, (kind, _) in sheet_parts.items()}
    return package(
        main, contents, {main: book} | {f"xl/sheet{n}.xml": each for n in range(1, len(sheets) + 1)}
    )


def rows(body: str, *, before: str = "") -> str:
    """A worksheet of these rows."""
    return element("s:worksheet", f"{before}<s:sheetData>{body}</s:sheetData>")


def strict(made: str) -> str:
    """A part in the strict form of the standard."""
    for kind in ("wordprocessingml", "presentationml", "spreadsheetml", "drawingml"):
        made = made.replace(f"{_BASE}/{kind}/2006/", f"{_STRICT}/{kind}/")
    return made.replace(f"{_BASE}/officeDocument/2006/", f"{_STRICT}/officeDocument/")


def paragraph(text: str, *, properties: str = "") -> str:
    """A paragraph of docx; text that begins with `<` is its content as XML."""
    inner = text if text.startswith("<") else f'<w:r><w:t xml:space="preserve">{text}</w:t></w:r>'
    return f"<w:p>{f'<w:pPr>{properties}</w:pPr>' if properties else ''}{inner}</w:p>"


CHART = element(
    "c:chartSpace",
    "<c:chart><c:title><c:tx><c:rich><a:p><a:r><a:t>Sales</a:t></a:r></a:p></c:rich></c:tx></c:title><c:plotArea>"
    "<c:barChart><c:ser><c:tx>"
    "<c:strRef><c:strCache><c:pt idx='0'><c:v>North</c:v></c:pt></c:strCache></c:strRef>"
    "</c:tx><c:cat><c:strRef><c:strCache><c:pt idx='0'><c:v>Q1</c:v></c:pt><c:pt idx='1'><c:v>Q2</c:v></c:pt>"
    "</c:strCache></c:strRef></c:cat><c:val><c:numRef><c:numCache>"
    "<c:formatCode>0.0%</c:formatCode><c:pt idx='0'>"
    "<c:v>0.192</c:v></c:pt><c:pt idx='1'><c:v>0.214</c:v></c:pt></c:numCache></c:numRef></c:val></c:ser>"
    "</c:barChart></c:plotArea></c:chart>",
)
DIAGRAM = element(
    "dgm:dataModel",
    "<dgm:ptLst><dgm:pt type='doc'/><dgm:pt><dgm:t><a:p><a:r><a:t>Plan</a:t></a:r></a:p></dgm:t></dgm:pt>"
    "<dgm:pt type='pres'><dgm:t><a:p><a:r><a:t>no</a:t></a:r></a:p></dgm:t></dgm:pt></dgm:ptLst>",
)
