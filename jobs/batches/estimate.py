"""Estimate a batch without submitting it: tokens, KV blocks, lines that can never fit, and time."""

import time
from collections.abc import Iterator, Sequence
from typing import Final

from jobs.adapters.offers import ModelOffer
from jobs.batches.line_bodies import validate_body
from jobs.batches.lines import LineFaultError, SeenIds, duplicate, read_envelope
from jobs.engines.capacity import Capacity, find_least_excess
from jobs.errors import LongbatchError, UnavailableError
from jobs.files.lines import FileLine
from jobs.forecast.duration import Estimate
from jobs.forecast.engine_speed import reading_work
from jobs.models import JsonObject
from jobs.prompts.openai import Generation, error_object
from jobs.prompts.store import Counter
from jobs.states.batch import Endpoint

# This many characters are counted with the tokenizer, two seconds of work; the rest is extrapolated.
_MAX_COUNTED: Final = 4_000_000
_MAX_LISTED: Final = 100
_USUAL_CHARS: Final = 4.0  # per token of English, until something is counted


class Estimator:
    """Estimates the lines of one file.

    Attributes:
        found: the estimate so far.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        capacities: Sequence[Capacity],
        counter: Counter,
        *,
        offer: ModelOffer,
        max_line_bytes: int,
        default_max_tokens: int,
    ) -> None:
        """Take the capacities of the engines that can run the lines, at least one, and what may be named."""
        self.found = Estimate()
        self._endpoint = endpoint
        self._capacities = capacities
        self._counter = counter
        self._offer = offer
        self._max_line_bytes = max_line_bytes
        self._default_max_tokens = default_max_tokens
        self._seen = SeenIds()
        self._num_chars = 0
        self._num_counted = 0

    def take(self, lines: Iterator[FileLine], *, seconds: float) -> bool:
        """Add lines to the estimate for about so long; return whether these were all."""
        until = time.monotonic() + seconds
        for line in lines:
            if not line.is_blank:
                self.found.num_lines += 1
                self._take_line(line)
            if time.monotonic() > until:
                return False
        return True

    def _take_line(self, line: FileLine) -> None:
        found = self.found
        try:
            envelope = read_envelope(line, self._endpoint, max_line_bytes=self._max_line_bytes)
            if not self._seen.add(envelope.custom_id):
                raise duplicate(envelope.custom_id)
            asked = validate_body(self._endpoint, envelope.body).generation
            self._offer.find(asked.model)
            self._add(line.number, envelope.custom_id, asked)
        except LineFaultError as fault:
            found.num_faults += 1
            if len(found.faults) < _MAX_LISTED:
                found.faults.append(fault.as_object(line.number))
        except UnavailableError:
            raise
        except LongbatchError as error:
            found.num_refused += 1
            if len(found.refused) < _MAX_LISTED:
                body = error_object(error.code, error.message, param=error.param)["error"]
                found.refused.append({"line": line.number, "custom_id": envelope.custom_id, "error": body})

    def _add(self, number: int, custom_id: str, asked: Generation) -> None:
        found = self.found
        lengths = [self._count(each) for each in asked.prompts]
        prompt_tokens = max(lengths)
        max_tokens = asked.tokens_within(self._default_max_tokens)
        excess = find_least_excess(self._capacities, prompt_tokens=prompt_tokens, max_tokens=max_tokens)
        if excess is not None:
            found.num_never_fit += 1
            if len(found.never_fit) < _MAX_LISTED:
                listed: JsonObject = {"line": number, "custom_id": custom_id, "limit": excess.limit}
                sizes: JsonObject = {"prompt_tokens": prompt_tokens, "max_tokens": max_tokens}
                found.never_fit.append(listed | sizes)
            return
        found.prompt_tokens += sum(lengths)
        num = asked.num_choices  # the prompt is read once
        found.max_output_tokens += 0 if asked.inputs else num * max_tokens
        found.reading += sum(map(reading_work, lengths))
        blocks = sum(self._capacities[0].blocks_of(each + max_tokens) for each in lengths)
        found.kv_blocks += num * blocks

    def _count(self, canonical: str) -> int:
        """Count a prompt's tokens, exactly while the time budget lasts.

        Raises:
            ChatTemplateError: the model's template refuses the prompt.
        """
        if self._num_chars + len(canonical) > _MAX_COUNTED:
            self.found.is_exact = False
            chars = self._num_chars / self._num_counted if self._num_counted else _USUAL_CHARS
            return round(len(canonical) / chars)
        num_tokens = self._counter.count_prompt(canonical).num_tokens
        self._num_chars += len(canonical)
        self._num_counted += num_tokens
        return num_tokens
