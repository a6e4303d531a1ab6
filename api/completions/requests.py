"""Requests for plain generation."""

from pydantic import Field

from api.http.fields import example
from jobs.prompts.abilities import SamplingFields
from jobs.prompts.structured import StructuredFields
from jobs.validation import MAX_OUTPUT_TOKENS, MAX_TOP_K, NonEmpty, Stop


class GenerateRequest(StructuredFields, SamplingFields):
    """A prompt, used as it is, and how to continue it."""

    model_config = example(prompt="Once upon", max_tokens=64, temperature=0.7)

    prompt: NonEmpty
    max_tokens: int | None = Field(None, ge=1, le=MAX_OUTPUT_TOKENS)
    temperature: float | None = Field(
        None, ge=0, le=2, description="Null means 0: always the most likely token, as in Triton's `generate`."
    )
    top_p: float | None = Field(None, gt=0, le=1)
    top_k: int | None = Field(None, ge=1, le=MAX_TOP_K)
    seed: int | None = Field(None, ge=0, le=2**63 - 1, description="Null: a different seed for each request.")
    stop: Stop | None = None
