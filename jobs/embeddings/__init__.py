"""Embeddings: requests for the vectors of texts, and the vectors."""

from typing import Final

# The task of their jobs, one for each input.
EMBED_TASK: Final = "embed"
