"""Build the docs as a site with search, which loads nothing from elsewhere."""

import argparse
import posixpath
import shutil
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import Any, Final

from mkdocs.commands import build as mkdocs
from mkdocs.config.defaults import MkDocsConfig

from scripts.docs.links import links_of, slug

ROOT: Final = Path(__file__).resolve().parents[2]
NAVIGATION: Final = Path(__file__).with_name("site.toml")
_DECISIONS: Final = "docs/decisions/"
_MORE: Final = "More"
_STYLE: Final = "site.css"


class DocsError(Exception):
    """The docs cannot be built: the message names the page and what to change."""


@dataclass(frozen=True, slots=True)
class Section:
    """A section of the navigation.

    Attributes:
        pages: paths of the repository; one that ends with a slash is a folder, all of whose pages follow.
    """

    title: str
    pages: tuple[str, ...]


def build(folder: Path) -> None:
    """Build the site into this folder, which is emptied first.

    Raises:
        DocsError: a link leads nowhere, or the navigation names a page that is not there.
    """
    with TemporaryDirectory(prefix="longbatch-docs-") as made:
        staged, sources = Path(made) / "pages", pages()
        stage(sources, staged)
        config = _config(staged, folder, navigation(sources, sections()))
        failed, warned = config.validate()
        if failed or warned:
            raise DocsError(f"mkdocs refuses its configuration: {failed or warned}")
        config.plugins.on_startup(command="build", dirty=False)
        try:
            mkdocs.build(config)
        except SystemExit as stopped:  # `strict`: it has said which links lead nowhere
            raise DocsError("mkdocs warned, see above") from stopped


def pages() -> dict[str, str]:
    """Find the pages: paths of the repository, and what each is called in the site."""
    found = {each.name: f"{each.stem.lower()}.md" for each in sorted(ROOT.glob("*.md"))}
    found["README.md"] = "index.md"
    for each in sorted((ROOT / "docs").rglob("*.md")):
        path = each.relative_to(ROOT).as_posix()
        found[path] = path.removeprefix("docs/")
    return found


def sections() -> list[Section]:
    """Read the navigation."""
    written = tomllib.loads(NAVIGATION.read_text(encoding="utf-8"))["section"]
    return [Section(each["title"], tuple(each["pages"])) for each in written]


def navigation(sources: Mapping[str, str], chosen: Iterable[Section]) -> list[dict[str, list[str]]]:
    """Return the navigation in names of the site; a page that no section names comes last.

    Raises:
        DocsError: a section names a page that is not there.
    """
    left = dict(sources)
    shown: list[dict[str, list[str]]] = []
    for section in chosen:
        named: list[str] = []
        for path in section.pages:
            if path.endswith("/"):
                named += [f"{path.removeprefix('docs/')}index.md"]
                named += [left.pop(each) for each in [*left] if each.startswith(path)]
            elif path in left:
                named.append(left.pop(path))
            else:
                raise DocsError(f"{NAVIGATION.relative_to(ROOT)} names {path}, which is no page")
        shown.append({section.title: named})
    return [*shown, {_MORE: [*left.values()]}] if left else shown


def stage(sources: Mapping[str, str], staged: Path) -> None:
    """Write all that the site consists of into the folder, with links between the names of the site.

    Raises:
        DocsError: a link leads nowhere.
    """
    shutil.copytree(ROOT / "docs", staged, ignore=shutil.ignore_patterns("*.md"), dirs_exist_ok=True)
    shutil.copy(NAVIGATION.with_name(_STYLE), staged / _STYLE)
    for path, name in sources.items():
        written = staged / name
        written.parent.mkdir(parents=True, exist_ok=True)
        written.write_text(_rewritten(path, sources, staged), encoding="utf-8")
    listed = [
        f"- [{_title(path)}]({PurePosixPath(path).name})" for path in sources if path.startswith(_DECISIONS)
    ]
    index = staged / _DECISIONS.removeprefix("docs/") / "index.md"
    index.write_text("\n".join(["# Decisions and their reasons", "", *listed, ""]), encoding="utf-8")


def _rewritten(path: str, sources: Mapping[str, str], staged: Path) -> str:
    """Return a page whose links name pages of the site; files that it links to are copied there."""
    markdown = (ROOT / path).read_text(encoding="utf-8")
    here = posixpath.dirname(sources[path])
    done, parts = 0, []
    for link in links_of(markdown):
        if not link.path:
            continue
        target = posixpath.normpath(posixpath.join(posixpath.dirname(path), link.path))
        name = _name(path, target, sources, staged)
        anchor = "" if link.anchor is None else f"#{link.anchor}"
        parts += [markdown[done : link.start], posixpath.relpath(name, here or "."), anchor]
        done = link.end
    return "".join([*parts, markdown[done:]])


def _name(path: str, target: str, sources: Mapping[str, str], staged: Path) -> str:
    """Return what the site calls a target of a link; a file that is no page is copied."""
    if target in sources:
        return sources[target]
    if f"{target}/" == _DECISIONS:
        return f"{_DECISIONS.removeprefix('docs/')}index.md"
    if not (ROOT / target).is_file() or target.startswith(".."):
        raise DocsError(f"{path} links to {target}, which is neither a page nor a file of this repository")
    name = target.removeprefix("docs/")
    copied = staged / name
    copied.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(ROOT / target, copied)
    return name


def _title(path: str) -> str:
    return (ROOT / path).read_text(encoding="utf-8").partition("\n")[0].lstrip("# ")


def _config(staged: Path, folder: Path, shown: list[dict[str, list[str]]]) -> MkDocsConfig:
    config = MkDocsConfig(config_file_path=str(staged.parent / "mkdocs.yml"))
    links = {"not_found": "warn", "anchors": "warn", "absolute_links": "warn", "unrecognized_links": "warn"}
    chosen: dict[str, Any] = {
        "site_name": tomllib.loads(NAVIGATION.read_text(encoding="utf-8"))["title"],
        "docs_dir": str(staged),
        "site_dir": str(folder.resolve()),
        "nav": shown,
        "strict": True,
        "use_directory_urls": False,  # so that it can be read from a folder too
        "theme": {"name": "readthedocs", "highlightjs": False, "navigation_depth": 3},
        "extra_css": [_STYLE],
        "plugins": ["search"],
        "markdown_extensions": ["sane_lists", {"toc": {"slugify": slug, "permalink": True}}],
        "validation": {"links": links, "nav": {"omitted_files": "warn", "not_found": "warn"}},
    }
    config.load_dict(chosen)
    return config


def main() -> None:
    """Build it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path, default=ROOT / "build" / "docs")
    folder = parser.parse_args().folder
    build(folder)
    print(f"{folder}/index.html; with its search: python -m http.server --directory {folder}")  # noqa: T201


if __name__ == "__main__":
    main()
