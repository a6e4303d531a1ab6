"""Several choices of one request: their seeds, and the one response that they make."""

from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Any, Final

# Each choice is a job of its own, with a place in the queue and in the quota.
MAX_CHOICES: Final = 16
_SEED_BYTES: Final = 8


def sampling_of_choice(sampling: Mapping[str, object], choice: int) -> dict[str, object]:
    """Return the sampling of one of several choices: the first has the caller's seed, others follow from it.

    Without a seed each job draws one for itself.
    """
    seed = sampling.get("seed")
    if not choice or not isinstance(seed, int):
        return {**sampling}
    digest = blake2b(f"seed {seed} choice {choice}".encode(), digest_size=_SEED_BYTES).digest()
    return {**sampling, "seed": int.from_bytes(digest, "little") >> 1}  # as callers' own: 63 bits


def joined(bodies: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Join responses of one choice each; the first gives its id and time."""
    choices = [{**choice, "index": index} for index, body in enumerate(bodies) for choice in body["choices"]]
    return {**bodies[0], "choices": choices, "usage": joined_usage([body["usage"] for body in bodies])}


def joined_usage(usages: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Sum what was generated; the prompt, which all of them share, counts once."""
    first = usages[0]
    completion_tokens = sum(each["completion_tokens"] for each in usages)
    reasoning_tokens = sum(each["completion_tokens_details"]["reasoning_tokens"] for each in usages)
    return {
        **first,
        "completion_tokens": completion_tokens,
        "total_tokens": (first["prompt_tokens"] or 0) + completion_tokens,
        "completion_tokens_details": {
            **first["completion_tokens_details"],
            "reasoning_tokens": reasoning_tokens,
        },
    }
