"""The options of the local engine: its limits, its speed, and its output."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, Literal

from cli.engine.hardware import GPUS, Gpu
from cli.stack.servers.engine_size import EngineSize

EngineMode = Literal["extractive", "synthetic", "oracle"]

_KV_BYTES_PER_TOKEN: Final = 131_072  # 2 · 32 layers · 8 KV heads · 128 · 2 bytes: Llama 3.1 8B in fp16
_WEIGHT_BYTES: Final = 16.06e9  # 8.03 billion parameters in fp16
_WEIGHT_FLOPS_PER_TOKEN: Final = 16.06e9  # 2 · 8.03 billion parameters
_ATTENTION_FLOPS_PER_PAIR: Final = 524_288  # 4 · 32 layers · 4096


@dataclass(frozen=True, kw_only=True)
class Roofline:
    """The cost of one iteration on a GPU, in seconds per unit of work.

    Attributes:
        iteration: for the iteration itself, which reads the weights once.
        kv_token: for each token in the KV cache, read once.
        prefill_token: for each prompt token processed.
        attention_pair: for each (query, key) pair of the prompt chunks.
    """

    iteration: float
    kv_token: float
    prefill_token: float
    attention_pair: float


def roofline(gpu: Gpu) -> Roofline:
    """Build the cost model of this GPU from the speeds that it reaches."""
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
    """The lognormal length of synthetic outputs in tokens; `median` 0 means up to the request's limit."""

    median: float = 0.0
    sigma: float = 0.5


@dataclass(frozen=True, kw_only=True)
class OracleFaults:
    """The faults of oracle mode, drawn for each prompt that arrives; rates are shares of requests.

    Attributes:
        seed: of all draws.
        error_rate: requests that fail at a random token.
        crash_rate: requests that fail at a random token and take all active requests with them.
        silence_rate: requests that send nothing for `silence_seconds` (wall time) once.
        gap_rate: share of tokens that come up to `gap_seconds` late.
    """

    seed: int = 0
    error_rate: float = 0.0
    crash_rate: float = 0.0
    silence_rate: float = 0.0
    silence_seconds: float = 5.0
    gap_rate: float = 0.0
    gap_seconds: float = 0.2


@dataclass(frozen=True, kw_only=True)
class EngineOptions(EngineSize):
    """The options of the local engine, named as TensorRT-LLM's are.

    Attributes:
        mode: `extractive` summarizes the prompt, `synthetic` makes load, `oracle` is for fault tests.
        tokenizer_dir: holds tokenizer.json; optional in synthetic mode alone.
        time_scale: speed relative to the modelled GPU.
        tokens_per_response: None means 1, or 8 above a time scale of 3, where responses would cost more than
            the engine.
        credits_reuse: a request starts without room for the blocks that it shares with running ones, as with
            newer releases of TensorRT-LLM; tell a worker by LONGBATCH_ENGINE__CREDITS_REUSE.
        gpu: the modelled GPU.
        synthetic: lengths in synthetic mode.
        faults: faults in oracle mode.
        text_models: also serve `preprocessing`, `postprocessing`, `ensemble` and `tensorrt_llm_bls`, so all
            five models of TensorRT-LLM's repository; six more processes.
        accumulate_tokens: for `tensorrt_llm_bls`: each response is the whole text so far.
        add_special_tokens: for `preprocessing`: put a beginning-of-text token before every text.
        vllm_model: also serve a stand-in for Triton's vLLM backend, for tests.
        llmapi: also serve a stand-in for NVIDIA's model of that name, for tests.
        llmapi_decoupled: it may stream.
    """

    mode: EngineMode = "extractive"
    tokenizer_dir: Path | None = None
    time_scale: float = 1.0
    tokens_per_response: int | None = None
    credits_reuse: bool = False
    gpu: Roofline = A6000
    synthetic: SyntheticOutput = SyntheticOutput()
    faults: OracleFaults = OracleFaults()
    text_models: bool = False
    accumulate_tokens: bool = False
    add_special_tokens: bool = False
    vllm_model: bool = False
    llmapi: bool = False
    llmapi_decoupled: bool = True

    def __post_init__(self) -> None:
        if self.mode != "synthetic" and self.tokenizer_dir is None:
            raise ValueError(f"The local engine in {self.mode} mode needs a tokenizer_dir.")
        if (self.text_models or self.vllm_model or self.llmapi) and self.tokenizer_dir is None:
            raise ValueError("Models that take text need a tokenizer_dir.")
        if self.tokenizer_dir is not None and not (self.tokenizer_dir / "tokenizer.json").is_file():
            raise ValueError(f"No tokenizer.json in {self.tokenizer_dir}.")
        if self.time_scale <= 0:
            raise ValueError(f"time_scale must be above 0, not {self.time_scale}.")

    def local_parameters(self) -> dict[str, str]:
        """Build the config.pbtxt parameters that no real engine has, named `local_…`."""
        response = self.tokens_per_response or (8 if self.time_scale > 3 else 1)
        values: dict[str, object] = {
            "mode": self.mode,
            "tokenizer_dir": self.tokenizer_dir.resolve() if self.tokenizer_dir else "",
            "time_scale": self.time_scale,
            "tokens_per_response": response,
            "always_log_probs": self.text_models,
            "credits_reuse": self.credits_reuse,
        }
        values |= {f"{name}_seconds": value for name, value in asdict(self.gpu).items()}
        values |= {f"synthetic_{name}": value for name, value in asdict(self.synthetic).items()}
        values |= {f"oracle_{name}": value for name, value in asdict(self.faults).items()}
        return {f"local_{name}": str(value) for name, value in values.items()}
