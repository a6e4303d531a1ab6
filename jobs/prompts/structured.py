"""The fields of a request that ask for an answer of a certain form: OpenAI's, vLLM's, vLLM's older ones."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, Final, Literal

from pydantic import BeforeValidator, ConfigDict, Discriminator, Field, Tag

from jobs.errors import InvalidRequestError
from jobs.prompts import guides
from jobs.prompts.abilities import Takes, is_lacking, refusal
from jobs.prompts.guides import Guide, GuideKind
from jobs.prompts.messages import Message
from jobs.validation import Closed, NonEmpty, Text

_MAX_CHOICES: Final = 1000
_OPENAI_SCHEMA: Final = "response_format.json_schema.schema"
_FORMATS: Final = frozenset({"text", "json_object", "json_schema"})
# A grammar cannot be checked here.
_IN_WORDS: Final = frozenset({GuideKind.JSON, GuideKind.REGEX, GuideKind.CHOICE})


def _parsed(value: object) -> object:
    """Read a schema that is given as a text of JSON."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return value


Schema = Annotated[dict[str, Any], BeforeValidator(_parsed)]
Choices = Annotated[list[NonEmpty], Field(min_length=1, max_length=_MAX_CHOICES)]


class JsonSchemaOptions(Closed):
    """A JSON Schema with a name, as OpenAI takes it."""

    model_config = ConfigDict(validate_by_name=True, validate_by_alias=True, serialize_by_alias=True)

    name: NonEmpty
    description: Text | None = None
    schema_: Schema = Field(alias="schema")
    strict: bool | None = Field(None, description="Answers are checked either way.")


class TextFormat(Closed):
    """Any text."""

    type: Literal["text"]


class JsonObjectFormat(Closed):
    """Any JSON object."""

    type: Literal["json_object"]


class JsonSchemaFormat(Closed):
    """JSON by a schema."""

    type: Literal["json_schema"]
    json_schema: JsonSchemaOptions


def _format_of(value: object) -> str | None:
    kind = value.get("type") if isinstance(value, dict) else getattr(value, "type", None)
    return kind if isinstance(kind, str) and kind in _FORMATS else None


ResponseFormat = Annotated[
    Annotated[TextFormat, Tag("text")]
    | Annotated[JsonObjectFormat, Tag("json_object")]
    | Annotated[JsonSchemaFormat, Tag("json_schema")],
    Discriminator(
        _format_of,
        custom_error_type="response_format",
        custom_error_message="type must be text, json_object or json_schema",
    ),
]


class StructuredOutputs(Closed):
    """The form of an answer in vLLM's words; exactly one."""

    model_config = ConfigDict(validate_by_name=True, validate_by_alias=True, serialize_by_alias=True)

    json_: Schema | None = Field(None, alias="json", description="a JSON Schema")
    json_object: Literal[True] | None = None
    regex: NonEmpty | None = None
    choice: Choices | None = None
    grammar: NonEmpty | None = None


class StructuredFields(Closed):
    """The fields of all requests that generate: at most one may ask for a form."""

    response_format: ResponseFormat | None = Field(
        None, description="The form of the answer, which is checked before the request is complete."
    )
    structured_outputs: StructuredOutputs | None = Field(
        None, description="The same in vLLM's words, with regular expressions, choices and grammars."
    )
    guided_json: Schema | None = Field(None, description="`structured_outputs.json` in older words.")
    guided_regex: NonEmpty | None = Field(None, description="`structured_outputs.regex` in older words.")
    guided_choice: Choices | None = Field(None, description="`structured_outputs.choice` in older words.")
    guided_grammar: NonEmpty | None = Field(None, description="`structured_outputs.grammar` in older words.")
    structured_fallback: Literal["words"] | None = Field(
        None,
        description="For engines that cannot guide an answer: `words` asks for the form in the prompt, checks"
        " the answer and tries again, as often as failed jobs are tried. Null: such a request is refused.",
    )

    def guide_on(self, model: str, takes: Takes, *, beside: Sequence[tuple[str, Guide]] = ()) -> Guide | None:
        """Return the form that the request asks for, and who sees to it: the engine, or the prompt's words.

        Args:
            model: that is to answer.
            takes: what its engines take.
            beside: the request's other schemas with their parameters; all are checked in one budget.

        Returns:
            None if it asks for none.

        Raises:
            InvalidRequestError: the form is not valid, exceeds a limit, or is not the only one.
            UnsupportedParameterError: not every engine of the model can guide an answer to it.
        """
        found = [*self._of_openai(), *self._of_vllm(), *self._of_older_vllm()]
        if len(found) > 1:
            (first, _), (second, _), *_ = found
            raise InvalidRequestError(f"Only one of {first} and {second} may be set.", param=second)
        for param, guide in found:
            if is_lacking(guide.kind, model, takes):
                if self.structured_fallback is None or guide.kind not in _IN_WORDS:
                    raise refusal(param, [guide.kind], model, takes)
                found = [(param, replace(guide, in_words=True))]
        placed = [(_OPENAI_SCHEMA if param == "response_format" else param, guide) for param, guide in found]
        guides.check([*placed, *beside])
        return found[0][1] if found else None

    def _of_openai(self) -> list[tuple[str, Guide]]:
        match self.response_format:
            case JsonObjectFormat():
                return [("response_format", guides.json_guide(guides.ANY_OBJECT, param="response_format"))]
            case JsonSchemaFormat(json_schema=options):
                return [("response_format", guides.json_guide(options.schema_, param=_OPENAI_SCHEMA))]
        return []

    def _of_vllm(self) -> list[tuple[str, Guide]]:
        asked, name = self.structured_outputs, "structured_outputs"
        if asked is None:
            return []
        found = _guides(asked.json_, asked.regex, asked.choice, asked.grammar, prefix=f"{name}.")
        if asked.json_object:
            found.append((f"{name}.json_object", guides.json_guide(guides.ANY_OBJECT, param=name)))
        if not found:
            raise InvalidRequestError(
                f"{name}: one of json, json_object, regex, choice and grammar must be set.", param=name
            )
        return found

    def _of_older_vllm(self) -> list[tuple[str, Guide]]:
        return _guides(
            self.guided_json, self.guided_regex, self.guided_choice, self.guided_grammar, prefix="guided_"
        )


def with_words(turns: Sequence[Message], guide: Guide | None) -> list[Message]:
    """Ask for the form at the end of the user's last turn, if the engine does not see to it."""
    found = list(turns)
    if guide is None or not guide.in_words:
        return found
    last = max((at for at, turn in enumerate(found) if turn.role == "user"), default=None)
    if last is None:
        return [*found, Message("user", guide.words())]
    found[last] = Message("user", f"{found[last].content}\n\n{guide.words()}")
    return found


def _guides(
    schema: Mapping[str, Any] | None,
    regex: str | None,
    choice: list[str] | None,
    grammar: str | None,
    *,
    prefix: str,
) -> list[tuple[str, Guide]]:
    found: list[tuple[str, Guide]] = []
    if schema is not None:
        found.append((f"{prefix}json", guides.json_guide(schema, param=f"{prefix}json")))
    if regex is not None:
        found.append((f"{prefix}regex", guides.regex_guide(regex, param=f"{prefix}regex")))
    if choice is not None:
        found.append((f"{prefix}choice", guides.choice_guide(choice, param=f"{prefix}choice")))
    if grammar is not None:
        found.append((f"{prefix}grammar", guides.grammar_guide(grammar, param=f"{prefix}grammar")))
    return found
