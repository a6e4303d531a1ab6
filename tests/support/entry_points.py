"""What the suite of entry points needs: one of them on a real server, asked as a worker asks it."""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pydoc_data.topics import topics
from typing import Any, Protocol

from claiming.runs import begin, stray_run
from cli.stack.ports import LOOPBACK
from jobs.errors import EngineError, LongbatchError
from jobs.prompts.estimates import turns_of
from jobs.prompts.guides import Guide
from jobs.prompts.messages import Message
from jobs.prompts.tokenizer import TokenIds, Tokenizer
from jobs.settings import EngineSettings, EngineSide, TritonSettings
from local_engine import RunningEngine
from support import eventually
from worker.engine.client import EngineClient
from worker.engine.deadlines import Deadlines
from worker.engine.engine import ServedModel, StreamEnd
from worker.engine.request import Request, Sampling, WantedAdapter, prompt_text
from worker.engine.stream import Stream
from worker.inference.answer import Answer, EndTokens
from worker.inference.follow import follow
from worker.inference.outcome import Failed, Outcome
from worker.inference.run import Run, StopAsked
from worker.inference.text_answer import TextAnswer

REFERENCE = "\n\n".join(topics.values())
NEVER = -1  # no end token
_GREEDY = Sampling()
_PATIENT = Deadlines(first_token=240, between_tokens=60, total=240)


def settings_of(engine: RunningEngine, model_name: str = "tensorrt_llm", **triton: str) -> EngineSide:
    """Of whoever asks this model."""
    launch = engine.launch
    found = {
        "url": f"{LOOPBACK}:{launch.grpc_port}",
        "metrics_url": f"http://{LOOPBACK}:{launch.metrics_port}/metrics",
        "model_name": model_name,
    }
    return EngineSide(
        triton=TritonSettings.model_validate(found | triton),
        engine=EngineSettings(max_blocks=2048, tokens_per_block=64, max_batch_size=4),
    )


@dataclass
class Asked:
    """One request that is under way, or over.

    Attributes:
        came: everything that came, in order; not what `follow` took.
    """

    stream: Stream
    running: Run
    answer: Answer | TextAnswer
    ends_itself: bool
    engine_is_done: bool = False

    def follow(self) -> Outcome:
        """How it ends, as a worker's slot sees it."""
        end = asyncio.run(
            follow(
                begin(self.running, self.answer),
                _PATIENT,
                lease_seconds=600,
                snapshot_seconds=5,
                ends_itself=self.ends_itself,
            )
        )
        self.engine_is_done = end.engine_is_done
        if isinstance(end.outcome, Failed) and isinstance(end.outcome.error, EngineError):
            # The report of a failed test shows it.
            logging.getLogger(__name__).warning("The engine said: %s", end.outcome.error.said)
        return end.outcome

    def error(self) -> LongbatchError:
        """The error with which it fails, as a worker's slot sees it."""
        outcome = self.follow()
        assert isinstance(outcome, Failed)
        return outcome.error

    def first(self) -> None:
        """Wait until the engine has begun to say something."""
        eventually(lambda: not self.running.inbox.empty())

    def end(self) -> StreamEnd:
        """The stream's end, which comes within 30 s; what comes before it belongs to the answer."""
        return asyncio.run(self._end())

    async def _end(self) -> StreamEnd:
        until = time.monotonic() + 30
        while not isinstance(
            event := await self.running.inbox.get(timeout=max(0.0, until - time.monotonic())), StreamEnd
        ):
            assert event is not None, "no end within 30 s"
            if not isinstance(event, StopAsked):
                self.answer.take(event)
        return event

    def close(self) -> None:
        assert self.stream.close()


class KillableServer(Protocol):
    """An engine's server that comes back on the same ports."""

    def start(self) -> "ObservedEngine":
        """Start it and wait until it is ready."""

    def kill(self) -> None:
        """Kill it with all its processes."""


class ObservedEngine(Protocol):
    """An engine whose load a test can read."""

    def gauges(self) -> Mapping[str, float]:
        """At least `active`, `used` and `generation_requests`."""


