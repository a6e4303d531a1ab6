"""What is wrong with an answer that was to have a certain form."""

import json
from typing import Any, Final

from jobs.prompts.confined.compiling import validator_of
from jobs.prompts.guides import Guide, GuideKind, count_patterns, whole_match

_MAX_CHARS: Final = 300  # of a message, which may quote the answer


def find_fault(guide: Guide, text: str, *, quotes: bool = True) -> str | None:
    """Return what keeps the text from having the form; None: nothing does.

    A grammar is the engine's own matter: it is not checked.

    Args:
        guide: the form.
        text: the answer.
        quotes: what is returned may quote the answer and its schema.
    """
    match guide.kind:
        case GuideKind.JSON:
            return _json_fault(guide.content, text, quotes=quotes)
        case GuideKind.REGEX:
            is_right = _validator(json.dumps(whole_match(guide.content))).is_valid(text)
            return None if is_right else "it does not match the regular expression"
        case GuideKind.CHOICE:
            return None if text in guide.choices else "it is none of the choices"
        case GuideKind.GRAMMAR:
            return None


def _json_fault(content: str, text: str, *, quotes: bool) -> str | None:
    try:
        answer = json.loads(text, parse_constant=_refuse)
        error = next(iter(_validator(content).iter_errors(answer)), None)
    except (ValueError, RecursionError) as broken:
        return f"it is not JSON that can be read: {str(broken)[:_MAX_CHARS]}"
    if error is None:
        return None
    if not quotes:
        return f"it is not valid by the keyword {error.kind.name!r} of its schema"
    place = "".join(f"/{each}" for each in error.instance_path)
    return f"at {place or 'its root'}: {error.message}"[:_MAX_CHARS]


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is no number in JSON")


def _validator(content: str) -> Any:  # noqa: ANN401  # the library's validators share no class
    schema = json.loads(content)
    return validator_of(schema, num_patterns=count_patterns(schema))
