"""The sampling and stop strings of a job, and the seed of each of its requests."""

from dataclasses import replace
from hashlib import blake2b
from typing import Any, Final

from jobs.models import Job
from jobs.queries import QueuedJob
from worker.engine.request import Sampling

_SEED_BYTES: Final = 8
_VARIED: Final = 0.7  # other answers, of which most are as good


def sampling_of(job: Job | QueuedJob, *, start: int, max_tokens: int, varies: bool = False) -> Sampling:
    """Build the sampling parameters of the request that begins after `start` tokens.

    A minimum of tokens is that of the whole answer: the request needs what is left of it, up to its own
    `max_tokens`.

    Without `temperature` a job is greedy; OpenAI's routes store their own default with each job.

    Args:
        job: the job.
        start: tokens that it has.
        max_tokens: of the request.
        varies: a later attempt must not repeat the answer of the first, however it is sampled.
    """
    given = job.sampling
    min_tokens, biases = _int(given.get("min_tokens")), given.get("logit_bias")
    biases = biases if isinstance(biases, dict) else {}
    sampling = Sampling(
        temperature=_float(given.get("temperature")) or 0.0,
        top_p=_float(given.get("top_p")),
        top_k=_int(given.get("top_k")),
        min_tokens=None if min_tokens is None else min(max(0, min_tokens - start), max_tokens),
        min_p=_float(given.get("min_p")),
        frequency_penalty=_float(given.get("frequency_penalty")),
        presence_penalty=_float(given.get("presence_penalty")),
        repetition_penalty=_float(given.get("repetition_penalty")),
        logit_bias=tuple((int(name), float(value)) for name, value in biases.items()),
        bad_words=tuple(_list(given.get("bad_words"))),
        stop_token_ids=stop_ids_of(job),
        ignores_end=bool(given.get("ignore_eos")),
    )
    if varies and job.attempt and sampling.is_greedy:
        sampling = replace(sampling, temperature=_VARIED, top_p=None, top_k=None)
    return replace(sampling, seed=seed_of(job, start=start, is_random=not sampling.is_greedy))


def seed_of(job: Job | QueuedJob, *, start: int, is_random: bool) -> int | None:
    """Derive the seed of the request that begins after `start` tokens.

    An engine resets its random generator for each request, and a real one uses the same seed for all requests
    without one. So each job, attempt and segment has its own seed, which every worker derives the same way: a
    rescued job continues as it would have.

    Returns:
        The caller's own seed for the first segment, and one derived from it for later segments. Without one,
        a seed derived from the job's id and attempt; None for a greedy request, which draws nothing.
    """
    seed = _int(job.sampling.get("seed"))
    if not is_random or (seed is not None and start == 0):
        return seed
    origin = f"job {job.id.hex} {job.attempt}" if seed is None else f"seed {seed}"
    digest = blake2b(f"{origin} {start}".encode(), digest_size=_SEED_BYTES).digest()
    return int.from_bytes(digest, "little") >> 1  # engines treat the highest bit differently


def stops_of(job: Job | QueuedJob) -> tuple[str, ...]:
    """Return the job's stop strings."""
    stops = job.sampling.get("stop") or []
    return (stops,) if isinstance(stops, str) else tuple(stops) if isinstance(stops, list) else ()


def num_top_of(job: Job | QueuedJob) -> int | None:
    """Return how many tokens in the place of each one are to be scored; None: not even that one."""
    return _int(job.sampling.get("logprobs"))


def dimensions_of(job: Job | QueuedJob) -> int | None:
    """Return how many numbers the vector of the job's input is to have; None: all."""
    return _int(job.sampling.get("dimensions"))


def stop_ids_of(job: Job | QueuedJob) -> tuple[int, ...]:
    """Return the tokens before which the job's answer ends, besides the model's own."""
    return tuple(_list(job.sampling.get("stop_token_ids")))


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _float(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) else None


def _int(value: object) -> int | None:
    return value if isinstance(value, int) else None
