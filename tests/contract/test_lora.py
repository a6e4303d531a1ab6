"""Adapters on the local engine behind a real Triton server: weights are sent where they are missed alone."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from cli.stack.ports import LOOPBACK
from entry_points import ask
from jobs.adapters.files import check
from jobs.errors import EngineUnableError
from jobs.prompts.tokenizer import TokenIds, Tokenizer
from jobs.settings import EngineSettings, TritonSettings
from local_engine import RunningEngine
from weights.adapters import write_gguf_adapter, write_peft_adapter
from worker.engine.client import EngineClient
from worker.engine.engine import ServedModel
from worker.engine.request import WantedAdapter
from worker.inference.answer import Answer
from worker.inference.outcome import Finished

ARTICLE = (
    "The harbour of Oslo froze in January. Ferries stopped for three weeks. Nobody had seen that before."
)


@pytest.fixture
def model(summarizer: RunningEngine, served_tokenizer: Tokenizer) -> Iterator[ServedModel]:
    url = f"{LOOPBACK}:{summarizer.launch.grpc_port}"
    client = EngineClient(TritonSettings(url=url), EngineSettings(), end_id=served_tokenizer.end_id)
    yield client.served()
    client.close()


@pytest.fixture(scope="module")
def adapters(tmp_path_factory: pytest.TempPathFactory) -> Sequence[WantedAdapter]:
    """One more than the engine keeps."""
    home = tmp_path_factory.mktemp("adapters")
    paths = [write_peft_adapter(home / str(seed), seed=seed, layers=1 + seed) for seed in range(3)]
    return [
        WantedAdapter(path.name, 100 + number, "peft", str(path), check(path).sha256)
        for number, path in enumerate(paths)
    ]


@pytest.fixture
def said(
    model: ServedModel, served_tokenizer: Tokenizer, prompt_of: Callable[[str], list[int]]
) -> Callable[..., list[int]]:
    prompt: TokenIds = np.array(prompt_of(ARTICLE), dtype=np.int32)

    def say(adapter: WantedAdapter | None) -> list[int]:
        run = ask(model, served_tokenizer, prompt, max_tokens=30, adapter=adapter)
        assert isinstance(run.follow(), Finished)
        assert isinstance(run.answer, Answer)
        return [*run.answer.ids]

    return say


def test_each_adapter_answers_in_its_own_way_whether_or_not_it_is_cached(
    said: Callable[..., list[int]], adapters: Sequence[WantedAdapter]
) -> None:
    first = {adapter and adapter.name: said(adapter) for adapter in (None, *adapters)}
    assert len({tuple(ids) for ids in first.values()}) == len(first)
    # All are asked for again: some of the engine's cache, some evicted meanwhile.
    again = {adapter and adapter.name: said(adapter) for adapter in (*reversed(adapters), None)}
    assert again == first


def test_weights_are_read_only_where_the_engine_misses_them(
    said: Callable[..., list[int]], adapters: Sequence[WantedAdapter], tmp_path: Path
) -> None:
    before = said(adapters[0])
    moved = replace(adapters[0], source=str(tmp_path))
    assert said(moved) == before, "the engine has it"
    for other in adapters[1:]:
        said(other)
    with pytest.raises(AssertionError):
        said(moved)
    assert said(adapters[0]) == before


def test_what_cannot_be_sent_fails_once_and_for_all(
    model: ServedModel,
    served_tokenizer: Tokenizer,
    prompt_of: Callable[[str], list[int]],
    adapters: Sequence[WantedAdapter],
    tmp_path: Path,
) -> None:
    prompt: TokenIds = np.array(prompt_of(ARTICLE), dtype=np.int32)
    absent = replace(adapters[0], number=7, source=str(tmp_path))
    changed = replace(adapters[0], number=8, sha256=b"")
    for adapter, message in ((absent, "Cannot read"), (changed, "have changed")):
        error = ask(model, served_tokenizer, prompt, adapter=adapter).error()
        assert isinstance(error, EngineUnableError)
        assert message in error.message
        assert not error.retryable
    file = write_gguf_adapter(tmp_path / "a.gguf")
    with pytest.raises(EngineUnableError, match="GGUF"):
        ask(model, served_tokenizer, prompt, adapter=WantedAdapter("a", 9, "gguf", str(file), b""))
