"""What form an answer must have: the guide that an engine generates by, checked when it is asked for."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import Any, Final, Self
from urllib.parse import unquote

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
# Of schemas beside `unevaluatedProperties` and `unevaluatedItems`, for which the library compiles whatever
# applies to the same value once for each path that leads to it: 10 µs each, while nothing else runs.
_MAX_PATHS: Final = 20_000
_BASES_A_STEP: Final = 20  # looked through in the time of a step
_SAME_VALUE: Final = ("allOf", "anyOf", "oneOf", "if", "then", "else", "dependentSchemas")
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
    if '"unevaluated' in written and _has_many_paths(schema):
        message = "too many references lead to each other beside unevaluatedProperties or unevaluatedItems."
        raise InvalidRequestError(f"{param}: {message}", param=param)
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


def _has_many_paths(schema: Mapping[str, Any]) -> bool:
    """Follow all paths that compiling the schema follows; return whether they are more than the limit."""
    parts = [*_dicts(schema)]
    targets = _Targets(schema, parts)
    for part in parts:
        if "unevaluatedProperties" not in part and "unevaluatedItems" not in part:
            continue
        # The parts on the present path are open: the library follows none of them again.
        opened: set[int] = set()
        waiting: list[tuple[Mapping[str, Any], bool]] = [(part, True)]
        while waiting:
            each, is_entered = waiting.pop()
            if not is_entered:
                opened.discard(id(each))
            elif id(each) not in opened:
                targets.steps += 1
                opened.add(id(each))
                waiting.append((each, False))
                waiting += [(found, True) for found in targets.of_same_value(each)]
            if targets.steps > _MAX_PATHS or len(waiting) > _MAX_PATHS:
                return True
    return False


class _Targets:
    """Where the references of a schema may lead: to all parts that they could mean, by pointer or by name."""

    def __init__(self, root: Mapping[str, Any], parts: list[Mapping[str, Any]]) -> None:
        self.steps = 0
        self._bases = [each for each in parts if each is root or isinstance(each.get("$id"), str)]
        self._named: dict[str, list[Mapping[str, Any]]] = {}
        for each in parts:
            for keyword in ("$anchor", "$dynamicAnchor", "$id"):
                if isinstance(name := each.get(keyword), str):
                    self._named.setdefault(_last_of(name), []).append(each)
        self._found: dict[str, list[Mapping[str, Any]]] = {}

    def of_same_value(self, part: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
        """Yield the schemas that apply to the same value as this part of the schema does."""
        for keyword in _SAME_VALUE:
            found = part.get(keyword)
            among = found if isinstance(found, list) else [found]
            if keyword == "dependentSchemas" and isinstance(found, dict):
                among = [*found.values()]
            yield from (each for each in among if isinstance(each, dict))
        for keyword in ("$ref", "$dynamicRef", "$recursiveRef"):
            if isinstance(reference := part.get(keyword), str):
                yield from self._referred(reference)

    def _referred(self, reference: str) -> list[Mapping[str, Any]]:
        if reference not in self._found:
            self.steps += len(self._bases) // _BASES_A_STEP
            _, _, fragment = reference.partition("#")
            if not fragment or fragment.startswith("/"):
                steps = [unquote(each).replace("~1", "/").replace("~0", "~") for each in fragment.split("/")]
                led = (_walked(base, steps[1:]) for base in self._bases)
                self._found[reference] = [each for each in led if isinstance(each, dict)]
            else:
                self._found[reference] = self._named.get(_last_of(reference), [])
        return self._found[reference]


def _last_of(name: str) -> str:
    """Return the end of a URI, by which a reference and what it means are alike however they are written."""
    return unquote(name).rpartition("#")[2].rpartition("/")[2]


def _walked(value: object, steps: list[str]) -> object:
    for step in steps:
        match value:
            case dict():
                value = value.get(step)
            case list() if step.isdecimal() and len(step) < 6 and int(step) < len(value):
                value = value[int(step)]
            case _:
                return None
    return value


def _dicts(schema: object) -> Iterator[Mapping[str, Any]]:
    """Yield all objects in a schema; without recursion."""
    waiting = [schema]
    while waiting:
        each = waiting.pop()
        if isinstance(each, dict):
            yield each
            waiting += each.values()
        elif isinstance(each, list):
            waiting += each
