"""The generation of an answer by the local `tensorrt_llm`, told as the LLM API tells it."""

import json
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils
from tokenizers import Tokenizer

from . import inner
from .asked import Asked
from .inner import PbTensor

_REPLACEMENT = "\ufffd"
# A prompt with this word gets an answer without an end: no tensor of the protocol turns the end token off.
_ENDLESSLY = " endlessly"


@dataclass(frozen=True)
class Output:
    """An answer so far.

    Attributes:
        text: all of it; an incomplete character is left out until its other tokens come.
        finish_reason: `stop`, `length` or `cancelled`; None if it goes on.
        stop_reason: the stop string that ended it.
        counts: the KV blocks of an answer that is over, by the names of `tensorrt_llm`.
    """

    text: str
    finish_reason: str | None = None
    stop_reason: str | None = None
    counts: Mapping[str, int] = field(default_factory=dict)


class Engine:
    """The tokenizer, and the model that generates."""

    def __init__(self, tokenizer_dir: str, max_seq_len: int) -> None:
        self._max_seq_len = max_seq_len
        self._tokenizer = Tokenizer.from_file(f"{tokenizer_dir}/tokenizer.json")
        named = json.loads((Path(tokenizer_dir) / "tokenizer_config.json").read_text())
        self._bos_id = self._tokenizer.token_to_id(named.get("bos_token") or "")
        self._end_id = self._tokenizer.token_to_id(named["eos_token"])

    def generate(self, asked: Asked, engine_id: str, aborted: threading.Event) -> Iterator[Output]:
        """Yield the answer so far after each response of the engine; the last one has a finish reason.

        Raises:
            ValueError: the prompt is too long, in the words of TensorRT-LLM.
            TritonModelException: the engine failed.
        """
        prompt = self._encode(asked.prompt)
        before = "" if asked.excludes_prompt else asked.prompt
        ids: list[int] = []
        counts: dict[str, int] = {}
        end_id = -1 if _ENDLESSLY in asked.prompt else self._end_id
        engine = inner.stream(
            prompt,
            max_tokens=asked.max_tokens,
            end_id=end_id,
            sampling=_sampling(asked),
            request_id=engine_id,
            counts=counts,
        )
        for new in engine:
            if aborted.is_set():
                inner.stop(engine_id)
            ids += new
            text = self._decode(ids).rstrip(_REPLACEMENT)
            if (stop := _first_stop(text, asked.stops)) is not None:
                inner.stop(engine_id)
                yield Output(before + text[: text.find(stop)], "stop", stop)
                return
            yield Output(before + text)
        reason = "length" if len(ids) >= asked.max_tokens else "stop"
        yield Output(before + self._decode(ids), "cancelled" if aborted.is_set() else reason, counts=counts)

    def _encode(self, prompt: str) -> list[int]:
        """Encode the prompt. As in the LLM API, special tokens are added, whatever the text begins with."""
        ids: list[int] = self._tokenizer.encode(prompt, add_special_tokens=False).ids
        ids = ids if self._bos_id is None else [self._bos_id, *ids]
        if (room := self._max_seq_len - len(ids)) <= 0:
            raise ValueError(
                f"`default_max_tokens` ({room}) must be greater than 0, `default_max_tokens` ({room}) = "
                f"max_seq_len ({self._max_seq_len}) - `splited_prompt_len` ({len(ids)})"
            )
        return ids

    def _decode(self, ids: list[int]) -> str:
        text: str = self._tokenizer.decode(ids, skip_special_tokens=True)
        return text


def _sampling(asked: Asked) -> list[PbTensor]:
    values: dict[str, Any] = {
        "runtime_top_k": np.int32(asked.top_k),
        "runtime_top_p": np.float32(asked.top_p),
    }
    if asked.temperature is not None:
        values["temperature"] = np.float32(asked.temperature)
    if asked.seed is not None:
        values["random_seed"] = np.uint64(asked.seed)
    return [pb_utils.Tensor(name, np.array([[value]])) for name, value in values.items()]


def _first_stop(text: str, stops: tuple[str, ...]) -> str | None:
    """Return the stop string that comes first in the text, or None."""
    return min((each for each in stops if each in text), key=text.find, default=None)
