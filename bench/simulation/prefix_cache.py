"""What the virtual engine has of shared documents: TensorRT-LLM's reuse of KV blocks, one entry a document.

What an ended request did not share, the rest of its prompt and its answer, is an entry of its own. Of a
document the last blocks are dropped first.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol


class Reader(Protocol):
    """A request that may begin with a document."""

    @property
    def document(self) -> int | None:
        """Number of the document; None: it shares nothing."""

    @property
    def blocks(self) -> int:
        """Blocks reserved."""

    @property
    def held(self) -> int:
        """Blocks of the document that it refers to and did not compute, or that others may reuse."""


@dataclass(slots=True)
class PrefixCache:
    """Reusable blocks by document, the least recently used document first.

    Attributes:
        blocks: by document; the own blocks of ended requests have negative numbers.
    """

    blocks: dict[int, int] = field(default_factory=dict)

    def found(self, document: int | None) -> int:
        """Return how many of the document's blocks can be reused."""
        return 0 if document is None else self.blocks.get(document, 0)

    def store(self, document: int, blocks: int) -> None:
        """Offer the document's first blocks for reuse."""
        self.blocks[document] = max(blocks, self.blocks.pop(document, 0))

    def touch(self, document: int | None) -> None:
        """Note that the document was used now."""
        if document is not None and document in self.blocks:
            self.blocks[document] = self.blocks.pop(document)

    def leave(self, request: int, blocks: int) -> None:
        """Keep the own blocks of a request that ends; nobody asks for them, but they take room."""
        if self.blocks and blocks > 0:
            self.blocks[-1 - request] = blocks

    def drop(self, active: Sequence[Reader], room: int) -> None:
        """Drop blocks that no active request refers to until they fit into the room.

        Args:
            active: requests on the engine.
            room: blocks that those do not use.
        """
        held = referenced(active)
        excess = sum(self.blocks.values()) - sum(held.values()) - room
        for document in list(self.blocks):
            if excess <= 0:
                return
            dropped = min(excess, self.blocks[document] - held.get(document, 0))
            excess -= dropped
            self.blocks[document] -= dropped
            if not self.blocks[document]:
                del self.blocks[document]


def referenced(active: Sequence[Reader]) -> dict[int, int]:
    """Return how many blocks of each document active requests refer to."""
    found: dict[int, int] = {}
    for each in active:
        if each.document is not None and each.held:
            found[each.document] = max(each.held, found.get(each.document, 0))
    return found


def reserved_blocks(active: Sequence[Reader]) -> int:
    """Sum up what the requests hold or may still need; what they share counts once."""
    return sum(referenced(active).values()) + sum(each.blocks - each.held for each in active)
