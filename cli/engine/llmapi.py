"""The configuration of Triton's model `llmapi`: TensorRT-LLM's PyTorch engine, which needs no build.

Source: triton_backend/all_models/llmapi and tensorrt_llm/llmapi/llm_args.py of releases 1.1 to 1.2, whose
classes refuse unknown names. Read there and not run.
"""

from cli.engine import values
from cli.engine.profile import Profile

MODEL_YAML = "model.yaml"
_STREAM_INTERVAL = 10  # tokens to a response, each of which repeats the whole text so far


def model_yaml(profile: Profile) -> str:
    """Render the model.yaml that the model reads at start; the image's config.pbtxt stays as it is."""
    return "".join(_lines(_arguments(profile)))


def _arguments(profile: Profile) -> dict[str, object]:
    engine, gpu = profile.engine, profile.gpu
    found: dict[str, object] = {
        "model": values.model_dir(profile),
        "backend": "pytorch",
        "tensor_parallel_size": gpu.tensor,
        "pipeline_parallel_size": gpu.pipeline,
        "max_batch_size": engine.max_batch_size,
        "max_num_tokens": engine.max_num_tokens,
        "max_seq_len": engine.max_seq_len,
        "enable_chunked_prefill": engine.chunked_context,
        "stream_interval": _STREAM_INTERVAL,
        "scheduler_config": {"capacity_scheduler_policy": engine.scheduler_policy.upper()},
        "kv_cache_config": {
            "max_tokens": engine.kv_cache_tokens,
            "tokens_per_block": engine.tokens_per_block,
            "free_gpu_memory_fraction": engine.free_gpu_memory_fraction,
            "enable_block_reuse": engine.kv_cache_reuse,
            "dtype": "fp8" if profile.precision.kv_cache == "fp8" else "auto",
            "host_cache_size": int(engine.host_cache_gib * 2**30),
        },
    }
    if gpu.nodes > 1:
        found["gpus_per_node"] = gpu.per_node
    if profile.speculative is not None and profile.speculative.draft_repository is not None:
        found["speculative_config"] = {
            "decoding_type": "DraftTarget",
            "max_draft_len": profile.speculative.max_draft_len,
            "speculative_model_dir": values.folder_of(profile.speculative.draft_repository),
        }
    # Without decoupled it cannot stream; the model has no batch dimension, whatever it batches inside.
    return found | {"triton_config": {"max_batch_size": 0, "decoupled": True}}


def _lines(content: dict[str, object], indent: str = "") -> list[str]:
    lines: list[str] = []
    for name, value in content.items():
        if isinstance(value, dict):
            lines += [f"{indent}{name}:\n", *_lines(value, f"{indent}  ")]
        else:
            lines.append(f"{indent}{name}: {str(value).lower() if isinstance(value, bool) else value}\n")
    return lines
