"""What form an answer must have: the guide that an engine generates by, checked when it is asked for."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import Any, Final, Self

import jsonschema_rs

from jobs.errors import InvalidRequestError

# OpenAI takes 120,000 characters in all; grammars of engines grow faster than what they are made from.
MAX_BYTES: Final = 64 * 1024
_MAX_DEPTH: Final = 64
# Some engines write a bounded repetition out: one of a million would take all of their memory.
_MAX_REPEATS: Final = 10_000
_REPEATS: Final = frozenset(
    {"minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties", "minContains"}
)
_PATTERN_BYTES: Final = 1024 * 1024  # of a compiled pattern, and of what matching it may keep


class GuideKind(StrEnum):
    """The forms of an answer; each is an ability that an engine has or lacks."""

    JSON = "guided_json"
    REGEX = "guided_regex"
    CHOICE = "guided_choice"
    GRAMMAR = "guided_grammar"


@dataclass(frozen=True, slots=True)
class Guide:
    """The form of an answer.

    Attributes:
        kind: how `content` is to be read.
        content: a JSON Schema, a regular expression for the whole answer, a JSON list of the possible
            answers, or a grammar in EBNF.
        in_words: the engine does not guide: the prompt asks for the form.
    """

    kind: GuideKind
    content: str
    in_words: bool = False

    @property
    def schema(self) -> Any:  # noqa: ANN401  # JSON
        """The JSON Schema of an answer in JSON."""
        return json.loads(self.content)

    @property
    def choices(self) -> list[str]:
        """The possible answers of a choice."""
        found: list[str] = json.loads(self.content)
        return found

    def written(self) -> str:
        """Write it as the canonical text that is stored."""
        return json.dumps({"guide": self.kind, "content": self.content, "in_words": self.in_words})

    @classmethod
    def read(cls, text: str) -> Self:
        """Read a stored one."""
        found = json.loads(text)
        return cls(GuideKind(found["guide"]), found["content"], in_words=found["in_words"])

    def words(self) -> str:
        """Ask for the form, as the end of a prompt; see `in_words`."""
        match self.kind:
            case GuideKind.JSON:
                return f"Answer with JSON alone, without any other text, by this JSON Schema:\n{self.content}"
            case GuideKind.CHOICE:
                return "Answer with exactly one of these and nothing more:\n" + "\n".join(self.choices)
            case GuideKind.REGEX | GuideKind.GRAMMAR:
                return f"Your whole answer must match this regular expression:\n{self.content}"


ANY_OBJECT: Final[Mapping[str, object]] = {"type": "object"}


def json_guide(schema: Mapping[str, Any], *, param: str) -> Guide:
    """Make the guide of an answer in JSON by this schema.

    Raises:
        InvalidRequestError: it is no schema, or exceeds a limit.
    """
    _check_depth(schema, param)
    # In the order in which it was written, in which engines generate properties.
    try:
        written = json.dumps(schema, separators=(",", ":"), allow_nan=False)
    except ValueError:
        raise InvalidRequestError(f"{param}: must be JSON of finite numbers.", param=param) from None
    content = _bounded(written, param)
    if fault := _schema_fault(content):
        raise InvalidRequestError(f"{param}: {fault}", param=param)
    return Guide(GuideKind.JSON, content)


def regex_guide(pattern: str, *, param: str) -> Guide:
    """Make the guide of an answer that a regular expression matches from beginning to end.

    Raises:
        InvalidRequestError: it is none that can be matched in linear time, or exceeds a limit.
    """
    if _schema_fault(json.dumps(whole_match(_bounded(pattern, param)))):
        message = "must be a regular expression without look-around and back references, and of bounded size."
        raise InvalidRequestError(f"{param}: {message}", param=param)
    return Guide(GuideKind.REGEX, pattern)


def choice_guide(choices: list[str], *, param: str) -> Guide:
    """Make the guide of an answer that is one of these texts.

    Raises:
        InvalidRequestError: they exceed a limit.
    """
    return Guide(GuideKind.CHOICE, _bounded(json.dumps(choices), param))


def grammar_guide(grammar: str, *, param: str) -> Guide:
    """Make the guide of an answer by a grammar, which the engine alone understands.

    Raises:
        InvalidRequestError: it exceeds a limit.
    """
    return Guide(GuideKind.GRAMMAR, _bounded(grammar, param))


def whole_match(pattern: str) -> Mapping[str, object]:
    """Write a JSON Schema of the texts that a pattern matches from beginning to end."""
    return {"type": "string", "pattern": f"^(?:{pattern})$"}


def choice_grammar(choices: list[str]) -> str:
    """Write a choice as a grammar in EBNF, as llama.cpp and XGrammar read it."""
    return "root ::= " + " | ".join(json.dumps(each, ensure_ascii=False) for each in choices)


def validator_of(content: str) -> Any:  # noqa: ANN401  # the library's validators share no class
    """Compile a JSON Schema. It reads nothing from elsewhere, and matches its patterns in linear time.

    Raises:
        ValueError: it is no valid schema, or too large.
    """
    options = jsonschema_rs.RegexOptions(size_limit=_PATTERN_BYTES, dfa_size_limit=_PATTERN_BYTES)
    return jsonschema_rs.validator_for(json.loads(content), pattern_options=options, offline=True)


@lru_cache(maxsize=256)
def _schema_fault(content: str) -> str | None:
    """Return what is wrong with a schema; lines of a batch usually share theirs."""
    try:
        validator_of(content)
    except (ValueError, jsonschema_rs.ReferencingError) as error:
        return f"is not a JSON Schema that can be used here: {str(error).splitlines()[0][:300]}"
    return None


def _bounded(content: str, param: str) -> str:
    if len(content.encode(errors="surrogatepass")) > MAX_BYTES:
        raise InvalidRequestError(f"{param}: must not exceed {MAX_BYTES} bytes.", param=param)
    try:
        content.encode()
    except UnicodeEncodeError:
        message = "half of a surrogate pair is not a character."
        raise InvalidRequestError(f"{param}: {message}", param=param) from None
    return content


def _check_depth(schema: object, param: str) -> None:
    """Refuse what is nested too deep, or repeats too often; without recursion."""
    level = [schema]
    for _ in range(_MAX_DEPTH):
        following: list[object] = []
        for each in level:
            if isinstance(each, dict):
                for name, value in each.items():
                    if name in _REPEATS and isinstance(value, int | float) and value > _MAX_REPEATS:
                        message = f"{name} must not exceed {_MAX_REPEATS}."
                        raise InvalidRequestError(f"{param}: {message}", param=param)
                    following.append(value)
            elif isinstance(each, list):
                following += each
        level = following
        if not level:
            return
    raise InvalidRequestError(f"{param}: must not be nested more than {_MAX_DEPTH} levels deep.", param=param)
