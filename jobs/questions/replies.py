"""What a model replies to one question: the form that it must have, and how it is read."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from jobs.errors import LongbatchError

# In this order, in which engines that are guided write them: what an answer is founded on comes with it.
REPLY_SCHEMA: Final[Mapping[str, Any]] = {
    "type": "object",
    "properties": {
        "found": {"type": "boolean"},
        "answer": {"type": "string"},
        "quote": {"type": "string"},
    },
    "required": ["found", "answer", "quote"],
    "additionalProperties": False,
}


class MalformedAnswerError(LongbatchError):
    """The model's reply does not have the form that was asked for; a long one may have been cut off."""

    code = "malformed_answer"


@dataclass(frozen=True, slots=True)
class Reply:
    """A model's reply to one question.

    Attributes:
        answer: None: the text that it read does not answer the question.
        quote: the words that the answer is founded on; None: it gave none.
    """

    answer: str | None
    quote: str | None = None


def parse_reply(text: str) -> Reply:
    """Read a reply: the first JSON object in the text.

    Raises:
        MalformedAnswerError: there is none, or it has another form.
    """
    match first_object(text):
        case {"found": bool(is_found), "answer": str(answer), "quote": str(quote)}:
            if not is_found or not answer.strip():
                return Reply(None)
            return Reply(storable(answer.strip()), storable(quote.strip()) or None)
    raise MalformedAnswerError


def first_object(text: str) -> object:
    """Read the first JSON object in the text; None: there is none that can be read."""
    start = text.find("{")
    try:
        found, _ = json.JSONDecoder().raw_decode(text, start) if start >= 0 else (None, 0)
    except (ValueError, RecursionError):
        return None
    return found


def storable(text: str) -> str:
    """Replace what a database does not take: NUL, and halves of surrogate pairs, which JSON may name."""
    return text.replace("\0", "\ufffd").encode(errors="replace").decode()
