"""What form an answer must have: the guide that an engine generates by, checked when it is asked for."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import Any, Final, Self

from jobs.errors import InvalidRequestError
from jobs.prompts.confined.processes import SHARED, TooCostlyError

# OpenAI takes 120,000 characters in all; grammars of engines grow faster than what they are made from.
MAX_BYTES: Final = 64 * 1024
_MAX_DEPTH: Final = 64
# Workers go through them on the loop that streams answers, 25 µs each.
_MAX_OBJECTS: Final = 5000
# Some engines write a bounded repetition out: one of a million would take all of their memory.
_MAX_REPEATS: Final = 10_000
_REPEATS: Final = frozenset(
    {"minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties", "minContains"}
)
# Of all schemas and expressions of a request together.
MAX_PATTERNS: Final = 100
MAX_PATTERNS_BYTES: Final = 16 * 1024
_TOO_COSTLY: Final = (
    "the schemas of the request take too much time or memory to compile; use fewer patterns, repetitions and"
    " references."
)


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
    """Make the guide of an answer in JSON by this schema; `check` finds out whether it is one.

    Raises:
        InvalidRequestError: it exceeds a limit.
    """
    _check_shape(schema, param)
    # In the order in which it was written, in which engines generate properties.
    try:
        written = json.dumps(schema, separators=(",", ":"), allow_nan=False)
    except ValueError:
        raise InvalidRequestError(f"{param}: must be JSON of finite numbers.", param=param) from None
    return Guide(GuideKind.JSON, _bounded(written, param))


def regex_guide(pattern: str, *, param: str) -> Guide:
    """Make the guide of an answer that a regular expression matches from beginning to end; see `check`.

    Raises:
        InvalidRequestError: it exceeds a limit.
    """
    return Guide(GuideKind.REGEX, _bounded(pattern, param))


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


def check(asked: Sequence[tuple[str, Guide]]) -> None:
    """Check all guides of one request, which share one budget, by compiling them in a confined process.

    Args:
        asked: guides with the parameters that hold them.

    Raises:
        InvalidRequestError: one cannot be used, or together they exceed a limit.
        CheckerLostError: no process can be started; try again.
    """
    compiled = [(param, guide.kind, content) for param, guide in asked if (content := _schema_of(guide))]
    if not compiled:
        return
    schemas = [json.loads(content) for _, _, content in compiled]
    _check_patterns([*_patterns(schemas)], compiled[0][0])
    fault = _fault(tuple(content for _, _, content in compiled))
    if fault is not None:
        index, reason = fault
        param, kind, _ = compiled[index]
        if kind is GuideKind.REGEX:
            message = "must be a regular expression without look-around and back references, of bounded size."
            raise _refused(param, message)
        raise _refused(param, f"is not a JSON Schema that can be used here: {reason}")


def count_patterns(schema: object) -> int:
    """Count the regular expressions in a schema."""
    return sum(1 for _ in _patterns(schema))


def _schema_of(guide: Guide) -> str | None:
    match guide.kind:
        case GuideKind.JSON:
            return guide.content
        case GuideKind.REGEX:
            return json.dumps(whole_match(guide.content))
        case GuideKind.CHOICE | GuideKind.GRAMMAR:
            return None


def _check_patterns(patterns: Sequence[str], param: str) -> None:
    if len(patterns) > MAX_PATTERNS:
        message = f"a request must not have more than {MAX_PATTERNS} regular expressions"
        raise _refused(param, f"{message} (got {len(patterns)}).")
    num_bytes = sum(len(each.encode(errors="surrogatepass")) for each in patterns)
    if num_bytes > MAX_PATTERNS_BYTES:
        message = f"the regular expressions of a request must not exceed {MAX_PATTERNS_BYTES} bytes in all"
        raise _refused(param, f"{message} (got {num_bytes}).")


@lru_cache(maxsize=64)
def _fault(contents: tuple[str, ...]) -> tuple[int, str] | None:
    """Return the index of the first schema that cannot be used, and why. Lines of a batch share theirs.

    Raises:
        CheckerLostError: no process can be started; try again.
    """
    try:
        found = SHARED.ask({"schemas": contents})
    except TooCostlyError:
        return 0, _TOO_COSTLY
    return None if found is None else (found[0], found[1])


def _refused(param: str, message: str) -> InvalidRequestError:
    return InvalidRequestError(f"{param}: {message}", param=param)


def _patterns(schema: object) -> Iterator[str]:
    """Yield the regular expressions in a schema; without recursion."""
    waiting = [schema]
    while waiting:
        each = waiting.pop()
        if isinstance(each, dict):
            if isinstance(pattern := each.get("pattern"), str):
                yield pattern
            if isinstance(named := each.get("patternProperties"), dict):
                yield from named
            waiting += each.values()
        elif isinstance(each, list):
            waiting += each


def _bounded(content: str, param: str) -> str:
    if len(content.encode(errors="surrogatepass")) > MAX_BYTES:
        raise InvalidRequestError(f"{param}: must not exceed {MAX_BYTES} bytes.", param=param)
    try:
        content.encode()
    except UnicodeEncodeError:
        message = "half of a surrogate pair is not a character."
        raise InvalidRequestError(f"{param}: {message}", param=param) from None
    return content


def _check_shape(schema: object, param: str) -> None:
    """Refuse what is nested too deep, has too many parts, or repeats too often; without recursion."""
    level, num_objects = [schema], 0
    for _ in range(_MAX_DEPTH):
        following: list[object] = []
        for each in level:
            if isinstance(each, dict):
                num_objects += 1
                for name, value in each.items():
                    if name in _REPEATS and isinstance(value, int | float) and value > _MAX_REPEATS:
                        message = f"{name} must not exceed {_MAX_REPEATS}."
                        raise InvalidRequestError(f"{param}: {message}", param=param)
                    following.append(value)
            elif isinstance(each, list):
                following += each
        level = following
        if num_objects > _MAX_OBJECTS:
            raise _refused(param, f"must not have more than {_MAX_OBJECTS} objects.")
        if not level:
            return
    raise InvalidRequestError(f"{param}: must not be nested more than {_MAX_DEPTH} levels deep.", param=param)
