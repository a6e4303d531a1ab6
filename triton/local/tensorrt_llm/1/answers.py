"""Answers to a question in the JSON that Longbatch asks for: the sentence that has the question's words."""

import json
import re
from collections.abc import Iterator

from .documents import MARK, Asked
from .summary import content_words, sentences

# The end of a prompt that asks a question of a document, of a part of one, or of the answers of parts.
_ASKED = re.compile(
    r"in at most \d+ words: (?P<question>.+?)\s+Answer with a JSON object of `found`, `answer` and `quote`",
    re.DOTALL,
)
_PART = re.compile(r"^Answer: (?P<answer>.*)$(?:\n^Quote: (?P<quote>.*)$)?", re.MULTILINE)
_MAX_WORDS = 40  # of a sentence that is said twice: as the answer and as its quote


def reply(message: Asked) -> str | None:
    """Reply to a message that asks a question about its texts.

    Returns:
        None: it asks none.
    """
    asked = _ASKED.search(message.task)
    if asked is None:
        return None
    words = {*content_words(asked["question"])}
    best = max(_candidates(message.texts), key=lambda each: _score(each[1], words), default=None)
    # Half of what the question names: less is another subject.
    if best is None or 2 * _score(best[1], words) < max(1, len(words)):
        return json.dumps({"found": False, "answer": "", "quote": ""})
    answer, quote = best
    return json.dumps({"found": True, "answer": f"{MARK} {answer}", "quote": quote}, ensure_ascii=False)


def _candidates(material: str) -> Iterator[tuple[str, str]]:
    """Yield possible answers, each with the words that it is founded on."""
    parts = [*_PART.finditer(material)]
    if parts:
        yield from ((part["answer"], part["quote"] or part["answer"]) for part in parts)
        return
    for sentence in sentences(material):
        said = " ".join(sentence.split()[:_MAX_WORDS])
        yield said, said


def _score(text: str, words: set[str]) -> int:
    return len(words.intersection(content_words(text)))
