"""The command lines of a profile: convert, build, serve; and the settings of its worker."""

from typing import Final

from cli.engine import plan, values
from cli.engine.hardware import GPUS
from cli.engine.profile import Profile
from worker.engine.triton.server_flags import KEEPALIVE

# quantize.py's names; 16-bit weights are exported as they are.
_QFORMATS: Final = {"int8": "int8_wo", "fp8": "fp8", "int4_awq": "int4_awq"}
_REFERENCE: Final = GPUS["a6000"]  # the worker's deadlines and first estimates assume it


def convert_script(profile: Profile) -> str:
    """Name the image's script: formats with scales need calibration, others a conversion."""
    formats = profile.precision
    needs_scales = formats.weights in {"fp8", "int4_awq"} or formats.kv_cache == "fp8"
    return "quantize.py" if needs_scales else "convert_checkpoint.py"


def convert_options(profile: Profile) -> list[str]:
    """List the options that convert Hugging Face's weights, without --output_dir."""
    options = [f"--model_dir {values.model_dir(profile)}", f"--dtype {profile.precision.dtype}"]
    if profile.gpu.tensor > 1:
        options.append(f"--tp_size {profile.gpu.tensor}")
    if profile.gpu.pipeline > 1:
        options.append(f"--pp_size {profile.gpu.pipeline}")
    is_calibrated = convert_script(profile) == "quantize.py"
    return options + (_quantized if is_calibrated else _converted)(profile)


def _converted(profile: Profile) -> list[str]:
    """List the formats' options of convert_checkpoint.py; it calibrates an int8 cache."""
    formats = profile.precision
    options = ["--use_weight_only", "--weight_only_precision int8"] if formats.weights == "int8" else []
    if formats.kv_cache == "int8":
        options += ["--int8_kv_cache", *_calibration(profile)]
    return options


def _quantized(profile: Profile) -> list[str]:
    """List the formats' options of quantize.py."""
    formats = profile.precision
    options = [f"--qformat {_QFORMATS.get(formats.weights, 'full_prec')}"]
    if formats.weights == "int4_awq":
        options.append("--awq_block_size 128")
    if formats.kv_cache in {"int8", "fp8"}:
        options.append(f"--kv_cache_dtype {formats.kv_cache}")
    return options + _calibration(profile)


def _calibration(profile: Profile) -> list[str]:
    """Name the folder of the data set; without it both scripts load one from the hub."""
    folder = profile.precision.calibration
    return [] if folder is None else [f"--calib_dataset {folder}"]


def build_options(profile: Profile) -> list[str]:
    """List the options of trtllm-build, without --output_dir."""
    engine = profile.engine
    options = [
        f"--checkpoint_dir {values.checkpoint_dir(profile)}",
        "--gpt_attention_plugin auto",
        "--gemm_plugin auto",
        "--kv_cache_type paged",
        f"--tokens_per_block {engine.tokens_per_block}",
        f"--max_batch_size {engine.max_batch_size}",
        f"--max_input_len {engine.max_input_len}",
        f"--max_seq_len {engine.max_seq_len}",
        f"--max_num_tokens {engine.max_num_tokens}",
        f"--use_paged_context_fmha {'enable' if engine.paged_context_fmha else 'disable'}",
        "--multiple_profiles enable",
    ]
    if profile.gpu.count > 1:
        options.append(f"--workers {profile.gpu.per_node}")
    if profile.precision.weights == profile.precision.kv_cache == "fp8":
        options.append("--use_fp8_context_fmha enable")
    if profile.speculative is not None:
        options.append("--speculative_decoding_mode draft_tokens_external")
        options.append(f"--max_draft_len {profile.speculative.max_draft_len}")
    return options


def server_flags(profile: Profile) -> list[str]:
    """List the flags of tritonserver, the same for every rank.

    NVIDIA starts the C++ backend without auto-complete; llmapi completes its configuration from model.yaml.
    """
    is_complete = ["--disable-auto-complete-config"] if profile.image.flow == "build" else []
    return [f"--model-repository={values.REPOSITORY}", *is_complete, *KEEPALIVE]


def engine_settings(profile: Profile) -> dict[str, str]:
    """Build the settings of the engine that every process of Longbatch needs.

    Of an engine that was built, slots, blocks and tokens per block are not among them: the worker reads them
    from the running engine, which may have made its pool smaller than configured. llmapi has no gauges.
    """
    engine = profile.engine
    told = {
        "LONGBATCH_ENGINE__MAX_BATCH_SIZE": str(engine.max_batch_size),
        "LONGBATCH_ENGINE__MAX_BLOCKS": str(engine.kv_cache_tokens // engine.tokens_per_block),
        "LONGBATCH_ENGINE__TOKENS_PER_BLOCK": str(engine.tokens_per_block),
    }
    constant = plan.blocks_per_sequence(profile) if plan.kv_bytes_per_token(profile) else 0
    told = told if profile.image.flow == "llmapi" else {}
    if constant:
        told["LONGBATCH_ENGINE__BLOCKS_PER_SEQUENCE"] = str(constant)
    return told | {
        "LONGBATCH_ENGINE__NAME": profile.name,
        "LONGBATCH_ENGINE__MODEL": profile.model.served_name,
        "LONGBATCH_ENGINE__MAX_INPUT_LEN": str(profile.engine.max_input_len),
        "LONGBATCH_ENGINE__MAX_SEQ_LEN": str(profile.engine.max_seq_len),
        "LONGBATCH_ENGINE__REUSES_PREFIX": str(profile.engine.kv_cache_reuse).lower(),
        "LONGBATCH_ENGINE__TIME_SCALE": f"{time_scale(profile):g}",
        "LONGBATCH_TRITON__MODEL_NAME": profile.model.triton_name,
    }


def time_scale(profile: Profile) -> float:
    """Compute how much faster than one A6000 the engine answers one job, at least 1.

    Takes the lower of prefill and decode speed, rounded down to a tenth. Stages of a pipeline do not help.
    """
    gpu, count = profile.hardware, profile.gpu.tensor
    reading = gpu.flops * gpu.reached_flops * count / (_REFERENCE.flops * _REFERENCE.reached_flops)
    writing = gpu.bandwidth * gpu.reached_bandwidth * count
    writing /= _REFERENCE.bandwidth * _REFERENCE.reached_bandwidth
    return max(1.0, int(min(reading, writing) * 10) / 10)
