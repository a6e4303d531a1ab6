"""What the local engine is built for, how fast it is, and what it says."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, Literal

from cli.engine.hardware import GPUS, Gpu

EngineMode = Literal["extractive", "synthetic", "oracle"]

_KV_BYTES_PER_TOKEN: Final = 131_072  # 2 · 32 layers · 8 KV heads · 128 · 2 bytes: Llama 3.1 8B in fp16
_WEIGHT_BYTES: Final = 16.06e9  # 8.03 billion parameters in fp16
_WEIGHT_FLOPS_PER_TOKEN: Final = 16.06e9  # 2 · 8.03 billion parameters
_ATTENTION_FLOPS_PER_PAIR: Final = 524_288  # 4 · 32 layers · 4096


@dataclass(frozen=True, kw_only=True)
class Roofline:
    """What a GPU takes for one iteration, in seconds for each of what it works on.

    Attributes:
        iteration: the iteration itself: the weights are read once.
        kv_token: each token resident in the KV cache, read once.
        prefill_token: each prompt token processed.
        attention_pair: each (query, key) pair of its prompt chunks.
    """

    iteration: float
    kv_token: float
    prefill_token: float
    attention_pair: float


def roofline(gpu: Gpu) -> Roofline:
    """The cost model of this GPU, by what it reaches of its data sheet."""
    bandwidth, flops = gpu.bandwidth * gpu.reached_bandwidth, gpu.flops * gpu.reached_flops
    return Roofline(
        iteration=_WEIGHT_BYTES / bandwidth,
        kv_token=_KV_BYTES_PER_TOKEN / bandwidth,
        prefill_token=_WEIGHT_FLOPS_PER_TOKEN / flops,
        attention_pair=_ATTENTION_FLOPS_PER_PAIR / flops,
    )


A6000: Final = roofline(GPUS["a6000"])
H200: Final = roofline(GPUS["h200"])


@dataclass(frozen=True, kw_only=True)
class SyntheticOutput:
    """How long synthetic answers are: lognormal, in tokens; `median` 0 means up to the request's limit."""

    median: float = 0.0
    sigma: float = 0.5


@dataclass(frozen=True, kw_only=True)
class OracleFaults:
    """What goes wrong in oracle mode, drawn anew each time a prompt arrives; rates are shares of requests.

    Attributes:
        seed: of all draws.
        error_rate: fail at a random token.
        crash_rate: fail there together with all active requests.
        silence_rate: say nothing for `silence_seconds` (wall time) once.
        gap_rate: share of tokens before which up to `gap_seconds` pass.
    """

    seed: int = 0
    error_rate: float = 0.0
    crash_rate: float = 0.0
    silence_rate: float = 0.0
    silence_seconds: float = 5.0
    gap_rate: float = 0.0
    gap_seconds: float = 0.2


@dataclass(frozen=True, kw_only=True)
class EngineOptions:
    """The local engine, as TensorRT-LLM would be built and configured.

    Attributes:
        mode: `extractive` summarizes the prompt, `synthetic` makes load, `oracle` is for fault tests.
        tokenizer_dir: holds tokenizer.json; only synthetic mode goes without.
        time_scale: how much faster than the modelled GPU time runs.
        max_batch_size: sequences active at once.
        kv_cache_tokens: tokens in the KV pool.
        tokens_per_block: tokens in a KV block.
        max_input_len: prompt tokens; told to clients, enforced by none (as in TensorRT-LLM).
        max_seq_len: prompt and output tokens; a request that asks for more is cut in silence.
        max_num_tokens: tokens in one iteration, so also the size of a prompt chunk.
        tokens_per_response: None means 1, and 8 above a time scale of 3, where responses would cost more than
            the engine.
        gpu: the modelled GPU.
        synthetic: lengths in synthetic mode.
        faults: faults in oracle mode.
        text_models: also serve `preprocessing`, `postprocessing`, `ensemble` and `tensorrt_llm_bls`, so all
            five models of TensorRT-LLM's repository; six more processes.
        accumulate_tokens: of `tensorrt_llm_bls`: each response is the whole text so far.
        add_special_tokens: of `preprocessing`: a beginning-of-text token goes in front of every text.
        vllm_model: also serve a stand-in for Triton's vLLM backend, for tests.
    """

    mode: EngineMode = "extractive"
    tokenizer_dir: Path | None = None
    time_scale: float = 1.0
    max_batch_size: int = 4
    kv_cache_tokens: int = 131_072
    tokens_per_block: int = 64
    max_input_len: int = 96_000
    max_seq_len: int = 131_072
    max_num_tokens: int = 8192
    tokens_per_response: int | None = None
    gpu: Roofline = A6000
    synthetic: SyntheticOutput = SyntheticOutput()
    faults: OracleFaults = OracleFaults()
    text_models: bool = False
    accumulate_tokens: bool = False
    add_special_tokens: bool = False
    vllm_model: bool = False

    def __post_init__(self) -> None:
        if self.mode != "synthetic" and self.tokenizer_dir is None:
            raise ValueError(f"The local engine in {self.mode} mode needs a tokenizer_dir.")
        if (self.text_models or self.vllm_model) and self.tokenizer_dir is None:
            raise ValueError("Models that take text need a tokenizer_dir.")
        if self.tokenizer_dir is not None and not (self.tokenizer_dir / "tokenizer.json").is_file():
            raise ValueError(f"There is no tokenizer.json in {self.tokenizer_dir}.")
        if self.time_scale <= 0:
            raise ValueError(f"time_scale must be above 0, not {self.time_scale}.")

    def local_parameters(self) -> dict[str, str]:
        """The parameters of config.pbtxt that no real engine has; their names start with `local_`."""
        response = self.tokens_per_response or (8 if self.time_scale > 3 else 1)
        values: dict[str, object] = {
            "mode": self.mode,
            "tokenizer_dir": self.tokenizer_dir.resolve() if self.tokenizer_dir else "",
            "time_scale": self.time_scale,
            "tokens_per_response": response,
            "always_log_probs": self.text_models,
        }
        values |= {f"{name}_seconds": value for name, value in asdict(self.gpu).items()}
        values |= {f"synthetic_{name}": value for name, value in asdict(self.synthetic).items()}
        values |= {f"oracle_{name}": value for name, value in asdict(self.faults).items()}
        return {f"local_{name}": str(value) for name, value in values.items()}
