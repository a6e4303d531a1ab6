"""A stand-in for Triton's vLLM backend: its tensors and behaviour, around the local `tensorrt_llm`."""

import json
import threading
from collections.abc import Iterator
from secrets import randbits
from typing import Any, TypeAlias
from uuid import uuid4

import numpy as np
import triton_python_backend_utils as pb_utils
from tokenizers import Tokenizer

from . import inner
from .inner import PbTensor
from .server import die_with_server

# Objects of Triton's stub, which has no types.
PbRequest: TypeAlias = Any
PbResponse: TypeAlias = Any

_REPLACEMENT = "\ufffd"


class TritonPythonModel:
    """The model that follows every request in its own thread; a client that disconnects ends its request."""

    def initialize(self, args: dict[str, str]) -> None:
        """Load the tokenizer."""
        self._release = die_with_server()
        given = json.loads(args["model_config"])["parameters"]
        directory = given["tokenizer_dir"]["string_value"]
        self._tokenizer = Tokenizer.from_file(f"{directory}/tokenizer.json")
        named = json.loads(open(f"{directory}/tokenizer_config.json").read())  # noqa: PTH123, SIM115  # once
        self._bos_id = self._tokenizer.token_to_id(named.get("bos_token") or "")
        self._end_id = self._tokenizer.token_to_id(named["eos_token"])

    def execute(self, requests: list[PbRequest]) -> None:
        """Start a thread for every request."""
        for request in requests:
            threading.Thread(target=self._follow, args=(request,), daemon=True).start()

    def finalize(self) -> None:
        """Stop watching the server."""
        self._release()

    def _follow(self, request: PbRequest) -> None:
        sender = request.get_response_sender()
        final = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
        try:
            is_streaming = bool(_value(request, "stream", absent=False))
            deltas = self._answer(request, sender)
            if not is_streaming:
                deltas = iter([_whole(list(deltas), _prompt_shown(request))])
            held = None
            for delta in deltas:
                if held is not None:
                    sender.send(_response(request, held))
                held = delta
            sender.send(_response(request, held or ("", 0, "stop")), final)
        except (pb_utils.TritonModelException, ValueError) as error:
            failed = pb_utils.TritonError(f"Error generating stream: {error}")
            sender.send(pb_utils.InferenceResponse(error=failed), final)

    def _answer(self, request: PbRequest, sender: Any) -> Iterator[tuple[str, int, str | None]]:  # noqa: ANN401
        """Yield new text, the number of new tokens and, at the end, the finish reason."""
        asked = json.loads(_value(request, "sampling_parameters", absent=b"{}"))
        max_tokens = int(asked.get("max_tokens", 16))
        stops = [asked["stop"]] if isinstance(asked.get("stop"), str) else asked.get("stop") or []
        request_id = uuid4().hex
        ids: list[int] = []
        held = max(map(len, stops), default=1) - 1  # characters that may begin a stop string
        text, counted = "", 0
        end_id = -1 if asked.get("ignore_eos") else self._end_id
        prompt = _value(request, "text_input", absent=b"").decode()
        for new in self._generate(prompt, max_tokens, end_id, request_id, _sampling(asked)):
            if sender.is_cancelled():
                inner.stop(request_id)
            ids += new
            visible = self._tokenizer.decode(ids, skip_special_tokens=True).rstrip(_REPLACEMENT)
            if (at := min((visible.find(stop) for stop in stops if stop in visible), default=-1)) >= 0:
                inner.stop(request_id)
                yield visible[len(text) : at], len(ids) - counted, "stop"
                return
            visible = visible[: max(len(text), len(visible) - held)]
            yield visible[len(text) :], len(ids) - counted, None
            text, counted = visible, len(ids)
        rest = self._tokenizer.decode(ids, skip_special_tokens=True)[len(text) :]
        yield rest, 0, "length" if len(ids) >= max_tokens else "stop"

    def _generate(
        self, prompt: str, max_tokens: int, end_id: int, request_id: str, sampling: list[PbTensor]
    ) -> Iterator[list[int]]:
        """Yield the tokens of each engine response. As in vLLM, the prompt starts with the bos token."""
        ids = [] if self._bos_id is None else [self._bos_id]
        ids += self._tokenizer.encode(prompt, add_special_tokens=False).ids
        return inner.stream(
            ids, max_tokens=max_tokens, end_id=end_id, sampling=sampling, request_id=request_id
        )


def _sampling(asked: dict[str, Any]) -> list[PbTensor]:
    """Convert vLLM's parameters to the engine's tensors. By default temperature is 1, the seed random."""
    temperature = asked.get("temperature", 1.0)
    values = {"min_length": np.int32(asked.get("min_tokens", 0))}
    if temperature == 0:
        values["runtime_top_k"] = np.int32(1)
        return [pb_utils.Tensor(name, np.array([[value]])) for name, value in values.items()]
    seed = asked.get("seed", -1)
    values |= {
        "temperature": np.float32(temperature),
        "runtime_top_k": np.int32(max(0, asked.get("top_k", 0))),
        "runtime_top_p": np.float32(asked.get("top_p", 1.0)),
        "random_seed": np.uint64(randbits(63) if seed == -1 else seed),
    }
    return [pb_utils.Tensor(name, np.array([[value]])) for name, value in values.items()]


def _whole(deltas: list[tuple[str, int, str | None]], prompt: str) -> tuple[str, int, str | None]:
    """Join all deltas into one, after the prompt if it must be shown."""
    return prompt + "".join(text for text, _, _ in deltas), sum(num for _, num, _ in deltas), deltas[-1][2]


def _prompt_shown(request: PbRequest) -> str:
    excluded = bool(_value(request, "exclude_input_in_output", absent=False))
    return "" if excluded else _value(request, "text_input", absent=b"").decode()


def _response(request: PbRequest, delta: tuple[str, int, str | None]) -> PbResponse:
    text, num_tokens, reason = delta
    tensors = [pb_utils.Tensor("text_output", np.array([text.encode()], dtype=np.object_))]
    if _value(request, "return_finish_reason", absent=False):
        tensors.append(pb_utils.Tensor("finish_reason", np.array([str(reason).encode()], dtype=np.object_)))
    if _value(request, "return_num_output_tokens", absent=False):
        tensors.append(pb_utils.Tensor("num_output_tokens", np.array([num_tokens], dtype=np.uint32)))
    return pb_utils.InferenceResponse(tensors)


def _value(request: PbRequest, name: str, *, absent: Any) -> Any:  # noqa: ANN401  # see above
    found = pb_utils.get_input_tensor_by_name(request, name)
    return absent if found is None else found.as_numpy().ravel()[0]
