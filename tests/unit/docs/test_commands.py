"""Every command that the docs show exists; a test runs it, or docs/commands.md says why none does."""

import re
import shlex
from collections.abc import Iterator

import pytest

from documented.names import problem_in_words, problem_of, variable_problem
from documented.shell import Block, blocks_of, commands_of, shell_blocks
from scripts.docs.build import ROOT, pages
from scripts.docs.links import without_fences

REGISTER = (ROOT / "docs" / "commands.md").read_text(encoding="utf-8")


def rows(section: str) -> list[list[str]]:
    """The rows of the table of a section."""
    table = REGISTER.partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    lines = [line for line in table.splitlines() if line.startswith("|")][2:]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]


def run_by(block: Block) -> str | None:
    """The test that runs a block as it stands."""
    for page, section, test in rows("Run as they stand"):
        if page == block.page and names(section, block):
            return test
    return None


def names(section: str, block: Block) -> bool:
    return section in {"all", block.section, f"{block.section} ({block.number})"}


def excused() -> Iterator[list[str]]:
    """Beginnings of commands that no test runs as they stand."""
    for commands, _ in rows("Not run as they stand"):
        yield from (each.split() for each in re.findall(r"`([^`]+)`", commands))


def is_excused(command: list[str]) -> bool:
    return any(command[: len(each)] == each for each in excused())


def test_the_docs_show_commands() -> None:
    blocks = shell_blocks()
    assert len(blocks) > 30
    assert {"README.md", "docs/operations.md", "docs/endurance.md"} <= {each.page for each in blocks}


def test_every_command_of_a_block_names_what_exists() -> None:
    wrong = {
        f"{block.place} {shlex.join(command)}": problem
        for block in shell_blocks()
        for command in block.commands
        if (problem := problem_of(command))
    }
    assert wrong == {}


def test_every_command_in_a_sentence_names_what_exists() -> None:
    """History may tell of commands that have gone."""
    found = {
        (page, " ".join(each.split()))
        for page in pages()
        if page != "CHANGELOG.md"
        for each in re.findall(r"`((?:longbatch|make) [^`]+)`", without_fences((ROOT / page).read_text()))
    }
    assert len(found) > 60
    assert {place: said for place in found if (said := problem_in_words(place[1]))} == {}


def test_every_option_in_a_variable_of_make_is_one_of_the_program_behind_it() -> None:
    found = {
        each for page in pages() for each in re.findall(r"\b([A-Z]+)='(--[^']*)'", (ROOT / page).read_text())
    }
    assert len(found) > 5
    assert {each: said for each in found if (said := variable_problem(*each))} == {}


def test_every_block_is_run_or_says_why_not() -> None:
    left = {
        f"{block.place} {shlex.join(command)}"
        for block in shell_blocks()
        if run_by(block) is None
        for command in block.commands
        if not is_excused(command)
    }
    assert left == set(), "run it in a test, or say in docs/commands.md why not"


def test_the_register_names_blocks_tests_and_commands_that_are_there() -> None:
    blocks = shell_blocks()
    for page, section, test in rows("Run as they stand"):
        assert any(each.page == page and names(section, each) for each in blocks), (page, section)
        reads = (ROOT / test).read_text(encoding="utf-8")
        assert page.rpartition("/")[2] in reads, f"{test} does not read {page}"
        heading = section.partition(" (")[0]
        assert heading in reads or section == "all", f"{test} does not read {heading!r}"
    shown = [command for each in blocks if run_by(each) is None for command in each.commands]
    assert [each for each in excused() if not any(command[: len(each)] == each for command in shown)] == []


@pytest.mark.parametrize(
    ("command", "problem"),
    [
        ("longbatch ask folder --nonsense", "No such option: --nonsense"),
        ("longbatch ask --estimate", "['paths'] are missing"),
        ("longbatch keys nope", "there is no command 'nope'"),
        ("longbatch keys", "a command is missing"),
        ("longbatch keys create --scope", "Option '--scope' requires an argument."),
        ("longbatch up extra", "nothing takes ['extra']"),
        ("make nope", "there is no target 'nope'"),
        ("make demo NOPE=1", "no recipe uses NOPE"),
        ("make drill DRILL='--seed 7 --nope 1'", "DRILL: ['bench.drill'] have no options ['--nope']"),
        ("curl -s localhost:8080/v1/nope", "the API has no GET /v1/nope"),
        ("lb -X PUT localhost:8080/v1/jobs", "the API has no PUT /v1/jobs"),
        ("pip install 'longbatch[nope]'", "there are no extras {'nope'}"),
        ("docker build --build-arg NOPE=1 .", "the image has no arguments {'NOPE'}"),
        ("python -m nope", "there is no module nope"),
        ("python -m cli nope", "there is no command 'nope'"),
        ("kubectl exec deploy/x -- python -m cli keys nope", "there is no command 'nope'"),
        ("helm install longbatch deploy/nope", "there is no ['deploy/nope']"),
    ],
)
def test_a_command_that_names_what_is_not_there_is_found(command: str, problem: str) -> None:
    assert problem_of(shlex.split(command)) == problem


def test_a_block_is_taken_apart_as_a_shell_would() -> None:
    text = """
lb() { curl -s "$@"; }              # a function
FILE=$(lb -F file=@a host/files | python3 -c 'print(1)')
cat > file <<'END'
longbatch nothing
END
if [ -e x ]; then mv x y; fi
longbatch ask a \\
  -q "What, then?" > out.json && HOURS=1 make demo
"""
    assert [each for each in commands_of(text) if each[0] != "-e"] == [
        ["curl", "-s", "$@"],
        ["lb", "-F", "file=@a", "host/files"],
        ["python3", "-c", "print(1)"],
        ["cat"],
        ["mv", "x", "y"],
        ["longbatch", "ask", "a", "-q", "What, then?"],
        ["make", "demo"],
    ]


def test_a_block_without_a_language_is_shell_if_a_line_is_a_command() -> None:
    found = blocks_of(
        "page", "# One\n\n```\nclient ──► api\n```\n\n```sh\n# Two\nls\n```\n\n```\nmake demo\n```\n"
    )
    assert [(each.section, each.line, each.commands) for each in found] == [
        ("One", 7, [["ls"]]),
        ("One", 12, [["make", "demo"]]),
    ]
