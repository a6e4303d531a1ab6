"""The model repository of a local engine: the template of each model, filled in."""

import json
import shutil
from pathlib import Path
from string import Template
from typing import Final, TypeAlias

from cli.stack.servers.engine_options import EngineOptions
from cli.stack.servers.transformers_options import TransformersOptions
from cli.triton_files import TRITON_FILES

Engine: TypeAlias = EngineOptions | TransformersOptions

_ENGINE: Final = "tensorrt_llm"
# In the order of TensorRT-LLM's repository.
_TEXT_MODELS: Final = ("preprocessing", "postprocessing", "ensemble", "tensorrt_llm_bls")
_VLLM: Final = "vllm_model"
_LLMAPI: Final = "llmapi"
# With this module of the engine, every Python model ends when its server does.
_SHARED: Final = "server.py"


def models_of(engine: Engine) -> list[str]:
    """List the models that this engine's server serves."""
    if isinstance(engine, TransformersOptions):
        return [_ENGINE]
    others = [*(_TEXT_MODELS if engine.text_models else ())]
    others += [_VLLM] if engine.vllm_model else []
    others += [_LLMAPI] if engine.llmapi else []
    return [_ENGINE, *others]


def render(engine: Engine, http_port: int, directory: Path) -> None:
    """Write the repository `models` and the engine's config.json over older ones."""
    repository, engine_dir = directory / "models", directory / "engine"
    shutil.rmtree(repository, ignore_errors=True)
    engine_dir.mkdir(parents=True, exist_ok=True)
    (engine_dir / "config.json").write_text(json.dumps(_engine_config(engine), indent=2))
    values = _values(engine, engine_dir) | _own_values(engine, http_port)
    for name in models_of(engine):
        _render_model(TRITON_FILES / _template(engine) / name, repository / name, values)


def _engine_config(engine: Engine) -> dict[str, object]:
    """Build the part of trtllm-build's config.json that clients read."""
    return {
        "version": _template(engine),
        "build_config": {
            "max_batch_size": engine.max_batch_size,
            "max_beam_width": 1,
            "max_input_len": engine.max_input_len,
            "max_seq_len": engine.max_seq_len,
            "max_num_tokens": engine.max_num_tokens,
            "plugin_config": {"paged_kv_cache": True, "tokens_per_block": engine.tokens_per_block},
        },
    }


def _template(engine: Engine) -> str:
    """Return the folder of its models, which is also its version name."""
    return "transformers" if isinstance(engine, TransformersOptions) else "local"


def _render_model(template: Path, into: Path, values: dict[str, object]) -> None:
    code = into / "1"
    code.mkdir(parents=True)
    for source in (template / "1").glob("*.py"):
        shutil.copyfile(source, code / source.name)
    if (code / "model.py").is_file():
        shutil.copyfile(TRITON_FILES / "local" / _ENGINE / "1" / _SHARED, code / _SHARED)
    (into / "config.pbtxt").write_text(Template((template / "config.pbtxt").read_text()).substitute(values))


def _values(engine: Engine, engine_dir: Path) -> dict[str, object]:
    """Build the values that every template needs."""
    return {
        "engine_dir": _quoted(engine_dir.resolve()),
        "max_batch_size": engine.max_batch_size,
        "kv_cache_tokens": engine.kv_cache_tokens,
        "tokens_per_block": engine.tokens_per_block,
        "max_num_tokens": engine.max_num_tokens,
        "max_input_len": engine.max_input_len,
        "max_seq_len": engine.max_seq_len,
        "kv_cache_reuse": str(engine.kv_cache_reuse).lower(),
    }


def _own_values(engine: Engine, http_port: int) -> dict[str, object]:
    """Build the further values that the templates of this engine need."""
    if isinstance(engine, TransformersOptions):
        own = engine.transformers_parameters() | {"transformers_http_port": str(http_port)}
        return {"transformers_parameters": _parameters(own)}
    local = engine.local_parameters() | {"local_http_port": str(http_port)}
    return {
        "tokenizer_dir": _quoted(engine.tokenizer_dir.resolve()) if engine.tokenizer_dir else "",
        "add_special_tokens": str(engine.add_special_tokens),
        "accumulate_tokens": str(engine.accumulate_tokens),
        "llmapi_decoupled": str(engine.llmapi_decoupled).lower(),
        "local_parameters": _parameters(local),
    }


def _parameters(values: dict[str, str]) -> str:
    """Format the lines of config.pbtxt that set these parameters."""
    return "\n".join(
        f"parameters {{ key: {json.dumps(name)} value {{ string_value: {json.dumps(value)} }} }}"
        for name, value in values.items()
    )


def _quoted(path: Path) -> str:
    """Escape the path for a quoted string in a text protobuf."""
    return json.dumps(str(path))[1:-1]
