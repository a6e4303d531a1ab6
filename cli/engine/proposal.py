"""A profile proposed for a model and a GPU: the fewest GPUs, and a KV pool in all the memory they leave."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from cli.engine import model_config, plan
from cli.engine.errors import ProfileError
from cli.engine.hardware import GPUS, ModelShape
from cli.engine.profile import Profile

GPU_COUNTS: Final = (1, 2, 4, 8)
_IMAGE: Final = "nvcr.io/nvidia/tritonserver:26.07-trtllm-python-py3"
_LONGEST: Final = 131_072
_LONGEST_OUTPUT: Final = 2048
_TYPICAL_PROMPT: Final = 8000
_TYPICAL_OUTPUT: Final = 512
_MOST_SLOTS: Final = 64
_TOKENS_PER_BLOCK: Final = 32
_ITERATION_TOKENS: Final = 8192


def propose(config: Path, gpu: str, *, count: int | None = None) -> Profile:
    """Propose a profile.

    Args:
        config: the model's config.json, in the model's folder.
        gpu: a kind of GPU.
        count: how many; None: the fewest whose memory holds one sequence of full length.

    Raises:
        ProfileError: the model cannot be counted, or does not fit.
    """
    if gpu not in GPUS:
        raise ProfileError(f"there are no figures of the GPU {gpu}; use one of {', '.join(GPUS)}")
    shape = model_config.read(config)
    dtype = _dtype(config)
    for number in GPU_COUNTS if count is None else (count,):
        if shape.kv_heads % number:
            continue
        found = Profile.model_validate(_content(config, shape, dtype, gpu, number))
        pool = plan.largest_pool_tokens(found)
        blocks = pool // _TOKENS_PER_BLOCK
        if blocks >= plan.job_blocks(found, found.engine.max_seq_len):
            work = found.workload
            typical = plan.job_blocks(found, work.typical_prompt_tokens + work.typical_output_tokens)
            slots = min(_MOST_SLOTS, max(1, blocks // typical))
            fitting = {"kv_cache_tokens": pool, "max_batch_size": slots}
            return found.model_copy(update={"engine": found.engine.model_copy(update=fitting)})
    tried = "up to 8" if count is None else str(count)
    raise ProfileError(
        f"{name_of(config)} does not fit: {tried} {GPUS[gpu].title} do not hold its weights and one sequence"
        f" of {_longest(shape)} tokens, or cannot share its {shape.kv_heads} KV heads"
    )


def name_of(config: Path) -> str:
    """Name a model by its folder."""
    name = re.sub(r"[^a-z0-9.-]+", "-", config.absolute().parent.name.lower()).strip("-.")
    return name[:64] or "model"


def written(profile: Profile) -> str:
    """Write a profile as TOML, with what is not a default."""
    lines: list[str] = []
    content = profile.model_dump(exclude={"name", "dimensions"}, exclude_defaults=True)
    for group, values in content.items():
        lines += [f"[{group}]", *(f"{name} = {json.dumps(value)}" for name, value in values.items()), ""]
    return "\n".join(lines)


def _content(
    config: Path, shape: ModelShape, dtype: str, gpu: str, count: int
) -> Mapping[str, Mapping[str, object] | str | ModelShape]:
    name, longest = name_of(config), _longest(shape)
    output = min(_LONGEST_OUTPUT, longest // 4)
    return {
        "name": name,
        "dimensions": shape,
        "model": {"repository": f"local/{name}", "served_name": name, "config": str(config.absolute())},
        "gpu": {"kind": gpu, "count": count},
        "precision": {"dtype": dtype, "weights": dtype, "kv_cache": dtype},
        "engine": {
            "max_batch_size": _MOST_SLOTS,
            "max_input_len": longest - output,
            "max_seq_len": longest,
            "max_num_tokens": _ITERATION_TOKENS,
            "kv_cache_tokens": longest,
            "tokens_per_block": _TOKENS_PER_BLOCK,
            "free_gpu_memory_fraction": 0.85,
            "chunked_context": True,
            "paged_context_fmha": True,
            "kv_cache_reuse": True,
            "scheduler_policy": "guaranteed_no_evict",
        },
        "workload": {
            "full_output_tokens": output,
            "typical_prompt_tokens": min(_TYPICAL_PROMPT, (longest - output) // 2),
            "typical_output_tokens": min(_TYPICAL_OUTPUT, output),
        },
        "image": {"name": _IMAGE, "flow": "llmapi"},
    }


def _longest(shape: ModelShape) -> int:
    return min(shape.max_positions or _LONGEST, _LONGEST)


def _dtype(config: Path) -> str:
    """Read the format of the weights; of quantized ones, that of what is left."""
    content = json.loads(config.read_text())
    parts = [content, content.get("text_config") or {}]
    named = [str(part.get(name)) for part in parts for name in ("dtype", "torch_dtype")]
    return "float16" if "float16" in named else "bfloat16"
