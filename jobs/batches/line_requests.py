"""The lines of a batch as specifications of jobs, or as lines of its error file. Reads no database."""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from typing import Final
from uuid import UUID

from jobs import ids, telemetry
from jobs.adapters.offers import ModelOffer
from jobs.batches.context import BatchTools
from jobs.batches.line_bodies import LineBody, validate_body
from jobs.batches.lines import Envelope, answered_line, read_envelope
from jobs.embeddings import EMBED_TASK
from jobs.embeddings import requests as embeddings
from jobs.errors import (
    AdapterForbiddenError,
    LongbatchError,
    ModelNotFoundError,
    OverJobQuotaError,
    OverStorageQuotaError,
    OverTokenQuotaError,
    UnavailableError,
)
from jobs.files.lines import FileLine
from jobs.ids import uuid7
from jobs.prompts.counter import count_short, count_some
from jobs.prompts.openai import error_object
from jobs.prompts.store import CountedPrompt, NewText
from jobs.responses.rows import response_spec
from jobs.sharing import sharing_of
from jobs.states.batch import Endpoint
from jobs.submission.job_specs import JobSpec, choices_of, inputs_of

# Of validating the lines of one slice, whose transaction is open meanwhile: a hostile schema takes 0.2 s.
_MAX_SECONDS: Final = 1.0


@dataclass(slots=True)
class LineRequest:
    """The request of one line, and how far it came.

    Attributes:
        body: None: it is refused.
        specs: of its jobs, one for each choice or input. Empty: it is refused, or not counted yet.
        refusal: its line in the error file; None: it is not refused.
    """

    number: int
    custom_id: str
    body: LineBody | None = None
    specs: Sequence[JobSpec] = ()
    refusal: bytes | None = None

    @property
    def prompts(self) -> tuple[str, ...]:
        """The distinct prompts of its jobs."""
        return self.body.generation.prompts if self.body else ()


@dataclass(frozen=True, slots=True)
class LineReader:
    """Reads lines of one batch, in any thread.

    Attributes:
        expires_at: when its jobs expire.
        offer: what its tenant may name in `model`.
    """

    batch_id: UUID
    endpoint: Endpoint
    expires_at: datetime
    offer: ModelOffer
    tools: BatchTools

    def read(self, lines: Sequence[FileLine]) -> Iterator[LineRequest]:
        """Yield the request of each line that is not blank; short prompts are counted together.

        Lazily, so that a caller who stops early has few counted in vain. Lines that take long to validate end
        it early: the next slice begins with those that are left.
        """
        requests: list[LineRequest] = []
        until = time.monotonic() + _MAX_SECONDS
        for line in lines:
            if requests and time.monotonic() > until:
                break
            if not line.is_blank:
                requests.append(self._validated(line))
        prompts = [prompt for each in requests for prompt in each.prompts]
        counts = count_some(prompts, self.tools.counter, max_chars=self.tools.max_inline_chars)
        for request in requests:
            counted = list(islice(counts, len(request.prompts)))
            if request.body is not None:
                try:
                    request.specs = self._specifications(request, request.body, counted)
                except (SystemExit, KeyboardInterrupt):
                    raise
                except BaseException as error:  # noqa: BLE001  # one line must not stop its batch; a panic neither
                    request.refusal = self.refusal(request.number, request.custom_id, error)
            yield request

    def refusal(self, number: int | None, custom_id: str, error: BaseException) -> bytes:
        """Build the line of the error file for a line that fails with this error."""
        if not isinstance(error, LongbatchError):
            return self._unforeseen(number, custom_id, error)
        status = _STATUSES.get(type(error), 400)
        body = error_object(error.code, error.message, param=error.param, status=status)
        return answered_line(uuid7().hex, custom_id, status=status, body=body)

    def _unforeseen(self, number: int | None, custom_id: str, error: BaseException) -> bytes:
        batch_id = ids.batch_id(self.batch_id)
        telemetry.log_failure(telemetry.ROW_FAILED, error, loop="batches", batch_id=batch_id, line=number)
        body = error_object(LongbatchError.code, "The request could not be submitted.", status=500)
        return answered_line(uuid7().hex, custom_id, status=500, body=body)

    def _validated(self, line: FileLine) -> LineRequest:
        """Validate the request of a line; its prompt is not counted yet."""
        envelope = read_envelope(line, self.endpoint, max_line_bytes=self.tools.max_line_bytes)
        request = LineRequest(line.number, envelope.custom_id)
        try:
            request.body = self._body(envelope)
        except (SystemExit, KeyboardInterrupt, UnavailableError):
            raise
        except BaseException as error:  # noqa: BLE001  # one line must not stop its batch; a panic neither
            request.refusal = self.refusal(line.number, request.custom_id, error)
        return request

    def _body(self, envelope: Envelope) -> LineBody:
        body = validate_body(self.endpoint, envelope.body, self.offer.takes)
        self.offer.find(body.generation.model)
        return body

    def _specifications(
        self, request: LineRequest, body: LineBody, counted: Sequence[CountedPrompt | None]
    ) -> list[JobSpec]:
        """Build the jobs of a line; count their prompts now if they are short and not counted yet.

        Raises:
            InvalidRequestError: the chat template fails with its `chat_template_kwargs`, or takes no tools.
        """
        asked = body.generation
        texts = [self._text(*each, asked.model) for each in zip(asked.prompts, counted, strict=True)]
        spec = self._specification(request, body, texts[0])
        return inputs_of(spec, texts) if asked.inputs else choices_of(spec, asked.num_choices)

    def _text(self, canonical: str, counted: CountedPrompt | None, model: str) -> NewText:
        if counted is None:
            most = self.tools.max_inline_chars
            counted = count_short(canonical, self.tools.counter, max_chars=most, model=model)
        return NewText(canonical, counted)

    def _specification(self, request: LineRequest, body: LineBody, text: NewText) -> JobSpec:
        asked = body.generation
        model, adapter = self.offer.find(asked.model)
        if asked.inputs:
            embeddings.check_adapter(adapter)
        return JobSpec(
            text=text,
            task=EMBED_TASK if asked.inputs else "generate",
            model=model,
            adapter=adapter,
            max_tokens=asked.tokens_within(self.tools.default_max_tokens),
            sampling=asked.sampling,
            custom_id=request.custom_id,
            metadata=body.metadata,
            expires_at=self.expires_at,
            batch_id=self.batch_id,
            batch_line=request.number,
            guide=None if (form := asked.form.written()) is None else NewText(form),
            is_whole=asked.is_whole,
            sharing=sharing_of(asked.share_equal, asked.cache, default=self.tools.shares_equal),
            response=None if body.repeated is None else response_spec(body.repeated),
        )


_STATUSES: Final[Mapping[type[LongbatchError], int]] = {
    ModelNotFoundError: 404,
    AdapterForbiddenError: 403,
    OverJobQuotaError: 429,
    OverTokenQuotaError: 429,
    OverStorageQuotaError: 429,
}
