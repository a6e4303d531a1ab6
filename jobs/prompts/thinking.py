"""The tags between which a model thinks, as its tokenizer and chat template name them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from jobs.prompts.chat_template import ControlToken
from jobs.prompts.encoding import TokenIds

# Of models that think before they answer: DeepSeek-R1, Qwen 3, GLM, Kimi and most others; Magistral;
# Seed-OSS; Cohere's Command A Reasoning; EXAONE Deep. gpt-oss has channels instead of tags.
_PAIRS: Final = (
    ("<think>", "</think>"),
    ("[THINK]", "[/THINK]"),
    ("<seed:think>", "</seed:think>"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
    ("<thought>", "</thought>"),
)
# A template that opens thinking with a tag of several tokens does so in its last ones.
_TAIL_TOKENS: Final = 32


@dataclass(frozen=True, slots=True)
class ThinkingTags:
    """A pair of tags.

    Attributes:
        begin: the text before the thinking.
        end: the text after it.
        ids: the ids of those tags that are single tokens, with their text.
        are_hidden: a server that decodes tokens itself leaves one of them out.
    """

    begin: str
    end: str
    ids: dict[int, str]
    are_hidden: bool = False


def find_tags(
    template: str | None, controls: Sequence[ControlToken], hidden_ids: frozenset[int] = frozenset()
) -> ThinkingTags | None:
    """Find the tags of a model: those that its template names, or that its tokenizer has both of.

    Args:
        template: the source of the chat template; None: it has none.
        controls: the tokenizer's added tokens.
        hidden_ids: those of them that have no text in an answer.

    Returns:
        None: nothing tells that the model thinks.
    """
    ids = {control.text: control.id for control in controls}
    named = [pair for pair in _PAIRS if template and any(tag in template for tag in pair)]
    known = [pair for pair in _PAIRS if all(tag in ids for tag in pair)]
    if not (found := [*named, *known]):
        return None
    single = {ids[tag]: tag for tag in found[0] if tag in ids}
    return ThinkingTags(*found[0], ids=single, are_hidden=not hidden_ids.isdisjoint(single))


def opens_thinking(tags: ThinkingTags, prompt: TokenIds, tail: str) -> bool:
    """Return True if the prompt ends inside thinking, so that the answer begins there.

    Args:
        tags: the model's.
        prompt: a rendered conversation, whose contents never hold the ids of tags.
        tail: the text of its last tokens.
    """
    if len(tags.ids) == len({tags.begin, tags.end}):
        found = np.flatnonzero(np.isin(prompt, list(tags.ids)))
        return len(found) > 0 and tags.ids[int(prompt[found[-1]])] == tags.begin
    return tail.rstrip().endswith(tags.begin)


def tail_of(prompt: TokenIds) -> list[int]:
    """Return the ids whose text `opens_thinking` wants."""
    ids: list[int] = prompt[-_TAIL_TOKENS:].tolist()
    return ids
