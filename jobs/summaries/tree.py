"""The tree of jobs that summarizes documents: what fits, chunk sizes, and dependencies. Pure.

A document that fits an engine is one job. Otherwise it is cut into chunks, each chunk is summarized, and the
summaries are joined, level by level, until one is left.

A chunk takes half of a slot's share of the KV pool, prompt and output together. In simulations on the
rooflines of an A6000 and an H200 (4 slots, 131,072 tokens; documents of 60k and 200k tokens, alone and many),
the total time is flat from 16k to 30k tokens a chunk, and at 16k within 7 % of the best. It is 24-36 % longer
at 8k, where more answers are decoded for the same text, and 7-31 % longer from 60k on, where the pool holds
too few chunks to fill the slots. The small end of the flat part gives the finest provenance and the smallest
gaps, keeps all slots busy with one document, and leaves half of the pool to other work.
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
# An engine may have far more slots than its pool can fill (vLLM's default is 256): chunks get no smaller than
# this for them, as long as 8 fit the pool together.
_MIN_SHARE_TOKENS: Final = 8192
_MIN_CHUNKS_AT_ONCE: Final = 8
# The summary of a chunk has about this share of its chunk's tokens, within the bounds below.
_COMPRESSION: Final = 1 / 32
_CHUNK_SUMMARY_TOKENS: Final = (48, 512)
# More summaries than this are joined in two levels: models overlook the middle of a long list.
_MAX_FAN_IN: Final = 32
# Lines around a joined summary, and the tokens that a seam between two texts can add.
_FRAME_TOKENS: Final = 24
_SEAM_TOKENS: Final = 16
# The least text of a chunk: an engine that cannot hold it is not usable for documents.
_MIN_CHUNK_TOKENS: Final = 32
# The most chunks of one plan, which is held in memory and written in one transaction. At the size that packs
# best, that is 700 million tokens.
MAX_CHUNKS: Final = 50_000


class TooManyChunksError(InvalidRequestError):
    """The request needs too many chunks: use larger chunks or fewer documents."""

    code = "too_many_chunks"


@dataclass(frozen=True, slots=True)
class Sizes:
    """The sizes of a plan on the available engines, in tokens.

    Attributes:
        whole_tokens: the longest document that fits in one job.
        chunk_tokens: the longest text of a chunk.
        overlap_tokens: how much of it repeats the previous chunk.
        chunk_summary_tokens: target length of the summary of a chunk.
        chunk_summary_limit: its maximum.
        length: target length of the final summary.
        final_limit: its maximum.
        fan_in: the most summaries joined at once (a count).
        overheads: of a prompt without the text of documents, by kind.
    """

    whole_tokens: int
    chunk_tokens: int
    overlap_tokens: int
    chunk_summary_tokens: int
    chunk_summary_limit: int
    length: int
    final_limit: int
    fan_in: int
    overheads: Mapping[NodeKind, int]


@dataclass(frozen=True, slots=True)
class SourceDocument:
    """A document as the plan sees it.

    Attributes:
        index: its place among the documents of the summary, from 0.
        num_tokens: tokens of its text.
        pages: the character at which each page starts.
    """

    index: int
    num_tokens: int
    pages: Sequence[int] = ()


@dataclass(frozen=True, slots=True)
class Leaf:
    """A chunk of a document that one job reads.

    Attributes:
        source: index of the document.
        chunk: its number in the document, from 0.
        start, end, context: characters, see `chunking.Chunk`.
        tokens: tokens of the text that the job reads.
        pages: first and last page, from 1; None if the document has no pages.
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
    """A node of the tree: one job.

    Attributes:
        number: from 0, in the order in which nodes should run: children before parents, depth-first.
        parent: number of the node that waits for this one; None for the root.
        level: 0 for leaves.
        leaf: the chunk to read; None if the node joins the outputs of its children.
        num_children: number of nodes that it waits for.
        prompt_tokens: tokens of its prompt; an upper bound until the prompt is written.
        output_tokens: target length of its answer, in tokens.
        max_tokens: the most tokens of its answer.
        question: the place of the question that it is about; None in summaries.
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
    question: int | None = None


def limit_of(length: int) -> int:
    """Return the token limit for answers of about `length`, with room to finish."""
    return length + max(32, length // 4)


def find_sizes(
    capacities: Sequence[Capacity],
    overheads: Mapping[NodeKind, int],
    *,
    length: int,
    chunk_tokens: int | None = None,
    overlap_tokens: int = 0,
    part_tokens: int | None = None,
) -> Sizes:
    """Choose the sizes for these engines.

    A whole document may need the largest engine; chunks fit every engine.

    Args:
        capacities: of the model's engines; at least one.
        overheads: tokens of a prompt of each kind without any text; none of joins: nothing is joined.
        length: target length of the final summary, in tokens.
        chunk_tokens: the caller's choice, lowered to what fits; None means what packs best.
        overlap_tokens: overlap of neighbouring chunks.
        part_tokens: target length of the answer about a chunk, in tokens; None means a share of the chunk.

    Raises:
        ContextLengthExceededError: an engine is too small for such chunks.
    """
    final_limit = limit_of(length)
    whole_tokens = max(_room(each, final_limit) for each in capacities) - overheads[NodeKind.WHOLE]
    share = min(_share(each) for each in capacities)
    low, high = _CHUNK_SUMMARY_TOKENS
    chunk_summary_tokens = part_tokens or int(min(high, max(low, (chunk_tokens or share) * _COMPRESSION)))
    chunk_summary_limit = limit_of(chunk_summary_tokens)
    around = overheads[NodeKind.CHUNK] + _SEAM_TOKENS
    largest = min(_room(each, chunk_summary_limit) for each in capacities) - around
    best = share - chunk_summary_limit - around
    # A join answers as a chunk does, the root with the final summary: leave room for the longer one.
    answer = max(final_limit, chunk_summary_limit)
    joined = min(share, *(_room(each, answer) for each in capacities)) - overheads.get(NodeKind.JOIN, 0)
    sizes = Sizes(
        whole_tokens=whole_tokens - _SEAM_TOKENS,
        chunk_tokens=min(largest, chunk_tokens or best),
        overlap_tokens=overlap_tokens,
        chunk_summary_tokens=chunk_summary_tokens,
        chunk_summary_limit=chunk_summary_limit,
        length=length,
        final_limit=final_limit,
        fan_in=min(_MAX_FAN_IN, joined // (chunk_summary_limit + _FRAME_TOKENS)),
        overheads=overheads,
    )
    is_unjoinable = NodeKind.JOIN in overheads and sizes.fan_in < 2
    if sizes.chunk_tokens < max(_MIN_CHUNK_TOKENS, 2 * overlap_tokens + 1) or is_unjoinable:
        raise ContextLengthExceededError("The engine's context is too small for chunks of this kind.")
    return sizes


def fits_whole(source: SourceDocument, sizes: Sizes, *, asked_chunk_tokens: int | None) -> bool:
    """Return True if one job can summarize the whole document."""
    return source.num_tokens <= min(sizes.whole_tokens, asked_chunk_tokens or sizes.whole_tokens)


def check_num_chunks(sources: Iterable[SourceDocument], sizes: Sizes, *, whole: bool) -> None:
    """Check that these documents need no more chunks than one plan may have, roughly.

    Raises:
        TooManyChunksError: they need more.
    """
    num = sum(1 if whole else _num_chunks(source, sizes) for source in sources)
    if num > MAX_CHUNKS:
        raise TooManyChunksError(
            f"The text would be cut into about {num:,} chunks; the maximum is {MAX_CHUNKS:,}."
        )


def cut(
    source: SourceDocument,
    text: str,
    count: Count,
    sizes: Sizes,
    *,
    whole: bool,
    starts: Starts | None = None,
) -> list[Leaf]:
    """Cut a document into leaves; for `count` and `starts` see `chunking.cut`."""
    if whole:
        chunks = [chunking.Chunk(0, len(text), 0, source.num_tokens)]
    else:
        chunks = chunking.cut(
            text, count, chunk_tokens=sizes.chunk_tokens, overlap_tokens=sizes.overlap_tokens, starts=starts
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


def sketch(source: SourceDocument, sizes: Sizes, *, whole: bool) -> list[Leaf]:
    """Estimate the leaves of a document of known length; their characters are 0."""
    num = 1 if whole else _num_chunks(source, sizes)
    overlap = sizes.overlap_tokens if num > 1 else 0
    tokens = ceil(source.num_tokens / num)
    return [Leaf(source.index, number, 0, 0, 0, tokens + (overlap if number else 0)) for number in range(num)]


def build(leaves: Sequence[Leaf], sizes: Sizes, *, whole: bool) -> list[Node]:
    """Build the tree over these leaves: its nodes by number, the root last.

    Args:
        leaves: in the order of the text; at least one.
        sizes: of the plan.
        whole: the only leaf is a whole document, and its summary the final one.
    """
    if whole:
        return [_leaf_node(0, leaves[0], NodeKind.WHOLE, sizes)]
    levels: list[
        list[list[int]]
    ] = []  # for each level, each node's children by their place in the level below
    num = len(leaves)
    while num > 1 or not levels:
        levels.append(_groups(num, sizes.fan_in))
        num = len(levels[-1])
    nodes: list[Node] = []
    _add(nodes, counter(), levels, leaves, sizes, level=len(levels), place=0)
    return nodes


def build_apart(leaves: Sequence[Leaf], sizes: Sizes, *, whole: bool) -> list[Node]:
    """Build nodes over these leaves that no job joins; see `build`."""
    kind = NodeKind.WHOLE if whole else NodeKind.CHUNK
    return [_leaf_node(number, leaf, kind, sizes) for number, leaf in enumerate(leaves)]


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
    """Append a subtree to `nodes`, children first; return the number of its top."""
    if level == 0:
        node = _leaf_node(next(numbers), leaves[place], NodeKind.CHUNK, sizes)
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
    joined = len(children) * (sizes.chunk_summary_limit + _FRAME_TOKENS)
    nodes.append(
        Node(
            number=number,
            kind=NodeKind.JOIN,
            parent=None,
            level=level,
            leaf=None,
            num_children=len(children),
            prompt_tokens=joined + sizes.overheads[NodeKind.JOIN],
            output_tokens=sizes.length if is_root else sizes.chunk_summary_tokens,
            max_tokens=sizes.final_limit if is_root else sizes.chunk_summary_limit,
        )
    )
    return number


def _num_chunks(source: SourceDocument, sizes: Sizes) -> int:
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
        output_tokens=sizes.length if is_final else sizes.chunk_summary_tokens,
        max_tokens=sizes.final_limit if is_final else sizes.chunk_summary_limit,
    )


def _groups(num: int, fan_in: int) -> list[list[int]]:
    """Divide `num` places into the fewest groups; their sizes differ by at most one."""
    num_groups = ceil(num / fan_in)
    bounds = [place * num // num_groups for place in range(num_groups + 1)]
    return [list(range(bounds[place], bounds[place + 1])) for place in range(num_groups)]


def _share(capacity: Capacity) -> int:
    """Return the tokens, prompt and output, of a chunk that packs well on this engine."""
    of_slot = capacity.max_tokens_in_share * _SLOT_SHARE
    least = min(_MIN_SHARE_TOKENS, capacity.tokens_in(capacity.max_blocks // _MIN_CHUNKS_AT_ONCE))
    return int(min(max(of_slot, least), capacity.max_seq_len, capacity.max_input_len))


def _room(capacity: Capacity, max_tokens: int) -> int:
    """Return the tokens of the longest prompt that fits with `max_tokens` of output."""
    most = min(capacity.max_seq_len, capacity.max_tokens_in_pool) - max_tokens
    return min(capacity.max_input_len, most)


def _pages(source: SourceDocument, start: int, end: int) -> tuple[int, int] | None:
    """Return the first and last page of these characters; None without pages."""
    if not source.pages:
        return None
    first, last = (max(1, bisect_right(source.pages, each)) for each in (start, max(start, end - 1)))
    return first, last
