"""The commands that the docs show: blocks of shell in Markdown, taken apart as a shell would."""

import re
import shlex
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from scripts.docs.build import ROOT, pages
from scripts.docs.links import without_fences

# Runs commands, and returns what they print.
Bash = Callable[[str], str]
# A block without a language is shell if one of its lines begins with one of these.
PROGRAMS = frozenset(
    "make longbatch lb op curl export . python pip docker podman helm kubectl".split()  # noqa: SIM905  # as words
)
# Of shells themselves, and what only frames other commands.
BUILTINS = frozenset(
    "alias cd echo export if then else fi for while until do done [ { } set test true".split()  # noqa: SIM905
)
_FENCED = re.compile(r"^( *)```+(\w*)[^\n]*\n(.*?)^\1```+ *$", re.MULTILINE | re.DOTALL)
_HEREDOC = re.compile(r"<<-?'?(\w+)'?([^\n]*)\n.*?^\1$", re.MULTILINE | re.DOTALL)
_COMMENT = re.compile(r"(^|\s)#( .*|)$", re.MULTILINE)
_FUNCTION = re.compile(r"^\w+\(\)", re.MULTILINE)
_ASSIGNMENT = re.compile(r"\w+=")


@dataclass(frozen=True)
class Block:
    """A block of shell.

    Attributes:
        page: path in the repository.
        section: the heading above it.
        number: its place among the blocks of its section, from 1.
    """

    page: str
    section: str
    number: int
    line: int
    text: str

    @property
    def place(self) -> str:
        return f"{self.page}:{self.line}"

    @property
    def commands(self) -> list[list[str]]:
        return commands_of(self.text)


def shell_blocks() -> list[Block]:
    """Those of all pages of the docs."""
    return [block for page in pages() for block in blocks_of(page, (ROOT / page).read_text(encoding="utf-8"))]


def blocks_of(page: str, markdown: str) -> Iterator[Block]:
    """The blocks of shell of one page."""
    before: Counter[str] = Counter()
    for found in _FENCED.finditer(markdown):
        language, text = found[2], found[3]
        starts = {line.split(maxsplit=1)[0] for line in text.splitlines() if line.strip()}
        if language in {"sh", "bash", "shell", "console"} or (not language and starts & PROGRAMS):
            headings = re.findall(r"^#+ +(.+)$", without_fences(markdown[: found.start()]), re.MULTILINE)
            section, line = headings[-1], 1 + markdown.count("\n", 0, found.start())
            before[section] += 1
            yield Block(page, section, before[section], line, text)


def commands_of(text: str) -> list[list[str]]:
    """The commands of a block, each with its arguments; without assignments, files and what frames them."""
    text = _FUNCTION.sub("", _COMMENT.sub("", _HEREDOC.sub(r"\2", text))).replace("\\\n", " ")
    lexer = shlex.shlex(text, posix=True, punctuation_chars="();<>|&\n")
    lexer.whitespace, lexer.commenters, lexer.whitespace_split = " \t\r", "", True
    commands: list[list[str]] = [[]]
    is_file = False
    for token in lexer:
        if set(token) <= set("();<>|&\n"):
            is_file = token[-1] in "<>"
            if not is_file:
                commands.append([])
        elif is_file:
            is_file = False
        elif commands[-1] or not (_ASSIGNMENT.match(token) or token in BUILTINS):
            commands[-1].append(token)
    return [each for each in commands if each and each[0] != "."]
