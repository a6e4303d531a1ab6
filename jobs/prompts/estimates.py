"""Conversations out of the estimating tokenizer's ids, for servers that take messages in place of ids.

Prompts are stored as ids. Where no tokenizer of the model is known, those of the estimating one keep the
conversation whole: its template writes each role and message between control tokens, which no message holds.
"""

from dataclasses import dataclass
from typing import Final, Literal

import numpy as np

from jobs.prompts.encoding import TokenIds
from jobs.prompts.tokenizer import Tokenizer

_BEFORE_ROLE: Final = "<|start_header_id|>"
_AFTER_ROLE: Final = "<|end_header_id|>"
_AFTER_CONTENT: Final = "<|eot_id|>"
_BEFORE_CONTENT: Final = "\n\n"
TokenCounts = Literal["exact", "estimated"]
HOW_COUNTED: Final = "token counts are estimates, at or above the model's own"


@dataclass(frozen=True, slots=True)
class Turn:
    """A message of a conversation."""

    role: str
    content: str


def turns_of(tokenizer: Tokenizer, ids: TokenIds) -> tuple[Turn, ...]:
    """Read a conversation out of a prompt; a prompt without a template is one message of the user.

    Args:
        tokenizer: the estimating one.
        ids: of the prompt.
    """
    starts = np.flatnonzero(ids == tokenizer.markup.id_of(_BEFORE_ROLE))
    if not len(starts):
        return (Turn("user", tokenizer.decode(ids)),)
    ends = [*starts[1:], len(ids)]
    turns = [_turn(tokenizer, ids[start + 1 : end]) for start, end in zip(starts, ends, strict=True)]
    if turns[-1] == Turn("assistant", ""):
        del turns[-1]  # where the answer begins
    return tuple(turns)


def _turn(tokenizer: Tokenizer, ids: TokenIds) -> Turn:
    """Read a role, and the content after it, which ends before the next control token."""
    at = int(np.flatnonzero(ids == tokenizer.markup.id_of(_AFTER_ROLE))[0])
    content = ids[at + 1 :]
    ends = np.flatnonzero(content == tokenizer.markup.id_of(_AFTER_CONTENT))
    whole = tokenizer.decode(content[: ends[0]] if len(ends) else content)
    return Turn(tokenizer.decode(ids[:at]), whole.removeprefix(_BEFORE_CONTENT))
