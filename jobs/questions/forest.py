"""The trees of jobs that ask a document several questions: one of the same shape for each question. Pure.

A document that fits an engine is asked each question as a whole. Otherwise each question is asked of
each chunk, and the answers of the chunks are joined, level by level, until one is left. All questions about a
chunk come one after the other, so that an engine reads the chunk once.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from jobs.engines.capacity import Capacity
from jobs.errors import ContextLengthExceededError
from jobs.states.summary import NodeKind
from jobs.summaries import tree
from jobs.summaries.tree import Leaf, Node, Sizes, TooManyChunksError

DEFAULT_LENGTH: Final = 256  # tokens of an answer with its quote: a few sentences
_LEAST_PART_TOKENS: Final = 48  # less holds no answer with a quote


def find_answer_sizes(
    capacities: Sequence[Capacity],
    overheads: Mapping[NodeKind, int],
    *,
    length: int,
    chunk_tokens: int | None = None,
) -> Sizes:
    """Choose the sizes for these engines.

    An answer of a part is as long as that of the whole, unless an engine is so small that it could not join
    two of them.

    Raises:
        ContextLengthExceededError: an engine is too small for such chunks.
    """
    part_tokens = length
    while True:
        try:
            return tree.find_sizes(
                capacities, overheads, length=length, chunk_tokens=chunk_tokens, part_tokens=part_tokens
            )
        except ContextLengthExceededError:
            if part_tokens < 2 * _LEAST_PART_TOKENS:
                raise
            part_tokens //= 2


def build_forest(leaves: Sequence[Leaf], sizes: Sizes, *, num_questions: int, whole: bool) -> list[Node]:
    """Build a tree over these leaves for each question; all leaves come before all joins.

    Args:
        leaves: in the order of the text; at least one.
        sizes: of the plan.
        num_questions: at least 1.
        whole: the only leaf is a whole document.

    Raises:
        TooManyChunksError: one plan cannot hold that many jobs.
    """
    one = build_one(leaves, sizes, num_questions=num_questions, whole=whole)
    ordered = sorted(one, key=lambda node: (node.leaf is None, node.number))
    places = {node.number: place for place, node in enumerate(ordered)}
    return [
        replace(
            node,
            number=place * num_questions + question,
            parent=None if node.parent is None else places[node.parent] * num_questions + question,
            question=question,
        )
        for place, node in enumerate(ordered)
        for question in range(num_questions)
    ]


def build_one(leaves: Sequence[Leaf], sizes: Sizes, *, num_questions: int, whole: bool) -> list[Node]:
    """Build the tree of one question; those of all others have the same sizes. See `build_forest`."""
    if len(leaves) * num_questions > tree.MAX_CHUNKS:
        raise TooManyChunksError(
            f"{num_questions:,} questions to {len(leaves):,} chunks are {len(leaves) * num_questions:,} jobs;"
            f" the maximum is {tree.MAX_CHUNKS:,}. Use larger chunks or ask fewer questions at once."
        )
    return tree.build(leaves, sizes, whole=whole)
