"""What a model on Triton declares by name, as far as requests may name it."""

from collections.abc import Iterable, Iterator
from typing import Any, Final

from tritonclient.grpc import model_config_pb2

from jobs.engines.tensors import BYTES, DATATYPES, DeclaredTensor, DeclaredTensors
from worker.engine.triton.model_config import Offer, parameter

# What adapters build, in any release's spelling, and what would make an answer another one than they read:
# more beams or sequences, the prompt within the output.
_PROMPT: Final = {"input_ids", "input_lengths", "text_input"}
_LENGTH: Final = {"request_output_len", "max_tokens", "min_length", "min_tokens", "end_id", "pad_id"}
_STREAM: Final = {"streaming", "stream", "stop"}
_SAMPLING: Final = {"temperature", "runtime_top_k", "runtime_top_p", "top_k", "top_p", "random_seed", "seed"}
_PENALTIES: Final = {"repetition_penalty", "presence_penalty", "frequency_penalty"}
_WORDS: Final = {"stop_words_list", "bad_words_list", "stop_words", "bad_words"}
_GUIDES: Final = {"guided_decoding_guide", "guided_decoding_guide_type", "sampling_parameters"}
_RETURNED: Final = {"return_log_probs", "return_perf_metrics", "return_finish_reason"}
_COUNTED: Final = {"return_num_output_tokens", "return_num_input_tokens"}
_BEAMS: Final = {"beam_width", "num_return_sequences", "exclude_input_in_output", "exclude_input_from_output"}
_OWN_INPUTS: Final = frozenset(
    _PROMPT | _LENGTH | _STREAM | _SAMPLING | _PENALTIES | _WORDS | _GUIDES | _RETURNED | _COUNTED | _BEAMS
)
# The prefixes of such names: the parameters of llmapi, and adapters, which are registered by name.
_OWN_PREFIXES: Final = ("sampling_param_", "lora_")
_OWN_OUTPUTS: Final = frozenset(
    {"output_ids", "sequence_length", "output_log_probs", "text_output", "finish_reason", "num_output_tokens"}
)


def declared_tensors(offer: Offer) -> DeclaredTensors:
    """Read what the entry point declares; inputs that a stand-in does nothing with are left out."""
    unsupported = set(parameter(offer.engine, "unsupported_inputs").split(","))
    inputs = {name: each for name, each in _read(offer.entry.input) if name not in unsupported}
    outputs = dict(_read(offer.entry.output))
    own = {name for name in inputs if name in _OWN_INPUTS or name.startswith(_OWN_PREFIXES)}
    own |= _OWN_OUTPUTS & outputs.keys()
    return DeclaredTensors(
        {name: each for name, each in inputs.items() if name not in own},
        # Arrays of texts have no form of file.
        {name: each for name, each in outputs.items() if name not in own and each.datatype != BYTES},
        frozenset(own),
    )


def is_batched(offer: Offer) -> bool:
    """Return True if the entry point's tensors have a dimension of batches before those that it declares."""
    return bool(offer.entry.max_batch_size > 0)


def _read(tensors: Iterable[Any]) -> Iterator[tuple[str, DeclaredTensor]]:
    for each in tensors:
        kind: str = model_config_pb2.DataType.Name(each.data_type).removeprefix("TYPE_")
        datatype = BYTES if kind == "STRING" else kind
        if datatype in DATATYPES:
            yield each.name, DeclaredTensor(datatype, tuple(each.dims))
