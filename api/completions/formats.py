"""Formats of answers: OpenAI's chat and text completions, whole or in chunks, and plain JSON."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from api.completions.interactive import Completion
from jobs.answers.completions import chat_completion, text_completion
from jobs.answers.log_probs import LogProbs
from jobs.live_output import OutputPiece
from jobs.models import Job, JsonObject
from jobs.prompts.openai import usage_object
from jobs.prompts.tools import frames
from jobs.prompts.tools.calls import call_objects
from jobs.prompts.tools.frames import CallPart, FrameReader, TextPart, call_piece

JSON = dict[str, Any]


@dataclass(frozen=True, slots=True)
class AnswerFormat:
    """One format of an answer.

    Attributes:
        whole: makes the body of a request without `stream`.
        first: makes the first chunks of a stream.
        text: makes the chunk of new text and the scores of its tokens.
        reasoning: makes the chunk of new thinking; None: this format's answers have none.
        call: makes the chunk of a part of a call; None: this format's answers have none.
        last: makes the chunk with the finish reason.
        usage: makes the chunk of token counts, sent if the request asks for it; None: `last` has them.
        closing: bytes that end the stream, sent as they are.
    """

    whole: Callable[[Completion], JsonObject]
    first: Callable[[Job], list[JsonObject]]
    text: Callable[[Job, str, LogProbs | None], JsonObject]
    last: Callable[[Completion], JsonObject]
    reasoning: Callable[[Job, str], JsonObject] | None = None
    call: Callable[[Job, CallPart], JsonObject] | None = None
    usage: Callable[[Completion], JsonObject] | None = None
    closing: bytes = b""

    def pieces(self, job: Job, new: OutputPiece, reader: FrameReader) -> list[JsonObject]:
        """Make the chunks of new output; the reader is the stream's own."""
        chunks = [self.reasoning(job, new.reasoning)] if self.reasoning and new.reasoning else []
        scores = new.log_probs
        for part in reader.push(new.text):
            if isinstance(part, TextPart):
                chunks.append(self.text(job, part.text, scores))
                scores = None
            elif self.call is not None:
                chunks.append(self.call(job, part))
        return chunks if scores is None else [*chunks, self.text(job, "", scores)]


def _created(job: Job) -> int:
    return int(job.created_at.timestamp())


def _usage(ended: Completion) -> JsonObject:
    job = ended.job
    return usage_object(
        prompt_tokens=job.prompt_tokens or 0,
        completion_tokens=job.completion_tokens,
        reasoning_tokens=ended.reasoning_tokens,
        cached_tokens=job.cached_tokens,
    )


def _whole(make: Callable[..., JsonObject]) -> Callable[[Completion], JsonObject]:
    def whole(ended: Completion) -> JsonObject:
        job = ended.job
        return make(
            identifier=job.id.hex,
            created=_created(job),
            model=job.address,
            text=frames.unframed(ended.output.text)[0],
            finish_reason=job.finish_reason,
            usage=_usage(ended),
            log_probs=ended.output.log_probs,
        )

    return whole


def _chat(ended: Completion) -> JsonObject:
    _, calls = frames.unframed(ended.output.text)
    objects = call_objects(calls, ended.job.id)
    return _whole(partial(chat_completion, reasoning=ended.output.reasoning or None, calls=objects))(ended)


def _chunks(prefix: str, kind: str) -> Callable[..., JsonObject]:
    """Make what renders one chunk of this kind: its job, its choices and, in the last one, the usage."""

    def chunk(job: Job, choices: list[JSON], usage: JsonObject | None = None) -> JsonObject:
        found: JsonObject = {
            "id": f"{prefix}-{job.id.hex}",
            "object": kind,
            "created": _created(job),
            "model": job.address,
            "system_fingerprint": None,
            "choices": choices,
        }
        return found if usage is None else found | {"usage": usage}

    return chunk


_chat_chunk = _chunks("chatcmpl", "chat.completion.chunk")
_text_chunk = _chunks("cmpl", "text_completion")


def _delta(delta: JSON, finish_reason: str | None = None, scored: LogProbs | None = None) -> list[JSON]:
    told = scored and scored.for_chat()
    return [{"index": 0, "delta": delta, "logprobs": told, "finish_reason": finish_reason}]


def _call_delta(job: Job, part: CallPart) -> list[JSON]:
    return _delta({"tool_calls": [call_piece(part, job.id)]})


def _text_choice(text: str, finish_reason: str | None = None, scored: LogProbs | None = None) -> list[JSON]:
    told = scored and scored.for_text()
    return [{"index": 0, "text": text, "logprobs": told, "finish_reason": finish_reason}]


def _plain(ended: Completion) -> JsonObject:
    return {"text": ended.output.text, "finish_reason": ended.job.finish_reason, "usage": _usage(ended)}


_DONE: Final = b"data: [DONE]\n\n"
CHAT: Final = AnswerFormat(
    whole=_chat,
    first=lambda job: [_chat_chunk(job, _delta({"role": "assistant", "content": ""}))],
    text=lambda job, text, scored: _chat_chunk(job, _delta({"content": text}, scored=scored)),
    reasoning=lambda job, text: _chat_chunk(job, _delta({"reasoning_content": text})),
    call=lambda job, part: _chat_chunk(job, _call_delta(job, part)),
    last=lambda ended: _chat_chunk(ended.job, _delta({}, ended.job.finish_reason)),
    usage=lambda ended: _chat_chunk(ended.job, [], _usage(ended)),
    closing=_DONE,
)
TEXT: Final = AnswerFormat(
    whole=_whole(text_completion),
    first=lambda _job: [],
    text=lambda job, text, scored: _text_chunk(job, _text_choice(text, scored=scored)),
    last=lambda ended: _text_chunk(ended.job, _text_choice("", ended.job.finish_reason)),
    usage=lambda ended: _text_chunk(ended.job, [], _usage(ended)),
    closing=_DONE,
)
PLAIN: Final = AnswerFormat(
    whole=_plain,
    first=lambda _job: [],
    text=lambda _job, text, _scored: {"text": text},
    last=lambda ended: {"finish_reason": ended.job.finish_reason, "usage": _usage(ended)},
)
