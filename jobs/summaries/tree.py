"""How documents become a tree of jobs: what fits, how large chunks are, and who waits for whom. Pure.

A document that fits an engine is one job. Else it is cut into chunks, each chunk is summarized, and summaries
are joined, level by level, until one is left.

Chunks are half of a slot's share of the KV pool, prompt and output together. Simulated on the rooflines of an
A6000 and an H200 (4 slots, 131,072 tokens; documents of 60k and 200k tokens, alone and many), the time until
all is done is flat from 16k to 30k tokens a chunk, and within 7 % of the best at 16k. It is 24-36 % longer at
8k, where more answers are decoded for the same text, and 7-31 % longer from 60k on, where the pool holds too
few to fill the slots. The small end of the flat part gives the finest provenance and the smallest gaps, keeps
all slots busy with one document, and leaves half of the pool to other work.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count as counter
from math import ceil
from typing import Final

from jobs.engines.capacity import Capacity
from jobs.errors import ContextLengthExceededError, InvalidRequestError
from jobs.states.summary import NodeKind
from jobs.summaries import chunking
from jobs.summaries.chunking import Count, Starts

_SLOT_SHARE: Final = 0.5
# A summary of a part has about this share of the tokens of its chunk, within bounds.
_COMPRESSION: Final = 1 / 32
_PART_TOKENS: Final = (48, 512)
# More summaries than these are joined in two levels: models lose what stands in the middle of many.
_MAX_FAN_IN: Final = 32
# Lines around a joined summary, and what a seam between two texts can add when it is tokenized.
_FRAME_TOKENS: Final = 24
_SEAM_TOKENS: Final = 16
# Text of a chunk at least; below it an engine is no engine for documents.
_MIN_CHUNK_TOKENS: Final = 32
# Of one plan: it stands in memory and in one transaction. At the size that packs best: 700 million tokens.
MAX_CHUNKS: Final = 50_000


class TooManyChunksError(InvalidRequestError):
    """So many chunks are not made at once: ask for larger ones, or for fewer documents."""

    code = "too_many_chunks"


@dataclass(frozen=True, slots=True)
class Sizes:
    """How large everything may be on the engines that are there, in tokens.

    Attributes:
        whole_tokens: of a document that fits in one job.
        chunk_tokens: of the text of a chunk at most.
        overlap_tokens: of it, that repeat the chunk before.
        part_tokens: that the summary of a part should have.
        part_limit: that it has at most.
        length: that the final summary should have.
        final_limit: that it has at most.
        fan_in: summaries that are joined at once, at most.
        overheads: of a prompt beside the text of documents, by its kind.
    """

    whole_tokens: int
    chunk_tokens: int
    overlap_tokens: int
    part_tokens: int
    part_limit: int
    length: int
    final_limit: int
    fan_in: int
    overheads: Mapping[NodeKind, int]


@dataclass(frozen=True, slots=True)
class Source:
    """A document as the plan sees it.

    Attributes:
        index: among the documents of the summary.
        num_tokens: of its text.
        pages: the character at which each page starts.
    """

    index: int
    num_tokens: int
    pages: Sequence[int] = ()


@dataclass(frozen=True, slots=True)
class Leaf:
    """A chunk of a document that one job reads.

    Attributes:
        source: the index of the document.
        chunk: its number in the document, from 0.
        start, end, context: characters, see `chunking.Chunk`.
        pages: first and last, from 1; None: the document has none.
        tokens: of the text that it reads.
    """

    source: int
    chunk: int
    start: int
    end: int
    context: int
    tokens: int
    pages: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class Node:
    """A place in the tree.

    Attributes:
        number: from 0 in the order in which they should run: children before parents, depth-first.
        parent: the number of the one that waits for this; None: the root.
        level: 0 for leaves.
        leaf: what it reads; None: it joins the outputs of its children.
        num_children: that it waits for.
        prompt_tokens: of its prompt; a bound where that is not written yet.
        output_tokens: that its answer should have.
        max_tokens: that it has at most.
    """

    number: int
    kind: NodeKind
    parent: int | None
    level: int
    leaf: Leaf | None
    num_children: int
    prompt_tokens: int
    output_tokens: int
    max_tokens: int


def limit_of(length: int) -> int:
    """The most tokens of an answer that should have `length`: none is cut in the middle for a few more."""
    return length + max(32, length // 4)


def find_sizes(
    capacities: Sequence[Capacity],
    overheads: Mapping[NodeKind, int],
    *,
    length: int,
    chunk_tokens: int | None = None,
    overlap_tokens: int = 0,
) -> Sizes:
    """The sizes for these engines: a whole document may need the largest, chunks run on every one.

    Args:
        capacities: of the engines of the model; one at least.
        overheads: tokens of a prompt of each kind without any text.
        length: of the final summary.
        chunk_tokens: as the caller wants it, as far as it fits; None: what packs best.
        overlap_tokens: of neighbouring chunks.

    Raises:
        ContextLengthExceededError: an engine is too small for this.
    """
    final_limit = limit_of(length)
    whole_tokens = max(_room(each, final_limit) for each in capacities) - overheads[NodeKind.WHOLE]
    share = min(_share(each) for each in capacities)
    low, high = _PART_TOKENS
    part_tokens = int(min(high, max(low, (chunk_tokens or share) * _COMPRESSION)))
    part_limit = limit_of(part_tokens)
    largest = min(_room(each, part_limit) for each in capacities) - overheads[NodeKind.MAP] - _SEAM_TOKENS
    best = share - part_limit - overheads[NodeKind.MAP] - _SEAM_TOKENS
    # A join answers with a part unless it is the root: room for the longer answer of the two.
    answer = max(final_limit, part_limit)
    joined = min(share, *(_room(each, answer) for each in capacities)) - overheads[NodeKind.REDUCE]
    sizes = Sizes(
        whole_tokens=whole_tokens - _SEAM_TOKENS,
        chunk_tokens=min(largest, chunk_tokens or best),
        overlap_tokens=overlap_tokens,
        part_tokens=part_tokens,
        part_limit=part_limit,
        length=length,
        final_limit=final_limit,
        fan_in=min(_MAX_FAN_IN, joined // (part_limit + _FRAME_TOKENS)),
        overheads=overheads,
    )
    if sizes.chunk_tokens < max(_MIN_CHUNK_TOKENS, 2 * overlap_tokens + 1) or sizes.fan_in < 2:
        raise ContextLengthExceededError("The engine's context is too small for chunks of this kind.")
    return sizes


def fits_whole(source: Source, sizes: Sizes, *, asked_chunk_tokens: int | None) -> bool:
    """Whether the document is summarized in one piece."""
    return source.num_tokens <= min(sizes.whole_tokens, asked_chunk_tokens or sizes.whole_tokens)


def check_num_chunks(sources: Iterable[Source], sizes: Sizes, *, whole: bool) -> None:
    """Returns when these documents are about as many chunks as one plan may have, at most.

    Raises:
        TooManyChunksError: they are more.
    """
    num = sum(1 if whole else _num_chunks(source, sizes) for source in sources)
    if num > MAX_CHUNKS:
        raise TooManyChunksError(
            f"The text would be cut into about {num:,} chunks; {MAX_CHUNKS:,} are made at most."
        )


def cut(
    source: Source, text: str, count: Count, sizes: Sizes, *, whole: bool, starts: Starts | None = None
) -> list[Leaf]:
    """Make the leaves of a document; `count` and `starts` as of `chunking.cut`."""
    if whole:
        chunks = [chunking.Chunk(0, len(text), 0, source.num_tokens)]
    else:
        chunks = chunking.cut(
            text,
            count,
            chunk_tokens=sizes.chunk_tokens,
            overlap_tokens=sizes.overlap_tokens,
            starts=starts,
        )
    return [
        Leaf(
            source=source.index,
            chunk=number,
            start=chunk.start,
            end=chunk.end,
            context=chunk.context,
            tokens=chunk.tokens,
            pages=_pages(source, chunk.start, chunk.end),
        )
        for number, chunk in enumerate(chunks)
    ]


def sketch(source: Source, sizes: Sizes, *, whole: bool) -> list[Leaf]:
    """The leaves of a document of which only the length is known; their characters are unknown (0)."""
    num = 1 if whole else _num_chunks(source, sizes)
    overlap = sizes.overlap_tokens if num > 1 else 0
    tokens = ceil(source.num_tokens / num)
    return [Leaf(source.index, number, 0, 0, 0, tokens + (overlap if number else 0)) for number in range(num)]


def tree(leaves: Sequence[Leaf], sizes: Sizes, *, whole: bool) -> list[Node]:
    """The nodes over these leaves by number; the last is the root.

    Args:
        leaves: in the order of the text; one at least.
        sizes: of everything.
        whole: the one leaf is a whole document, and its summary the final one.
    """
    if whole:
        return [_leaf_node(0, leaves[0], NodeKind.WHOLE, sizes)]
    levels: list[list[list[int]]] = []  # of each level the children of each node, by place in the one below
    num = len(leaves)
    while num > 1 or not levels:
        levels.append(_groups(num, sizes.fan_in))
        num = len(levels[-1])
    nodes: list[Node] = []
    _add(nodes, counter(), levels, leaves, sizes, level=len(levels), place=0)
    return nodes


def _add(
    nodes: list[Node],
    numbers: Iterator[int],
    levels: Sequence[Sequence[Sequence[int]]],
    leaves: Sequence[Leaf],
    sizes: Sizes,
    *,
    level: int,
    place: int,
) -> int:
    """The subtree is in `nodes`, children first; the number of its top."""
    if level == 0:
        node = _leaf_node(next(numbers), leaves[place], NodeKind.MAP, sizes)
        nodes.append(node)
        return node.number
    children = [
        _add(nodes, numbers, levels, leaves, sizes, level=level - 1, place=each)
        for each in levels[level - 1][place]
    ]
    number = next(numbers)
    for child in children:
        nodes[child] = replace(nodes[child], parent=number)
    is_root = level == len(levels)
    joined = len(children) * (sizes.part_limit + _FRAME_TOKENS)
    nodes.append(
        Node(
            number=number,
            kind=NodeKind.REDUCE,
            parent=None,
            level=level,
            leaf=None,
            num_children=len(children),
            prompt_tokens=joined + sizes.overheads[NodeKind.REDUCE],
            output_tokens=sizes.length if is_root else sizes.part_tokens,
            max_tokens=sizes.final_limit if is_root else sizes.part_limit,
        )
    )
    return number


def _num_chunks(source: Source, sizes: Sizes) -> int:
    return chunking.num_chunks(
        source.num_tokens, chunk_tokens=sizes.chunk_tokens, overlap_tokens=sizes.overlap_tokens
    )


def _leaf_node(number: int, leaf: Leaf, kind: NodeKind, sizes: Sizes) -> Node:
    is_final = kind is NodeKind.WHOLE
    return Node(
        number=number,
        kind=kind,
        parent=None,
        level=0,
        leaf=leaf,
        num_children=0,
        prompt_tokens=leaf.tokens + sizes.overheads[kind],
        output_tokens=sizes.length if is_final else sizes.part_tokens,
        max_tokens=sizes.final_limit if is_final else sizes.part_limit,
    )


def _groups(num: int, fan_in: int) -> list[list[int]]:
    """So many places in as few groups as may be, whose sizes differ by one at most."""
    num_groups = ceil(num / fan_in)
    bounds = [place * num // num_groups for place in range(num_groups + 1)]
    return [list(range(bounds[place], bounds[place + 1])) for place in range(num_groups)]


def _share(capacity: Capacity) -> int:
    """Tokens of prompt and output of a chunk that packs well on this engine."""
    slot = capacity.max_tokens_in_pool // capacity.max_batch_size
    return int(min(slot * _SLOT_SHARE, capacity.max_seq_len, capacity.max_input_len))


def _room(capacity: Capacity, max_tokens: int) -> int:
    """Tokens of a prompt that fits with so much output."""
    most = min(capacity.max_seq_len, capacity.max_tokens_in_pool) - max_tokens
    return min(capacity.max_input_len, most)


def _pages(source: Source, start: int, end: int) -> tuple[int, int] | None:
    """The first and the last page of these characters."""
    if not source.pages:
        return None
    first, last = (max(1, bisect_right(source.pages, each)) for each in (start, max(start, end - 1)))
    return first, last
