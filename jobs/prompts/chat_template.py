"""A model's chat template, rendered so that the content of messages never becomes markup."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, NoReturn

from jinja2 import TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from jobs.errors import LongbatchError
from jobs.prompts.messages import Role

# Replaces a message's content while the template is rendered. No template holds private-use characters.
_PLACEHOLDER: Final = "\uf8ff{}\uf8fe"
_PLACEHOLDERS: Final = re.compile("\uf8ff([0-9]+)\uf8fe")


class ChatTemplateError(LongbatchError):
    """The model's chat template cannot render this conversation."""

    code = "chat_template_error"


@dataclass(frozen=True, slots=True)
class ControlToken:
    """An added token that only the template may write.

    Attributes:
        text: as the template writes it.
        id: its token id.
        strips_left: whether it absorbs the white space before it.
        strips_right: whether it absorbs the white space after it.
    """

    text: str
    id: int
    strips_left: bool = False
    strips_right: bool = False


# Text without control tokens: the template's literals, and the index of each message whose content goes here.
Run = tuple[str | int, ...]
# A rendered conversation without its content: control token ids and runs.
Skeleton = tuple[int | Run, ...]


class ChatTemplate:
    """A compiled chat template; safe to use from several threads.

    The template sees placeholders instead of contents, so a conversation's markup depends on its roles alone.
    Control tokens are searched for in that markup only, before any content is filled in.
    """

    def __init__(
        self, source: str, *, control_tokens: Sequence[ControlToken], variables: Mapping[str, str]
    ) -> None:
        try:
            self._template = _environment().from_string(source)
        except TemplateError as error:
            raise ChatTemplateError(f"The model's chat template does not compile: {error}") from error
        self._variables = dict(variables)
        self._control_pattern = control_pattern(control_tokens)
        # Conversations come in few shapes, so nearly every skeleton is cached.
        self.skeleton: Callable[[tuple[Role, ...]], Skeleton] = lru_cache(maxsize=256)(self._skeleton)

    def _skeleton(self, roles: tuple[Role, ...]) -> Skeleton:
        """Render the markup around messages of these roles, up to the assistant's answer.

        Raises:
            ChatTemplateError: the template refuses these roles, or leaves a message out.
        """
        markup = self._render(roles)
        if missing := set(range(len(roles))) - {int(index) for index in _PLACEHOLDERS.findall(markup)}:
            raise ChatTemplateError(f"The model's chat template leaves out message {min(missing)}.")
        pieces: list[int | Run] = []
        position = 0
        for match in self._control_pattern.finditer(markup):
            pieces += (_run(markup[position : match.start()]), token_id(match))
            position = match.end()
        pieces.append(_run(markup[position:]))
        return tuple(piece for piece in pieces if piece != ())

    def _render(self, roles: tuple[Role, ...]) -> str:
        messages = [{"role": role, "content": _PLACEHOLDER.format(index)} for index, role in enumerate(roles)]
        try:
            return self._template.render(
                messages=messages, add_generation_prompt=True, tools=None, documents=None, **self._variables
            )
        except TemplateError as error:
            raise ChatTemplateError(f"The model's chat template refuses these roles: {error}") from error


def _run(markup: str) -> Run:
    """Split markup into literals and the message indexes between them, in order."""
    pieces = _PLACEHOLDERS.split(markup)  # literal, index, literal, …, literal
    return tuple(int(piece) if number % 2 else piece for number, piece in enumerate(pieces) if piece)


def control_pattern(tokens: Sequence[ControlToken]) -> re.Pattern[str]:
    """Compile a pattern for these tokens, longest first; `token_id` reads a match."""
    longest_first = sorted(tokens, key=lambda token: len(token.text), reverse=True)
    return re.compile("|".join(map(_alternative, longest_first)) or "(?!)")


def _alternative(token: ControlToken) -> str:
    before, after = r"\s*" if token.strips_left else "", r"\s*" if token.strips_right else ""
    return f"{before}(?P<t{token.id}>{re.escape(token.text)}){after}"


def token_id(match: re.Match[str]) -> int:
    """Return the id of the control token that `control_pattern` matched."""
    return int((match.lastgroup or "")[1:])


def _environment() -> ImmutableSandboxedEnvironment:
    """Build the Jinja dialect of chat templates: transformers 5.23's, without a clock."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _GenerationTag]
    )
    environment.filters["tojson"] = _to_json
    # No strftime_now: a prompt must not change with the day. Templates check whether it is defined.
    environment.globals["raise_exception"] = _raise
    return environment


class _GenerationTag(Extension):
    """`{% generation %}…{% endgeneration %}`, which marks the assistant's text and renders it unchanged."""

    tags = {"generation"}  # noqa: RUF012 as jinja2 declares it

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _to_json(value: object, *, ensure_ascii: bool = False, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent)


def _raise(message: str) -> NoReturn:
    raise TemplateError(message)
