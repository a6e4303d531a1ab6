"""An engine's model repository: the template of each model, filled in for one engine."""

import json
import shutil
from pathlib import Path
from string import Template
from typing import Final

from cli.stack.engine_options import EngineOptions
from cli.stack.transformers_options import TransformersOptions

_TEMPLATES: Final = Path(__file__).resolve().parents[2] / "triton"
_ENGINE: Final = "tensorrt_llm"
# In the order of TensorRT-LLM's own repository.
_TEXT_MODELS: Final = ("preprocessing", "postprocessing", "ensemble", "tensorrt_llm_bls")
_VLLM: Final = "vllm_model"
# Every Python model ends with its server by this module of the engine's.
_SHARED: Final = "server.py"

Options = EngineOptions | TransformersOptions


def models_of(engine: Options) -> list[str]:
    """The models that this engine's server serves."""
    if isinstance(engine, TransformersOptions):
        return [_ENGINE]
    return [_ENGINE, *(_TEXT_MODELS if engine.text_models else ()), *([_VLLM] if engine.vllm_model else ())]


def render(engine: Options, http_port: int, directory: Path) -> None:
    """`directory` holds the model repository `models` and the engine's config.json; nothing older is left."""
    repository, engine_dir = directory / "models", directory / "engine"
    shutil.rmtree(repository, ignore_errors=True)
    engine_dir.mkdir(parents=True, exist_ok=True)
    (engine_dir / "config.json").write_text(json.dumps(engine.engine_config(), indent=2))
    values = _values(engine, http_port, engine_dir)
    for name in models_of(engine):
        _render_model(_TEMPLATES / engine.folder, name, repository / name, values)


def _render_model(folder: Path, name: str, into: Path, values: dict[str, object]) -> None:
    template = folder / name
    code = into / "1"
    code.mkdir(parents=True)
    for source in (template / "1").glob("*.py"):
        shutil.copyfile(source, code / source.name)
    if (code / "model.py").is_file():
        shutil.copyfile(folder / _ENGINE / "1" / _SHARED, code / _SHARED)
    (into / "config.pbtxt").write_text(Template((template / "config.pbtxt").read_text()).substitute(values))


def _values(engine: Options, http_port: int, engine_dir: Path) -> dict[str, object]:
    """What the templates leave open."""
    values: dict[str, object] = {
        "engine_dir": _quoted(engine_dir.resolve()),
        "max_batch_size": engine.max_batch_size,
        "kv_cache_tokens": engine.kv_cache_tokens,
        "tokens_per_block": engine.tokens_per_block,
        "max_num_tokens": engine.max_num_tokens,
        "max_input_len": engine.max_input_len,
        "max_seq_len": engine.max_seq_len,
        "own_parameters": "\n".join(
            f"parameters {{ key: {json.dumps(name)} value {{ string_value: {json.dumps(value)} }} }}"
            for name, value in engine.own_parameters(http_port).items()
        ),
    }
    if isinstance(engine, EngineOptions):
        values |= {
            "tokenizer_dir": _quoted(engine.tokenizer_dir.resolve()) if engine.tokenizer_dir else "",
            "add_special_tokens": str(engine.add_special_tokens),
            "accumulate_tokens": str(engine.accumulate_tokens),
        }
    return values


def _quoted(path: Path) -> str:
    """The path as it stands between the quotes of a text protobuf."""
    return json.dumps(str(path))[1:-1]
