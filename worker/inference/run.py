"""A job that runs on this worker, from its committed claim until its end is stored."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Final

from structlog.typing import FilteringBoundLogger

from jobs.checkpoints import Output
from jobs.engines.tensors import NO_TENSORS, TensorRequest
from jobs.prompts.tools.forms import ANY_FORM, AnswerForm
from jobs.starting import Claim
from jobs.states import StopReason
from jobs.transitions import Lease
from worker.engine.deltas import CachedPrompt, EngineDelta, OutputDelta
from worker.engine.engine import StreamEnd
from worker.engine.request import WantedAdapter
from worker.inference.inbox import Inbox
from worker.inference.live_output import OutputPublisher
from worker.inference.run_stream import RunStream
from worker.inference.tensors.outputs import EngineOutputs
from worker.inference.text_answer import AnyAnswer

# A request that was sent this long ago has reached the engine, and its gauges count it.
_ARRIVES_WITHIN_SECONDS: Final = 1.0
# The request of a stream that has begun and is silent for longer may be lost.
_HEARD_SECONDS: Final = 2.0


@dataclass(frozen=True, slots=True)
class StopAsked:
    """A request to end the job now. A `reason` of None means that its lease is lost."""

    reason: StopReason | None


@dataclass(eq=False, slots=True, repr=False)
class Run:
    """One stay of a job on the engine.

    Threads share it without a lock, as each attribute has one writer. Any thread may read what is listed
    before `answer`, call `is_inside`, `since_first_token` and `unreported_since`, and put into the inbox. All
    else is for the engine loop, or for a pool thread for which the run's coroutine waits.

    Attributes:
        claim: the job's claim.
        inbox: the events that the run waits for: the stream's and stop requests.

        Written on the engine loop:
        num_tokens: tokens generated so far.
        first_token_at: monotonic time of the job's first token.
        last_token_at: monotonic time of the latest token.
        sent_at: monotonic time at which the present request was written; None if there is none.
        arrives_at_once: a request is in the engine itself a moment after it is sent.
        has_output: tokens of the present request have arrived.
        snapshot: the answer a few seconds ago.
        is_ending: the end is being recorded, so a missing lease does not mean a lost one.

        Written by the keeper of the leases:
        valid_until: monotonic time at which the lease ends unless it is renewed.
        on_first_token: wakes the keeper, as others may wait for this job to read its prompt. None: none does,
            or it is reported.
        reported_tokens: tokens reported to callers so far; first those that the run takes over.
        reported_at: monotonic time of that report.
        saved: the last snapshot saved as a checkpoint.
        stop_reason: the last stop reason delivered to the run.

        Of the engine loop alone, the first four from `begin` on:
        answer: its output so far.
        publisher: publishes that output.
        log: a logger bound to the job.
        began_at: monotonic time at which the run began, just after its claim.
        stream: its last stream; None if nothing was sent.
        is_first_request: the stream is of the job's first request.
        cached_tokens: prompt tokens that the engine had in its cache for that one; None: not reported.
        form: what the answer must be.
        adapter: that generates; None: the model as it is.
        tensors: what goes to the engine and comes from it by name besides.
        outputs: what of it has come; None: the job asks for nothing.
        num_before: tokens that earlier runs have generated.
        resent_tokens: of prompt and answer, in requests after the job's first.
    """

    claim: Claim
    valid_until: float
    inbox: Inbox[EngineDelta | StreamEnd | StopAsked] = field(default_factory=Inbox)

    num_tokens: int = 0
    first_token_at: float | None = None
    last_token_at: float = 0.0
    sent_at: float | None = None
    arrives_at_once: bool = False
    has_output: bool = False
    snapshot: Output | None = None
    is_ending: bool = False

    on_first_token: Callable[[], object] | None = None
    reported_tokens: int = 0
    reported_at: float = 0.0
    saved: Output | None = None
    stop_reason: StopReason | None = None

    answer: AnyAnswer = field(init=False)
    publisher: OutputPublisher = field(init=False)
    log: FilteringBoundLogger = field(init=False)
    began_at: float = field(init=False)
    stream: RunStream | None = None
    is_first_request: bool = False
    cached_tokens: int | None = None
    form: AnswerForm = ANY_FORM
    adapter: WantedAdapter | None = None
    tensors: TensorRequest = NO_TENSORS
    outputs: EngineOutputs | None = None
    num_before: int = 0
    resent_tokens: int = 0

    @property
    def lease(self) -> Lease:
        """The fence of its writes."""
        return self.claim.lease

    def begin(self, answer: AnyAnswer, publisher: OutputPublisher, log: FilteringBoundLogger) -> None:
        """Begin with an empty answer."""
        self.answer, self.publisher, self.log = answer, publisher, log
        self.began_at = time.monotonic()

    def take_over(self, num_tokens: int) -> None:
        """Start from the tokens of an earlier run, which callers already know."""
        self.num_before = self.num_tokens = self.reported_tokens = num_tokens

    def ask_for(self, tensors: TensorRequest, *, max_bytes: int) -> None:
        """Note what goes to the engine and comes from it by name, `max_bytes` at most."""
        self.tensors = tensors
        if tensors.outputs:
            self.outputs = EngineOutputs(tensors.outputs, max_bytes=max_bytes)

    def put(self, event: EngineDelta | StreamEnd, *, tokens_per_block: int) -> None:
        """Pass an event of the stream on, and keep what it says of the prompt.

        Of later requests it is left out: what the engine has for them may be the job's own.
        """
        if isinstance(event, OutputDelta):
            self._gather(event)
            return
        if not isinstance(event, CachedPrompt):
            self.inbox.put(event)
            return
        cached = event.of(self.claim.job.prompt_tokens or 0, tokens_per_block=tokens_per_block)
        if not self.is_first_request:
            self.resent_tokens = max(0, self.resent_tokens - (cached or 0))
        elif self.cached_tokens is None:
            self.cached_tokens = cached

    def begin_request(self) -> None:
        """Record that the present request is written."""
        self.sent_at = self.sent_at or time.monotonic()

    def end_request(self) -> None:
        """Record that the present request is over, or that its end is being asked for."""
        self.sent_at, self.has_output = None, False

    def is_inside(self, now: float) -> bool:
        """Return True if the engine certainly has the present request."""
        if self.has_output:
            return now - self.last_token_at <= _HEARD_SECONDS
        is_sent = self.sent_at is not None and now - self.sent_at >= _ARRIVES_WITHIN_SECONDS
        return is_sent and self.arrives_at_once

    def note_tokens(self, now: float, *, num_tokens: int) -> None:
        """Record that tokens arrived; `num_tokens` is the total so far."""
        self.has_output = True
        self.first_token_at = self.first_token_at or now
        self.last_token_at = now
        self.num_tokens = num_tokens
        if (wake := self.on_first_token) is not None:  # the keeper may clear it meanwhile
            wake()

    def since_first_token(self) -> timedelta:
        """Return how long ago the first token came; nothing if none came yet."""
        now = time.monotonic()
        return timedelta(seconds=now - (self.first_token_at or now))

    def unreported_since(self) -> timedelta | None:
        """Return how long ago the first token came. None: there was none, or its row has it."""
        return self.since_first_token() if self.num_tokens and not self.reported_tokens else None

    def output(self) -> Output:
        """Return what the job generated, and how much of its prompt was cached. Call it once."""
        return replace(self.answer.output(), cached_tokens=self.cached_tokens)

    def _gather(self, part: OutputDelta) -> None:
        """Keep what came of a tensor, or end the run if that cannot be kept."""
        if self.outputs is not None and not self.outputs.add(part) and self.answer.finish_reason is None:
            self.inbox.put(StreamEnd(self.outputs.error, confirmed=False))
