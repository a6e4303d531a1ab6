"""How a job's tokens are picked: what its caller asked for, and the seed of each request to the engine."""

from dataclasses import replace
from hashlib import blake2b
from typing import Final

from jobs.models import Job
from worker.engine.request import Sampling

_SEED_BYTES: Final = 8


def sampling_of(job: Job, *, start: int) -> Sampling:
    """Say how the engine picks tokens for the request that begins after `start` generated tokens.

    Without `temperature` a job is greedy; OpenAI's routes store their own default when a job comes in.
    """
    given = job.sampling
    sampling = Sampling(
        temperature=_float(given.get("temperature")) or 0.0,
        top_p=_float(given.get("top_p")),
        top_k=_int(given.get("top_k")),
        min_tokens=_int(given.get("min_tokens")),
    )
    return replace(sampling, seed=seed_of(job, start=start, is_random=not sampling.is_greedy))


def seed_of(job: Job, *, start: int, is_random: bool) -> int | None:
    """Derive the seed of the request that begins after `start` generated tokens.

    An engine starts its generator anew with each request, and a real one uses the same seed for all requests
    without one. So each job, attempt and segment has its own, which any worker derives alike: a rescued job
    goes on as it would have.

    Returns:
        The caller's own seed for the first segment; derived from it, or from the job's id and attempt, for
        the others. None for a greedy request whose caller gave none: nothing is drawn there.
    """
    seed = _int(job.sampling.get("seed"))
    if not is_random or (seed is not None and start == 0):
        return seed
    origin = f"job {job.id.hex} {job.attempt}" if seed is None else f"seed {seed}"
    digest = blake2b(f"{origin} {start}".encode(), digest_size=_SEED_BYTES).digest()
    return int.from_bytes(digest, "little") >> 1  # engines differ in what they make of the highest bit


def _float(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) else None


def _int(value: object) -> int | None:
    return value if isinstance(value, int) else None
