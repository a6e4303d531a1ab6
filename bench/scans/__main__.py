"""`python -m bench.scans`: 60 pages of real texts as pictures, some skewed and noisy, read by OCR.

The texts are this repository's documents and the sentences below, drawn in Debian's fonts and read in the
sandbox, each page as a document of its own. Prints word errors (for Chinese and Japanese: character errors), time
and memory, and exits with 1 if a page in a script that the models do not read has text, or another has none.
"""

# ruff: noqa: E501, RUF001, T201  # texts in many alphabets, as they are

import argparse
import io
import itertools
import resource
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median
from typing import Final

import zstandard
from PIL import Image, ImageDraw, ImageFilter, ImageFont

from jobs.settings import DocumentSettings
from jobs.states.document import DocumentErrorCode, DocumentKind
from worker.documents.sandbox import ExtractionFailure, Sandbox

_ROOT: Final = Path(__file__).resolve().parents[2]
_A4: Final = (1240, 1754)  # pixels, at 150 dots per inch
_MARGIN: Final = 100
_LATIN: Final = "truetype/dejavu/DejaVuSerif.ttf"
_HAN: Final = "truetype/wqy/wqy-microhei.ttc"
_UNREAD: Final = frozenset({"Russian", "Greek", "Korean"})
_BY_CHARACTER: Final = frozenset({"Chinese", "Japanese"})
_SENTENCES: Final = {
    "German": (
        "Alle Menschen sind frei und gleich an Würde und Rechten geboren. Sie sind mit Vernunft und Gewissen begabt"
        " und sollen einander im Geist der Brüderlichkeit begegnen. Jeder hat das Recht auf Leben, Freiheit und"
        " Sicherheit der Person. Niemand darf in Sklaverei oder Leibeigenschaft gehalten werden. "
    ),
    "French": (
        "Tous les êtres humains naissent libres et égaux en dignité et en droits. Ils sont doués de raison et de"
        " conscience et doivent agir les uns envers les autres dans un esprit de fraternité. Tout individu a droit à"
        " la vie, à la liberté et à la sûreté de sa personne. Nul ne sera tenu en esclavage ni en servitude. "
    ),
    "Polish": (
        "Wszyscy ludzie rodzą się wolni i równi pod względem swej godności i swych praw. Są oni obdarzeni rozumem i"
        " sumieniem i powinni postępować wobec innych w duchu braterstwa. Każdy człowiek ma prawo do życia, wolności"
        " i bezpieczeństwa swej osoby. Nie wolno nikogo czynić niewolnikiem. "
    ),
    "Chinese": (
        "人人生而自由，在尊严和权利上一律平等。他们赋有理性和良心，并应以兄弟关系的精神相对待。"
        "人人有权享有生命、自由和人身安全。任何人不得使为奴隶或奴役。"
    ),
    "Japanese": (
        "すべての人間は、生れながらにして自由であり、かつ、尊厳と権利とについて平等である。"
        "人間は、理性と良心とを授けられており、互いに同胞の精神をもって行動しなければならない。"
    ),
    "Russian": (
        "Все люди рождаются свободными и равными в своем достоинстве и правах. Они наделены разумом и совестью и"
        " должны поступать в отношении друг друга в духе братства. Каждый человек имеет право на жизнь. "
    ),
    "Greek": (
        "Όλοι οι άνθρωποι γεννιούνται ελεύθεροι και ίσοι στην αξιοπρέπεια και τα δικαιώματα. Είναι προικισμένοι με"
        " λογική και συνείδηση, και οφείλουν να συμπεριφέρονται μεταξύ τους με πνεύμα αδελφοσύνης. "
    ),
    "Korean": (
        "모든 인간은 태어날 때부터 자유로우며 그 존엄과 권리에 있어 동등하다. 인간은 천부적으로 이성과 양심을"
        " 부여받았으며 서로 형제애의 정신으로 행동하여야 한다. "
    ),
}  # fmt: skip
_NUM_PAGES: Final = {"English": 28, "German": 4, "French": 4, "Polish": 4, "Chinese": 5, "Japanese": 5}
_NUM_UNREAD: Final = {"Russian": 4, "Greek": 3, "Korean": 3}


@dataclass(frozen=True, slots=True)
class Look:
    """How a page was scanned: turned by degrees, with noise of 255 shades, and out of focus."""

    degrees: float
    noise: float
    blur: float


_LOOKS: Final = (Look(0, 0, 0), Look(1.5, 12, 0.5), Look(-2.5, 25, 0.8), Look(0.5, 40, 1.0))


@dataclass(frozen=True, slots=True)
class Reading:
    """What became of a page.

    Attributes:
        error: share of wrong words; None if the page was said to be unreadable.
        seconds: of CPU time, those of starting and loading the models included.
        memory_mb: of the largest process so far.
    """

    script: str
    look: Look
    error: float | None
    seconds: float
    memory_mb: int


def main() -> None:
    """Draw and read the pages, and print the table."""
    options = _arguments()
    pages = list(itertools.islice(_pages(options.fonts), options.skip, options.skip + options.pages))
    readings = []
    for number, (script, text, look) in enumerate(pages, 1):
        readings.append(_read(script, text, look, options.fonts))
        print(f"{number} of {len(pages)}: {readings[-1]}", file=sys.stderr, flush=True)
    _print(readings)
    wrong = [each for each in readings if (each.error is None) != (each.script in _UNREAD)]
    sys.exit(1 if wrong else 0)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fonts", type=Path, default=Path("/usr/share/fonts"), help="folder of fonts")
    parser.add_argument("--pages", type=int, default=60, help="read only so many")
    parser.add_argument("--skip", type=int, default=0, help="leave out so many at the beginning")
    options = parser.parse_args()
    for name in (_LATIN, _HAN):
        if not (options.fonts / name).exists():
            parser.error(
                f"{options.fonts / name} is missing: install fonts-dejavu-core and fonts-wqy-microhei"
            )
    return options


