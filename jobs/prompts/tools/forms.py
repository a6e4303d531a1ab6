"""What the answer to a request must be: of a certain form, calls, or either calls or text."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final, Self

from jobs.database.base import JsonObject
from jobs.errors import InvalidRequestError
from jobs.prompts import guides
from jobs.prompts.abilities import TOOLS, Takes, is_lacking, refusal
from jobs.prompts.guides import Guide, GuideKind
from jobs.prompts.structured import StructuredFields
from jobs.prompts.tools.definitions import FunctionTool, NamedToolChoice, ToolFields

# A model that repeats itself would make calls until max_tokens.
_MAX_CALLS: Final = 16


@dataclass(frozen=True, slots=True)
class CallForm:
    """Which calls an answer may make.

    Attributes:
        names: of the functions.
        strict: the JSON Schemas of arguments that are checked, as text, by function.
        is_required: an answer without a call is wrong.
        is_json: the answer is asked for as calls in JSON alone.
        is_parallel: there may be several.
    """

    names: tuple[str, ...]
    strict: Mapping[str, str]
    is_required: bool = False
    is_json: bool = False
    is_parallel: bool = True


@dataclass(frozen=True, slots=True)
class AnswerForm:
    """What an answer must be.

    Attributes:
        guide: the form of its text; None: any.
        calls: that it may make; None: none.
    """

    guide: Guide | None = None
    calls: CallForm | None = None

    @property
    def is_in_words(self) -> bool:
        """True if the prompt asks for it, and the engine does not guide."""
        return self.guide is not None and self.guide.in_words

    @property
    def is_guided(self) -> bool:
        """True if the engine guides the answer from its first token on."""
        return self.guide is not None and not self.guide.in_words

    @property
    def is_unguided(self) -> bool:
        """True if an answer may turn out to be wrong, and another one may be right."""
        is_strict = self.calls is not None and bool(self.calls.strict)
        return self.is_in_words or (is_strict and not self.is_guided)

    def check_fallback(self, *, is_stream: bool, is_chat: bool) -> None:
        """Refuse to ask for it in words where that cannot work.

        Raises:
            InvalidRequestError: the answer is streamed, or the request is no conversation.
        """
        if not self.is_in_words or (is_chat and not is_stream):
            return
        only = "only a conversation can be asked for a form in words."
        message = "a stream cannot be checked before it is sent." if is_stream else only
        raise InvalidRequestError(f"structured_fallback: {message}", param="structured_fallback")

    def written(self) -> str | None:
        """Write it as the canonical text that is stored; None: any text will do."""
        if self.calls is None:
            return None if self.guide is None else self.guide.written()
        guide = None if self.guide is None else json.loads(self.guide.written())
        return json.dumps({"form": guide, "calls": asdict(self.calls)})

    @classmethod
    def read(cls, text: str) -> Self:
        """Read a stored one."""
        found = json.loads(text)
        if "calls" not in found:
            return cls(Guide.read(text))
        guide = None if found["form"] is None else Guide.read(json.dumps(found["form"]))
        calls = found["calls"]
        return cls(guide, CallForm(**{**calls, "names": tuple(calls["names"])}))


ANY_FORM: Final = AnswerForm()


class AnswerFields(StructuredFields, ToolFields):
    """The fields of requests that answer a conversation: the form of the answer, and its calls."""

    def form_on(self, model: str, takes: Takes) -> tuple[AnswerForm, list[JsonObject]]:
        """Return what the answer must be, and the functions that the model is told of.

        `response_format` has no effect where a function must be called: no text is left that it could form.

        Args:
            model: that is to answer.
            takes: what its engines take.

        Raises:
            InvalidRequestError: a field is not valid, exceeds a limit, or excludes another one.
            UnsupportedParameterError: not every engine of the model takes what is asked for.
        """
        must_call = self.tool_choice == "required" or isinstance(self.tool_choice, NamedToolChoice)
        formed = self.model_copy(update={"response_format": None}) if must_call else self
        sent, tools = self.tool_schemas(), self.offered
        if tools and is_lacking(TOOLS, model, takes):
            raise refusal("tools", [TOOLS], model, takes)
        guide = formed.guide_on(model, takes, beside=sent)
        if not tools:
            return AnswerForm(guide), []
        if guide is not None:
            message = (
                "tools: an answer of a certain form can make no calls; leave the form out, or set tool_choice"
                " to none."
            )
            raise InvalidRequestError(message, param="tools")
        return self._calls(tools, model, takes), [each.shown() for each in tools]

    def _calls(self, tools: Sequence[FunctionTool], model: str, takes: Takes) -> AnswerForm:
        functions = [each.function for each in tools]
        form = CallForm(
            names=tuple(each.name for each in functions),
            strict={each.name: json.dumps(each.schema_of_arguments) for each in functions if each.strict},
            is_parallel=self.parallel_tool_calls is not False,
        )
        match self.tool_choice:
            case NamedToolChoice(function=chosen):
                wanted = [each for each in tools if each.function.name == chosen.name]
            case "required":
                wanted = list(tools)
            case _:
                return AnswerForm(calls=form)
        is_several = self.parallel_tool_calls is True and len(wanted) == len(tools)
        is_in_words = is_lacking(GuideKind.JSON, model, takes)
        if is_in_words and self.structured_fallback is None:
            raise refusal("tool_choice", [GuideKind.JSON], model, takes)
        guide = guides.json_guide(schema_of_calls(wanted, is_several=is_several), param="tool_choice")
        guides.check([("tool_choice", guide)])
        guide = replace(guide, in_words=is_in_words)
        names = tuple(each.function.name for each in wanted)
        calls = replace(form, names=names, is_required=True, is_json=True, is_parallel=is_several)
        return AnswerForm(guide, calls)


def schema_of_calls(tools: Sequence[FunctionTool], *, is_several: bool) -> JsonObject:
    """Write the JSON Schema of an answer that calls one of these functions, or several as a list."""
    definitions: JsonObject = {}
    calls = [_schema_of_call(tool, number, definitions) for number, tool in enumerate(tools)]
    schema: JsonObject = calls[0] if len(calls) == 1 else {"anyOf": calls}
    if is_several:
        schema = {"type": "array", "minItems": 1, "maxItems": _MAX_CALLS, "items": schema}
    return {**schema, "$defs": definitions} if definitions else schema


def _schema_of_call(tool: FunctionTool, number: int, definitions: JsonObject) -> JsonObject:
    """Write the schema of one call; move the definitions of its arguments where references find them."""
    own = dict(tool.function.schema_of_arguments)
    for place in ("$defs", "definitions"):
        found = own.pop(place, None)
        if isinstance(found, dict):
            definitions |= {f"{number}.{name}": _moved(each, number) for name, each in found.items()}
    own.pop("$schema", None)
    return {
        "type": "object",
        "properties": {
            "name": {"enum": [tool.function.name]},
            "arguments": {"type": "object"} | _moved(own, number),
        },
        "required": ["name", "arguments"],
        "additionalProperties": False,
    }


def _moved(schema: Any, number: int) -> Any:  # noqa: ANN401  # JSON
    """Rename the definitions that a schema refers to. Its depth is bounded."""
    match schema:
        case dict():
            return {
                name: _reference(each, number) if name == "$ref" else _moved(each, number)
                for name, each in schema.items()
            }
        case list():
            return [_moved(each, number) for each in schema]
    return schema


def _reference(target: Any, number: int) -> Any:  # noqa: ANN401  # JSON
    if not isinstance(target, str):
        return _moved(target, number)
    for place in ("#/$defs/", "#/definitions/"):
        if target.startswith(place):
            return f"#/$defs/{number}.{target.removeprefix(place)}"
    message = "tool_choice: a function that must be called may only refer to its own $defs."
    raise InvalidRequestError(message, param="tool_choice")
