"""The docs as a site: every page is in it, as it reads on GitHub; nothing comes from elsewhere."""

import json
import re
from collections import Counter
from pathlib import Path
from urllib.parse import urlsplit

import lxml.html
import pytest
from lxml.html import HtmlElement
from markdown_it import MarkdownIt

from scripts.docs import build as site
from scripts.docs.build import DocsError, Section

# What a reader would miss if the site read Markdown otherwise than GitHub does.
COUNTED = ("li", "tr", "pre", "h1", "h2", "h3", "img")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    site.build(folder)
    return folder


def page(built: Path, name: str) -> HtmlElement:
    return lxml.html.parse(built / name.replace(".md", ".html")).getroot()


def counted(element: HtmlElement) -> Counter[str]:
    return Counter(each.tag for each in element.iter(*COUNTED))


def test_every_page_is_in_the_site_as_it_reads_elsewhere(built: Path) -> None:
    reader = MarkdownIt("commonmark").enable("table")
    found = site.pages()
    assert {"README.md", "CHANGELOG.md", "docs/operations.md"} <= found.keys()
    differing = {}
    for path, name in found.items():
        (shown,) = page(built, name).xpath("//div[@itemprop='articleBody']")
        meant = counted(lxml.html.fromstring(reader.render((site.ROOT / path).read_text(encoding="utf-8"))))
        if counted(shown) != meant:
            differing[path] = {"GitHub": dict(meant), "the site": dict(counted(shown))}
    assert differing == {}


def test_every_page_leads_to_every_other(built: Path) -> None:
    for name in ("index.html", "decisions/0001-postgres-decides-celery-rings.html"):
        links = page(built, name).xpath("//nav//ul//a[not(contains(@href, '#'))]/@href")
        shown = {(built / name).parent.joinpath(each).resolve() for each in links}
        missing = {
            each for each in site.pages().values() if built / each.replace(".md", ".html") not in shown
        }
        assert missing <= {name.replace(".html", ".md")}, "the page itself is the one that is not linked"


def test_its_search_knows_every_page(built: Path) -> None:
    index = json.loads((built / "search" / "search_index.json").read_text(encoding="utf-8"))
    indexed = {each["location"].partition("#")[0] for each in index["docs"]}
    assert {name.replace(".md", ".html") for name in site.pages().values()} <= indexed
    (found,) = [each for each in index["docs"] if each["location"] == "operations.html#pause-drain-resume"]
    assert "longbatch engine drain" in found["text"]


def test_it_loads_nothing_from_elsewhere(built: Path) -> None:
    """Links lead anywhere; what a browser loads by itself is all there."""
    loaded: list[tuple[Path, str]] = []
    for each in built.rglob("*.html"):
        found = lxml.html.parse(each).xpath("//@src | //link/@href | //@srcset | //object/@data")
        loaded += [(each, address) for address in found]
    for each in built.rglob("*.css"):
        loaded += [(each, found) for found in re.findall(r"url\(['\"]?([^'\")]+)", each.read_text())]
        assert "@import" not in each.read_text()
    assert len(loaded) > 100
    for each, address in loaded:
        parts = urlsplit(address)
        assert (parts.scheme, parts.netloc) in {("", ""), ("data", "")}, (each, address)
        is_served_anywhere = each.name == "404.html"
        if parts.path and not parts.scheme and not is_served_anywhere:
            assert (each.parent / parts.path).exists(), (each, address)


def test_a_page_that_no_section_names_comes_last() -> None:
    chosen = [Section("Start", ("README.md",)), Section("Why", ("docs/decisions/",))]
    sources = {"README.md": "index.md", "docs/new.md": "new.md", "docs/decisions/1.md": "decisions/1.md"}
    assert site.navigation(sources, chosen) == [
        {"Start": ["index.md"]},
        {"Why": ["decisions/index.md", "decisions/1.md"]},
        {"More": ["new.md"]},
    ]


def test_every_page_has_its_place_in_the_navigation() -> None:
    last = site.navigation(site.pages(), site.sections())[-1]
    assert last.get("More", []) == [], "name them in a section of scripts/docs/site.toml"


def test_a_section_names_only_pages_that_are_there() -> None:
    with pytest.raises(DocsError, match=r"site\.toml names docs/gone\.md, which is no page"):
        site.navigation({"README.md": "index.md"}, [Section("Start", ("README.md", "docs/gone.md"))])


@pytest.mark.parametrize(
    ("text", "told"),
    [("[x](gone.md)", r"CHANGELOG\.md links to gone\.md"), ("[x](docs/one.md#gone)", "mkdocs warned")],
)
def test_a_link_that_leads_nowhere_stops_the_build(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, told: str
) -> None:
    """In a repository of three pages."""
    root = tmp_path / "repository"
    (root / "docs" / "decisions").mkdir(parents=True)
    (root / "docs" / "one.md").write_text("# One\n")
    (root / "README.md").write_text("# Longbatch\n")
    (root / "CHANGELOG.md").write_text(f"# Changes\n\n{text}\n")
    monkeypatch.setattr(site, "ROOT", root)
    monkeypatch.setattr(site, "sections", lambda: [Section("All", ("README.md",))])
    with pytest.raises(DocsError, match=told):
        site.build(tmp_path / "site")
