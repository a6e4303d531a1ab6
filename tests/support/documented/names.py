"""Whether what a command of the docs names exists: options, targets of make, addresses of the API."""

import importlib.util
import json
import re
import shlex
import tomllib
from collections.abc import Callable, Iterator
from itertools import pairwise

from typer._click.core import Command
from typer._click.exceptions import NoSuchOption, UsageError
from typer.core import TyperGroup

from commands import whole_command
from scripts.docs.build import ROOT

MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
_SERVER = re.compile(r"(https?://)?(localhost:8080|\$LONGBATCH_API_URL|\$OPENAI_BASE_URL)")
_WITH_BODY = {"-d", "--data", "--data-binary", "-F"}


def problem_of(command: list[str]) -> str | None:
    """What is wrong with a command; None also if nothing is known of its program."""
    program, *arguments = command
    return _CHECKS[program](arguments) if program in _CHECKS else None


def _longbatch(arguments: list[str], *, is_whole: bool = True) -> str | None:
    """Parse the arguments as the CLI does, which neither reads files nor runs."""
    command: Command = whole_command()
    left = [*arguments]
    while isinstance(command, TyperGroup) and left and not left[0].startswith("-"):
        name = left.pop(0)
        if name not in command.commands:
            return f"there is no command {name!r}"
        command = command.commands[name]
    if isinstance(command, TyperGroup) and not left:
        return "a command is missing" if is_whole else None
    context = command.make_context("longbatch", [], resilient_parsing=True)
    context.resilient_parsing = False
    try:
        values, rest, _ = command.make_parser(context).parse_args(left)
    except UsageError as error:
        return error.format_message() if is_whole or isinstance(error, NoSuchOption) else None
    missing = [each.name for each in command.params if each.required and not values.get(each.name or "")]
    if is_whole and (rest or missing):
        return f"nothing takes {rest}" if rest else f"{missing} are missing"
    return None


def _make(arguments: list[str]) -> str | None:
    for each in arguments:
        name, mark, value = each.partition("=")
        if not mark and not re.search(rf"^([\w-]+ )*{re.escape(name)}( [\w-]+)*:", MAKEFILE, re.MULTILINE):
            return f"there is no target {name!r}"
        if mark and (said := variable_problem(name, value)):
            return said
    return None


def variable_problem(name: str, value: str) -> str | None:
    """What is wrong with a variable of make; its options are those of the program that its recipe runs."""
    uses = rf"\$\((if \$\(|or \$\(|){name}\)|\${name}\b|^{name} "
    if not re.search(uses, MAKEFILE, re.MULTILINE):
        return f"no recipe uses {name}"
    wanted = [each for each in shlex.split(value) if each.startswith("--")]
    recipes = "\n".join(re.findall(rf"^.*\$\({name}\)", MAKEFILE, re.MULTILINE))
    scripts = [(ROOT / each).read_text(encoding="utf-8") for each in re.findall(r"scripts/\w+\.sh", recipes)]
    modules = re.findall(r"-m (bench[\w.]*)", "\n".join([recipes, *scripts]))
    places = [ROOT / f"{each.replace('.', '/')}.py" for each in modules]
    places += [ROOT / each.replace(".", "/") / "__main__.py" for each in modules]
    sources = [each.read_text(encoding="utf-8") for each in places if each.is_file()]
    unknown = [each for each in wanted if not any(f'"{each}"' in source for source in sources)]
    return f"{name}: {modules} have no options {unknown}" if unknown else None


def _curl(arguments: list[str]) -> str | None:
    """Find the address among what the API describes."""
    (address,) = [each for each in arguments if _SERVER.match(each)] or [""]
    if not address:
        return None if "$@" in arguments else "no address of the server"
    path = _SERVER.sub("/v1" if "OPENAI" in address else "", address).partition("?")[0]
    method = "post" if _WITH_BODY & {*arguments} else "get"
    if "-X" in arguments:
        method = arguments[arguments.index("-X") + 1].lower()
    return None if any(_matches(path, method)) else f"the API has no {method.upper()} {path}"


def _matches(path: str, method: str) -> Iterator[bool]:
    described = json.loads((ROOT / "docs" / "openapi.json").read_text(encoding="utf-8"))["paths"]
    for template, methods in described.items():
        pattern = re.sub(r"\\\{\w+(:\w+)?\\\}", "[^/]+", re.escape(template))
        yield method in methods and re.fullmatch(pattern, path) is not None


def _python(arguments: list[str]) -> str | None:
    if arguments[:1] != ["-m"]:
        return None
    if arguments[1] == "cli":
        return _longbatch(arguments[2:])
    return None if importlib.util.find_spec(arguments[1]) else f"there is no module {arguments[1]}"


def _kubectl(arguments: list[str]) -> str | None:
    """Look at the command that runs in a container."""
    return problem_of(arguments[arguments.index("--") + 1 :]) if "--" in arguments else None


def _helm(arguments: list[str]) -> str | None:
    """Look whether files of this repository are there; `values.yaml` is the reader's."""
    gone = [each for each in arguments if each.startswith("deploy/") and not (ROOT / each).exists()]
    return f"there is no {gone}" if gone else None


def _pip(arguments: list[str]) -> str | None:
    extras = PROJECT["project"]["optional-dependencies"]
    named = {name for each in arguments for name in re.findall(r"longbatch\[([^\]]+)\]", each)}
    unknown = {each for name in named for each in name.split(",")} - extras.keys()
    return f"there are no extras {unknown}" if unknown else None


def _docker(arguments: list[str]) -> str | None:
    given = [each.partition("=")[0] for flag, each in pairwise(arguments) if flag == "--build-arg"]
    known = re.findall(r"^ARG (\w+)", (ROOT / "Dockerfile").read_text(encoding="utf-8"), re.MULTILINE)
    return f"the image has no arguments {unknown}" if (unknown := {*given} - {*known}) else None


_CHECKS: dict[str, Callable[[list[str]], str | None]] = {
    "longbatch": _longbatch,
    "make": _make,
    "curl": _curl,
    "lb": _curl,
    "op": _curl,
    "python": _python,
    "pip": _pip,
    "docker": _docker,
    "helm": _helm,
    "kubectl": _kubectl,
}


def problem_in_words(code: str) -> str | None:
    """What is wrong with a command in a sentence, which may leave out its arguments."""
    try:
        program, *arguments = [each for each in shlex.split(code) if "…" not in each]
    except ValueError:  # a quote of which it shows half
        return None
    if program == "longbatch":  # `longbatch keys create|list` names two
        each_alone = ([*arguments[:-1], name] for name in arguments[-1].split("|")) if arguments else ([],)
        return next((said for one in each_alone if (said := _longbatch(one, is_whole=False))), None)
    return _make(arguments) if program == "make" else None
