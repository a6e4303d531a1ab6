"""What callers ask for, validated: the specifications of jobs that are not stored yet."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from uuid import UUID

from jobs.answers.choices import sampling_of_choice
from jobs.engines.tensors import TensorFile
from jobs.models import JsonObject
from jobs.prompts.store import NewText
from jobs.responses.rows import ResponseSpec
from jobs.sharing import Sharing
from jobs.states import Lane


@dataclass(frozen=True, slots=True)
class JobSpec:
    """What a caller asks for, validated.

    Attributes:
        text: the prompt; with its ids if it was small enough to count at once.
        rank: -1 low, 0 normal, 1 high.
        lane: interactive if a caller waits for the answer.
        window: it expires this long after it was accepted; None: never, unless `expires_at` is set.
        batch_id: of the batch that it is line `batch_line` of.
        choice: its place among the choices, or inputs to embed, of one request, from 0.
        num_choices: of that request; None: it has one.
        sampling: temperature, top_p, top_k, seed, stop as given.
        sharing: how it may run once with equal jobs, if its answer is not left to chance. None: not at all.
        guide: the form that its answer must have; None: any.
        is_whole: one request must generate its whole answer.
        tensors: what it passes to its engine besides (`engines.tensors`); None: nothing.
        tensor_files: the files that those name; the caller has checked them.
        response: what is kept of the response that its output belongs to; None: it is no response.
        adapter: the model's adapter that is to answer; None: the model as it is.
        traceparent: of the span above it; None: what its submitter says.
        api_key_id: the key that submits it; None: its submitter's.
    """

    text: NewText
    task: str
    model: str
    max_tokens: int
    rank: int = 0
    lane: Lane = Lane.BATCH
    sampling: JsonObject | None = None
    custom_id: str | None = None
    metadata: JsonObject | None = None
    webhook_url: str | None = None
    webhook_secret: bytes | None = None
    webhook_includes_output: bool = False
    window: timedelta | None = None
    expires_at: datetime | None = None
    batch_id: UUID | None = None
    batch_line: int | None = None
    choice: int = 0
    num_choices: int | None = None
    sharing: Sharing | None = None
    guide: NewText | None = None
    is_whole: bool = False
    tensors: NewText | None = None
    tensor_files: tuple[TensorFile, ...] = ()
    response: ResponseSpec | None = None
    adapter: str | None = None
    traceparent: str | None = None
    api_key_id: UUID | None = None

    @property
    def texts(self) -> list[NewText]:
        """What is stored with it."""
        own = [each for each in (self.text, self.guide, self.tensors) if each is not None]
        return own if self.response is None else own + self.response.texts

    @property
    def asked_sha256(self) -> bytes:
        """Identify all that the engine is asked, except the sampling."""
        besides = [each.sha256 for each in (self.guide, self.tensors) if each is not None]
        return b"".join([self.text.sha256, *besides])


def choices_of(spec: JobSpec, num_choices: int) -> list[JobSpec]:
    """Return the specifications of all choices of one request: the same but for their seeds."""
    if num_choices == 1:
        return [spec]
    return [
        replace(
            spec, choice=each, num_choices=num_choices, sampling=sampling_of_choice(spec.sampling or {}, each)
        )
        for each in range(num_choices)
    ]


def inputs_of(spec: JobSpec, texts: Sequence[NewText]) -> list[JobSpec]:
    """Return the specifications of all inputs of one request for embeddings, each with its text."""
    num = len(texts) if len(texts) > 1 else None
    return [replace(spec, text=text, choice=each, num_choices=num) for each, text in enumerate(texts)]