def _pages(fonts: Path) -> Iterator[tuple[str, str, Look]]:
    """Yield script, text and look of each page; every fourth in a row has the same look."""
    looks = itertools.cycle(_LOOKS)
    prose = _prose()
    for script, number in {**_NUM_PAGES, **_NUM_UNREAD}.items():
        for _ in range(number):
            source = prose if script == "English" else _SENTENCES[script] * 20
            text, used = _fitting(source, script, fonts)
            prose = prose[used:] if script == "English" else prose
            yield script, text, next(looks)


def _prose() -> str:
    """Join the plain paragraphs of this repository's documents."""
    paragraphs = []
    for path in sorted((_ROOT / "docs").rglob("*.md")):
        for paragraph in path.read_text(encoding="utf-8").split("\n\n"):
            words = " ".join(paragraph.split())
            if len(words) > 200 and not words.startswith(("#", "|", "-", "`")):
                paragraphs.append(words.replace("`", "").replace("**", ""))
    return " ".join(paragraphs)


def _font(script: str, fonts: Path) -> ImageFont.FreeTypeFont:
    name = _HAN if script in _BY_CHARACTER or script == "Korean" else _LATIN
    return ImageFont.truetype(fonts / name, 26)


def _fitting(source: str, script: str, fonts: Path) -> tuple[str, int]:
    """Break the beginning of the source into the lines of one page; return it, and how much that is."""
    font, width = _font(script, fonts), _A4[0] - 2 * _MARGIN
    joint = "" if script in _BY_CHARACTER else " "
    lines, line, used = [], "", 0
    for piece in source if not joint else source.split(" "):
        wider = line + joint + piece if line else piece
        if font.getlength(wider) > width:
            lines.append(line)
            line = piece
            if len(lines) == 36:
                break
        else:
            line = wider
        used += len(piece) + len(joint)
    return "\n".join(lines), used


def _drawn(text: str, look: Look, font: ImageFont.FreeTypeFont) -> bytes:
    page = Image.new("L", _A4, 255)
    ImageDraw.Draw(page).multiline_text((_MARGIN, _MARGIN), text, font=font, fill=20, spacing=14)
    page = page.rotate(look.degrees, resample=Image.Resampling.BICUBIC, fillcolor=255)
    if look.noise:
        noise = Image.effect_noise(_A4, look.noise)
        page = Image.blend(page, noise, 0.25).filter(ImageFilter.GaussianBlur(look.blur))
    out = io.BytesIO()
    page.save(out, "PNG")
    return out.getvalue()


def _read(script: str, text: str, look: Look, fonts: Path) -> Reading:
    data = _drawn(text, look, _font(script, fonts))
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    outcome = Sandbox(DocumentSettings()).run([data], kind=DocumentKind.PNG, num_bytes=len(data))
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = used.ru_utime + used.ru_stime - before.ru_utime - before.ru_stime
    memory = used.ru_maxrss // 1024
    if isinstance(outcome, ExtractionFailure):
        if outcome.code is not DocumentErrorCode.ILLEGIBLE:
            raise SystemExit(outcome.message)
        return Reading(script, look, None, seconds, memory)
    shown = zstandard.ZstdDecompressor().decompress(outcome.body).decode()
    split = list if script in _BY_CHARACTER else str.split
    wanted, got = ("".join(each.split()) if split is list else each for each in (text, shown))
    return Reading(script, look, distance(split(wanted), split(got)) / len(split(wanted)), seconds, memory)


def distance(wanted: Sequence[str], got: Sequence[str]) -> int:
    """Count the words to insert, remove or replace."""
    row = list(range(len(got) + 1))
    for number, word in enumerate(wanted, 1):
        before, row = row, [number]
        for column, other in enumerate(got, 1):
            row.append(min(before[column] + 1, row[-1] + 1, before[column - 1] + (word != other)))
    return row[-1]


def _print(readings: Sequence[Reading]) -> None:
    groups: dict[str, list[Reading]] = {}
    for each in readings:
        groups.setdefault(each.script, []).append(each)
    for look in _LOOKS:
        name = f"Latin, {look.degrees:g} degrees, noise {look.noise:g}"
        of_look = [each for each in readings if each.look == look]
        groups[name] = [each for each in of_look if each.script not in _UNREAD | _BY_CHARACTER]
    print(
        "| pages of | number | said unreadable | errors, mean | errors, worst | CPU seconds a page, median |"
    )
    print("|---|---|---|---|---|---|")
    for name, found in groups.items():
        errors = [each.error for each in found if each.error is not None]
        shown = f"{mean(errors):.1%} | {max(errors):.1%}" if errors else "– | –"
        seconds = median(each.seconds for each in found) if found else 0.0
        print(f"| {name} | {len(found)} | {len(found) - len(errors)} | {shown} | {seconds:.1f} |")
    print(f"memory of the largest process: {max(each.memory_mb for each in readings)} MB")


if __name__ == "__main__":
    main()
