"""Local engines on real Triton servers, started once and only when a test asks for them."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from cli.stack.servers.engine_options import EngineOptions
from jobs.prompts.tokenizer import Tokenizer as ServedTokenizer
from jobs.prompts.tokenizer_files import ensure_default_tokenizer
from local_engine import RunningEngine, running_engine

PromptOf = Callable[[str], list[int]]


@pytest.fixture(scope="session")
def tokenizer_dir() -> Path:
    return ensure_default_tokenizer()


@pytest.fixture(scope="session")
def tokenizer(tokenizer_dir: Path) -> Tokenizer:
    return Tokenizer.from_file(str(tokenizer_dir / "tokenizer.json"))


@pytest.fixture(scope="session")
def served_tokenizer(tokenizer_dir: Path) -> ServedTokenizer:
    """The same tokenizer as the product uses it."""
    return ServedTokenizer.load(str(tokenizer_dir))


@pytest.fixture(scope="session")
def prompt_of(tokenizer: Tokenizer) -> PromptOf:
    """The ids of a chat prompt that asks for a summary of a document."""

    def ids(document: str) -> list[int]:
        text = (
            "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nSummarize the document.<|eot_id|>"
            f"<|start_header_id|>user<|end_header_id|>\n\n<document>\n{document}\n</document><|eot_id|>"
            "<|start_header_id|>assistant<|end_header_id|>\n\n"
        )
        return list(tokenizer.encode(text, add_special_tokens=False).ids)

    return ids


@pytest.fixture(scope="session")
def summarizer(tmp_path_factory: pytest.TempPathFactory, tokenizer_dir: Path) -> Iterator[RunningEngine]:
    """An engine that summarizes, 50 times as fast as an A6000; nothing runs on it when a test begins."""
    options = EngineOptions(tokenizer_dir=tokenizer_dir, time_scale=50, tokens_per_response=1)
    with running_engine(tmp_path_factory.mktemp("summarizer"), options) as engine:
        yield engine


@pytest.fixture(scope="session")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningEngine]:
    """An engine that says as many tokens as it may, 5 times as fast as an A6000."""
    options = EngineOptions(mode="synthetic", time_scale=5)
    with running_engine(tmp_path_factory.mktemp("loaded"), options) as engine:
        yield engine
