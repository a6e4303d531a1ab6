"""`python -m bench.gpu.offline`: transformers' own continuous batching over a list, without a server.

It does what `generate_batch` does (all requests at once, in order, results as they end), plus the one thing
that the list needs and `generate_batch` lacks: a limit for each request.
"""

import argparse
import importlib
import json
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any

from bench.peers import manifest
from cli.stack.servers.transformers_options import TransformersOptions

_MODULES = Path(__file__).resolve().parents[2] / "triton" / "transformers" / "tensorrt_llm" / "1"


def main() -> None:
    """Generate the whole list, and print a JSON report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("options", help="JSON: the engine's options")
    parser.add_argument("manifest", type=Path)
    asked = parser.parse_args()
    values = json.loads(asked.options)
    options = TransformersOptions(**values | {"model_dir": Path(values["model_dir"])})
    prompts = [(item.load().tolist(), item.limit) for item in manifest.read(asked.manifest)]
    manager = _manager(options)
    manager.start()
    sizes = sorted((ids for ids, _ in prompts), key=len)
    # Warm up like the server, backwards for the same reason; the first builds the cache.
    _run(manager, [(sizes[0][::-1], 8), (sizes[-1][::-1], 8)])
    _module("steps").StepTrace.of_environment(manager.batch_processor)
    began = time.monotonic()
    tokens = _run(manager, prompts)
    json.dump({"began": began, "ended": time.monotonic(), "tokens": tokens}, sys.stdout)
    manager.stop(block=True, timeout=10, hard_stop=True)


def _manager(options: TransformersOptions) -> Any:  # noqa: ANN401  transformers' manager
    """Set up a manager like the engine's, with our pool and transformers' admission."""
    generator, parameters = _module("generator"), _module("parameters")
    given = parameters.Parameters(
        options.max_batch_size,
        {
            **options.transformers_parameters(),
            "tokens_per_block": str(options.tokens_per_block),
            "max_tokens_in_paged_kv_cache": str(options.kv_cache_tokens),
            "max_num_tokens": str(options.max_num_tokens),
            "max_seq_len": str(options.max_seq_len),
            "enable_kv_cache_reuse": str(options.kv_cache_reuse),
        },
    )
    model = generator.load_model(given)
    config = generator.batching_config(given, model.config)
    config.num_blocks = options.kv_cache_tokens // options.tokens_per_block
    config.safety_margin = None
    return generator.make_manager(model, given, config)


def _run(manager: Any, prompts: list[tuple[list[int], int]]) -> list[int]:  # noqa: ANN401  see above
    """Generate every answer, and return the tokens of each.

    Raises:
        RuntimeError: a request failed.
    """
    names = [manager.add_request(ids, max_new_tokens=limit, eos_token_id=[-1]) for ids, limit in prompts]
    tokens: dict[str, int] = {}
    while len(tokens) < len(names):
        output = manager.get_result(timeout=1)
        if output is None:
            if not manager.is_running():
                raise RuntimeError("the generation has ended")
            continue
        if output.error is not None:
            raise RuntimeError(output.error)
        if output.is_finished():
            tokens[output.request_id] = len(output.generated_tokens)
    return [tokens[name] for name in names]


def _module(name: str) -> ModuleType:
    """Load a module of the engine as Triton does, from its folder in its own package."""
    package = "transformers_engine_modules"
    if package not in sys.modules:
        made = ModuleType(package)
        made.__path__ = [str(_MODULES)]
        sys.modules[package] = made
        # What Triton's stub provides; nothing here calls it.
        sys.modules.setdefault("triton_python_backend_utils", ModuleType("triton_python_backend_utils"))
    return importlib.import_module(f"{package}.{name}")


if __name__ == "__main__":
    main()