def ask(
    model: ServedModel,
    tokenizer: Tokenizer,
    ids: TokenIds,
    *,
    max_tokens: int = 1000,
    stops: Sequence[str] = (),
    is_endless: bool = False,
    sampling: Sampling = _GREEDY,
    guide: Guide | None = None,
    num_top: int | None = None,
    adapter: WantedAdapter | None = None,
) -> Asked:
    """A request that is on its way, made as a worker makes it.

    Args:
        sampling: how tokens are picked.
        is_endless: only `max_tokens` ends the answer.
        guide: the form that the engine must give it.
        num_top: tokens in the place of each one to score, besides that one; None: none at all.
        adapter: that is to answer; None: the model as it is.
    """
    running = stray_run()
    abilities = model.abilities
    takes_other = abilities.takes_ids or tokenizer.is_estimate
    request = Request(
        request_id=running.lease.lease_id.hex,
        ids=ids,
        max_tokens=max_tokens,
        end_id=NEVER if is_endless else tokenizer.end_id,
        pad_id=tokenizer.pad_id,
        sampling=sampling,
        text="" if takes_other else prompt_text(tokenizer, ids, adds_bos=abilities.adds_bos),
        turns=turns_of(tokenizer, ids) if tokenizer.is_estimate else (),
        stops=tuple(stops),
        vocabulary=tokenizer.token_bytes,
        guide=guide,
        num_top=num_top,
        adapter=adapter,
    )
    answer: Answer | TextAnswer = TextAnswer(tokenizer, max_tokens=max_tokens, stops=stops)
    if abilities.gives_ids:
        ends = EndTokens(sampling.stop_token_ids)
        answer = Answer(tokenizer, max_tokens=max_tokens, stops=stops, ends=ends, num_top=num_top)
    answer.begin_segment(until=max_tokens)
    stream = Stream(model.call(request), put=running.inbox.put)
    stream.start()
    return Asked(stream, running, answer, abilities.ends_itself)


@dataclass
class Served:
    """An entry point on a running server.

    Attributes:
        says: all tokens of the answer to a prompt, known beforehand; an answer without an end repeats them.
        strike: makes the engine fail in the middle of what it says; nothing to do where it fails by itself.
        long_answer: tokens of a long answer.
    """

    engine: ObservedEngine
    model: ServedModel
    tokenizer: Tokenizer
    says: Callable[[TokenIds], list[int]]
    strike: Callable[[], None] = lambda: None
    long_answer: int = 5000

    @classmethod
    def on(
        cls,
        engine: RunningEngine,
        model_name: str,
        tokenizer: Tokenizer,
        *,
        says: Callable[[TokenIds], list[int]],
        strike: Callable[[], None] = lambda: None,
    ) -> "Served":
        """With the adapter that the server's own word leads to."""
        settings = settings_of(engine, model_name)
        client = EngineClient(settings.triton, settings.engine, end_id=tokenizer.end_id)
        model = client.served()
        client.close()
        return cls(engine, model, tokenizer, says, strike)

    def text(self, prompt: TokenIds) -> str:
        """The whole answer."""
        return self.tokenizer.decode(self.says(prompt))

    def endless(self, prompt: TokenIds, num_tokens: int) -> str:
        """The beginning of an answer without an end."""
        return self.tokenizer.decode(self.endless_ids(prompt, num_tokens))

    def endless_ids(self, prompt: TokenIds, num_tokens: int) -> list[int]:
        """The same in token ids."""
        round_ = self.says(prompt)
        return (round_ * (num_tokens // len(round_) + 1))[:num_tokens]

    def prompt(self, text: str) -> TokenIds:
        return self.tokenizer.encode_messages([Message("user", text)])

    def ask(
        self,
        ids: TokenIds,
        *,
        max_tokens: int = 1000,
        is_endless: bool = False,
        sampling: Sampling = _GREEDY,
        **options: Any,  # noqa: ANN401  # of `ask`
    ) -> Asked:
        """The request is on its way; a model that goes by its prompt is told there if it has no end, too."""
        # `llmapi` has no tensor for it: its stand-in goes by the prompt.
        if is_endless and not self.model.abilities.takes_ids and self.model.kind != "llmapi":
            sampling = replace(sampling, min_tokens=max_tokens)
        return ask(
            self.model,
            self.tokenizer,
            ids,
            max_tokens=max_tokens,
            is_endless=is_endless,
            sampling=sampling,
            **options,
        )

    def is_idle(self) -> bool:
        gauges = self.engine.gauges()
        return gauges["active"] == gauges["used"] == 0


@dataclass
class Mortal:
    """A server that can be killed and comes back on its ports.

    Attributes:
        entries: its entry points, once it runs; one may be named twice.
    """

    server: KillableServer
    entries: Callable[[], list[Served]]
