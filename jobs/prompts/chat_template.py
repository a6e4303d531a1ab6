"""A model's chat template, rendered so that the content of messages never becomes markup."""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from typing import Final, NoReturn, cast

from jinja2 import Environment, TemplateError, meta, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from jobs.errors import LongbatchError, UnsupportedParameterError
from jobs.prompts.messages import Conversation, Message, Role
from jobs.prompts.tools.placeholders import ControlPieces, PlaceholderError, Placeholders

# Replaces a message's content while the template is rendered. No template holds private-use characters.
_PLACEHOLDER: Final = "\uf8ff{}\uf8fe"
_PLACEHOLDERS: Final = re.compile("\uf8ff([0-9]+)\uf8fe")
_PRIVATE: Final = re.compile("[\uf8fe\uf8ff]")
# A turn of a skeleton takes some 400 bytes.
_MAX_CACHED_TURNS: Final = 64
# The template's own variables: a caller who set them would write markup, or text that nobody counts.
_RESERVED: Final = frozenset({"add_generation_prompt", "documents", "messages", "tools"})
_WORD: Final = re.compile("[a-zA-Z0-9_-]+")  # as names of functions are
# From the first blank on: a run of n blanks would otherwise be read n times.
BLANKS_BEFORE: Final = r"(?:(?<!\s)\s+)?"
# What a template may raise when a variable has a type that it does not expect.
_RENDER_FAULTS: Final = (
    TemplateError,
    ArithmeticError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)


class ChatTemplateError(LongbatchError):
    """The model's chat template cannot render this conversation."""

    code = "chat_template_error"


class TemplateVariablesError(ChatTemplateError):
    """The model's chat template fails with these chat_template_kwargs."""

    code = "invalid_value"

    def __init__(self, message: str | None = None) -> None:
        super().__init__(message, param="chat_template_kwargs")


