"""The values of a profile: paths inside the image, and what fills the model configurations."""

from collections.abc import Mapping
from typing import Final

from cli.engine.profile import Profile

DATA: Final = "/data"  # model, checkpoint and engine
REPOSITORY: Final = "/models"  # loaded by Triton
RENDERED: Final = "/rendered"  # written by this package
DEFAULT_NAME: Final = "tensorrt_llm"


def model_dir(profile: Profile) -> str:
    """Return the path of the Hugging Face model and its tokenizer."""
    return folder_of(profile.model.repository)


def folder_of(repository: str) -> str:
    """Return the path of a model of the hub."""
    return f"{DATA}/models/{repository.partition('/')[2]}"


def checkpoint_dir(profile: Profile) -> str:
    """Return the path of the converted weights."""
    return f"{DATA}/checkpoints/{profile.name}-{profile.precision.weights}"


def engine_dir(profile: Profile) -> str:
    """Return the path of the built engine."""
    return f"{DATA}/engines/{profile.name}-{profile.precision.weights}"


def model_names(profile: Profile) -> tuple[str, ...]:
    """List the repository's models: five, or the engine alone next to another one or as `llmapi`."""
    if profile.model.triton_name != DEFAULT_NAME or profile.image.flow == "llmapi":
        return (profile.model.triton_name,)
    return ("preprocessing", DEFAULT_NAME, "postprocessing", "ensemble", "tensorrt_llm_bls")


def template_name(model: str) -> str:
    """Return the name of the folder with the model's template."""
    return model if model in _FILLS and model != DEFAULT_NAME else DEFAULT_NAME


def fill(profile: Profile, model: str) -> dict[str, str]:
    """Build the template's values, for the image's fill_template.py and for ours."""
    return {"triton_max_batch_size": str(profile.engine.max_batch_size)} | dict(
        _FILLS[template_name(model)](profile)
    )


def own_fill(profile: Profile, model: str) -> dict[str, str]:
    """Build the values of our own template, including names that the image's fixes."""
    names = {"seed_input": profile.image.seed_input, "min_tokens_input": profile.image.min_tokens_input}
    return fill(profile, model) | names


def _engine(profile: Profile) -> Mapping[str, str]:
    engine = profile.engine
    return {
        "triton_backend": "tensorrtllm",
        "decoupled_mode": "True",
        "max_beam_width": "1",
        "engine_dir": engine_dir(profile),
        "batching_strategy": "inflight_fused_batching",
        "batch_scheduler_policy": engine.scheduler_policy,
        "max_tokens_in_paged_kv_cache": str(engine.kv_cache_tokens),
        "kv_cache_free_gpu_mem_fraction": f"{engine.free_gpu_memory_fraction:g}",
        "exclude_input_in_output": "True",
        "enable_chunked_context": str(engine.chunked_context),
        "enable_kv_cache_reuse": str(engine.kv_cache_reuse),
        "logits_datatype": "TYPE_FP32",
        "encoder_input_features_data_type": "TYPE_FP16",
        "prompt_embedding_table_data_type": "TYPE_FP16",
    } | _placement(profile)


def _placement(profile: Profile) -> dict[str, str]:
    """Name what only some engines have: their own GPUs, several machines, memory of the host."""
    found: dict[str, str] = {}
    if profile.gpu.devices:
        found["gpu_device_ids"] = ",".join(map(str, profile.gpu.devices))
    if profile.gpu.nodes > 1:
        found["num_nodes"] = str(profile.gpu.nodes)
    if profile.engine.host_cache_gib:
        found["kv_cache_host_memory_bytes"] = str(int(profile.engine.host_cache_gib * 2**30))
    return found


def _preprocessing(profile: Profile) -> Mapping[str, str]:
    return {
        "tokenizer_dir": model_dir(profile),
        "preprocessing_instance_count": "1",
        "add_special_tokens": "False",
    }


def _postprocessing(profile: Profile) -> Mapping[str, str]:
    return {
        "tokenizer_dir": model_dir(profile),
        "postprocessing_instance_count": "1",
        "skip_special_tokens": "True",
    }


def _ensemble(_: Profile) -> Mapping[str, str]:
    return {"logits_datatype": "TYPE_FP32"}


def _bls(profile: Profile) -> Mapping[str, str]:
    return {
        "decoupled_mode": "True",
        "bls_instance_count": str(profile.engine.max_batch_size),
        "accumulate_tokens": "False",
        "logits_datatype": "TYPE_FP32",
        "tensorrt_llm_model_name": DEFAULT_NAME,
    } | (
        {"tensorrt_llm_draft_model_name": profile.speculative.draft_model}
        if profile.speculative and profile.speculative.draft_model
        else {}
    )


_FILLS: Final = {
    "preprocessing": _preprocessing,
    DEFAULT_NAME: _engine,
    "postprocessing": _postprocessing,
    "ensemble": _ensemble,
    "tensorrt_llm_bls": _bls,
}