class ToolsNotTakenError(ChatTemplateError):
    """The model's chat template takes no tools."""

    code = "unsupported_parameter"

    def __init__(self, message: str | None = None) -> None:
        super().__init__(message, param="tools")

    def refusal(self, model: str) -> UnsupportedParameterError:
        """Word why requests for this model cannot have tools."""
        message = (
            f"tools: the model {model!r} cannot be told of tools: its chat template takes none, or its calls"
            " are in a form that is not known here."
        )
        return UnsupportedParameterError(message, param="tools")


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
    Control tokens are searched for in that markup only, before any content is filled in. Of calls, and of
    tools, it sees all that cannot become a control token, and placeholders of the rest.

    Attributes:
        takes_tools: the template reads the tools that a request defines.
    """

    def __init__(
        self, source: str, *, control_tokens: Sequence[ControlToken], variables: Mapping[str, str]
    ) -> None:
        environment = _environment()
        try:
            self._template = environment.from_string(source)
            names = meta.find_undeclared_variables(environment.parse(source))
        except TemplateError as error:
            raise ChatTemplateError(f"The model's chat template does not compile: {error}") from error
        self.takes_tools = "tools" in names
        self._variables: dict[str, object] = dict(variables)
        if "strftime_now" in names and "strftime_now is defined" not in source:
            self._variables["strftime_now"] = _strftime_now
        self._controls = ControlPieces([token.text for token in control_tokens])
        self._control_pattern = control_pattern(control_tokens)
        # Templates compare variables, so short words are not replaced as those of tools are: they can only
        # become a control token where the template writes the begin of one itself.
        begins = any(self._controls.begin_in(text) for text in _literals(environment, source))
        self._is_unsafe = self._controls.are_in if begins else self._controls.may_form
        self._cached: Callable[[tuple[Role, ...], str], Skeleton] = lru_cache(maxsize=256)(self._skeleton)

    def skeleton(self, roles: tuple[Role, ...], variables: str) -> Skeleton:
        """Return the markup as `_skeleton` renders it.

        Conversations come in few shapes, so nearly every one is cached; but not the longest, which would fill
        the memory.
        """
        find = self._cached if len(roles) <= _MAX_CACHED_TURNS else self._skeleton
        return find(roles, variables)

    def _skeleton(self, roles: tuple[Role, ...], variables: str) -> Skeleton:
        """Render the markup around messages of these roles, up to the assistant's answer.

        Args:
            roles: of the messages.
            variables: the caller's own variables as canonical JSON; empty: none.

        Raises:
            TemplateVariablesError: the template fails with these variables, and only with them.
            ChatTemplateError: the template refuses these roles, or leaves a message out.
        """
        markup = self._markup(roles, self._checked(variables)) if variables else self._markup(roles, {})
        pieces: list[int | Run] = []
        position = 0
        for match in self._control_pattern.finditer(markup):
            pieces += (_run(markup[position : match.start()]), token_id(match))
            position = match.end()
        pieces.append(_run(markup[position:]))
        return tuple(piece for piece in pieces if piece != ())

    def pieces(self, asked: Conversation) -> list[int | str]:
        """Render a conversation with tools, or with calls, up to the assistant's answer.

        Returns:
            Control token ids, and the texts between them, which hold none.

        Raises:
            ToolsNotTakenError: it has tools, and the template takes none.
            TemplateVariablesError: the template fails with its variables, and only with them.
            ChatTemplateError: the template refuses it, or leaves a message or a tool out.
        """
        if asked.tools and not self.takes_tools:
            raise ToolsNotTakenError
        given = self._checked(asked.variables) if asked.variables else {}
        try:
            return self._with_calls(asked, given)
        except ChatTemplateError:
            if given:
                self._with_calls(asked, {})  # otherwise the conversation is at fault
                raise TemplateVariablesError("The model's chat template fails with them.") from None
            raise

    def _with_calls(self, asked: Conversation, given: Mapping[str, object]) -> list[int | str]:
        kept = Placeholders(self._controls)
        contents = [kept.of(each.content) for each in asked.messages]
        turns = [_turn(each, content, kept) for each, content in zip(asked.messages, contents, strict=True)]
        tools = kept.tamed(asked.tools) if asked.tools else None
        own = {"messages": turns, "add_generation_prompt": True, "tools": tools, "documents": None}
        try:
            markup = self._template.render({**given, **own, **self._variables})
            pieces = _cut(markup, self._control_pattern, kept)
            _check_whole(asked, Placeholders.indexes_in(markup), pieces)
        except (*_RENDER_FAULTS, PlaceholderError) as error:
            raise ChatTemplateError(
                f"The model's chat template refuses these messages and tools: {error}"
            ) from error
        return pieces

    def _checked(self, variables: str) -> dict[str, object]:
        """Read the caller's variables, none of which may write markup of its own.

        Raises:
            TemplateVariablesError: one has a reserved name, or holds text that could become a control token.
        """
        given = cast("dict[str, object]", json.loads(variables))
        if reserved := given.keys() & (_RESERVED | self._variables.keys()):
            raise TemplateVariablesError(f"The variable {min(reserved)!r} cannot be set.")
        for text in _texts(given):
            if any(map(self._is_unsafe, {text, text.strip(), text.lower(), text.upper()})):
                raise TemplateVariablesError("A variable holds the text of a control token, or part of one.")
        return given

    def _markup(self, roles: tuple[Role, ...], given: Mapping[str, object]) -> str:
        try:
            markup = self._render(roles, given)
        except _RENDER_FAULTS as error:
            if given:
                self._markup(roles, {})  # otherwise the roles are at fault
                raise TemplateVariablesError(f"The model's chat template fails with them: {error}") from error
            raise ChatTemplateError(f"The model's chat template refuses these roles: {error}") from error
        if missing := set(range(len(roles))) - {int(index) for index in _PLACEHOLDERS.findall(markup)}:
            fault = TemplateVariablesError if given else ChatTemplateError
            raise fault(f"The model's chat template leaves out message {min(missing)}.")
        return markup

    def _render(self, roles: tuple[Role, ...], given: Mapping[str, object]) -> str:
        messages = [{"role": role, "content": _PLACEHOLDER.format(index)} for index, role in enumerate(roles)]
        own = {"messages": messages, "add_generation_prompt": True, "tools": None, "documents": None}
        return self._template.render({**given, **own, **self._variables})


def _check_whole(asked: Conversation, contents: set[int], pieces: Sequence[int | str]) -> None:
    """Refuse a prompt that leaves out a message or a function; what a turn with calls says may be left out.

    Args:
        asked: the conversation.
        contents: the indexes of messages whose content is there.
        pieces: of the prompt.
    """
    wanted = {index for index, each in enumerate(asked.messages) if not each.calls}
    if missing := wanted - contents:
        raise TemplateError(f"it leaves out message {min(missing)}")
    text = "".join(each for each in pieces if isinstance(each, str))
    names = [call.name for each in asked.messages for call in each.calls]
    for tool in asked.tools:
        function = tool["function"]
        names += [str(function["name"])] if isinstance(function, dict) else []
    # A prompt of 8 MB may have 98,000 calls: looking through the text for each name takes minutes. Only names
    # that the template writes next to other letters are no words.
    words = set(_WORD.findall(text))
    if left := next((each for each in names if each not in words and each not in text), None):
        raise TemplateError(f"it leaves out the function {left!r}")


def _literals(environment: Environment, source: str) -> Iterator[str]:
    """Yield the texts that a template can write of itself."""
    for _, kind, text in environment.lex(source):
        if kind == "data":
            yield text
        elif kind == "string":
            yield text[1:-1]


def _turn(message: Message, content: str, kept: Placeholders) -> dict[str, object]:
    """Write a turn as chat templates expect it, with arguments as values where they are JSON of an object."""
    if message.is_plain:
        return {"role": message.role, "content": content}
    if not message.calls:
        call_id = kept.tamed(message.call_id)
        name = kept.tamed(message.name)
        return {"role": message.role, "content": content, "tool_call_id": call_id, "name": name}
    calls = [
        {
            "id": kept.tamed(each.id),
            "type": "function",
            "function": {"name": kept.tamed(each.name), "arguments": kept.tamed(_arguments(each.arguments))},
        }
        for each in message.calls
    ]
    return {"role": message.role, "content": content if message.content else None, "tool_calls": calls}


def _arguments(written: str) -> object:
    try:
        found: object = json.loads(written)
    except (ValueError, RecursionError):
        return written
    return found if isinstance(found, dict) else written


def _cut(markup: str, controls: re.Pattern[str], kept: Placeholders) -> list[int | str]:
    """Cut markup at its control tokens, and fill in what callers wrote between them."""
    pieces: list[int | str] = []
    position = 0
    for match in controls.finditer(markup):
        pieces += (kept.filled(markup[position : match.start()]), token_id(match))
        position = match.end()
    pieces.append(kept.filled(markup[position:]))
    return [each for each in pieces if each != ""]


def _run(markup: str) -> Run:
    """Split markup into literals and the message indexes between them, in order."""
    pieces = _PLACEHOLDERS.split(markup)  # literal, index, literal, …, literal
    return tuple(int(piece) if number % 2 else piece for number, piece in enumerate(pieces) if piece)


def _texts(value: object) -> Iterator[str]:
    """Yield every text in a JSON value, names included."""
    match value:
        case str():
            yield value
        case list():
            for each in value:
                yield from _texts(each)
        case dict():
            for name, each in value.items():
                yield name
                yield from _texts(each)


def control_pattern(tokens: Sequence[ControlToken]) -> re.Pattern[str]:
    """Compile a pattern for these tokens, longest first; `token_id` reads a match."""
    longest_first = sorted(tokens, key=lambda token: len(token.text), reverse=True)
    return re.compile("|".join(map(_alternative, longest_first)) or "(?!)")


def _alternative(token: ControlToken) -> str:
    before, after = BLANKS_BEFORE if token.strips_left else "", r"\s*" if token.strips_right else ""
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


def _strftime_now(form: str) -> str:
    """Write today's date for a template that insists on one; the ids of a prompt keep that of their count."""
    return datetime.now(UTC).strftime(form)


def _to_json(value: object, *, ensure_ascii: bool = False, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent)


def _raise(message: str) -> NoReturn:
    raise TemplateError(message)
