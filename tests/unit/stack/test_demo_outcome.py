"""What the demo prints at its end."""

from pathlib import Path

import pytest
from rich.console import Console

from cli.demo.run import DemoSetting, Row, print_outcome
from cli.stack.servers.llama_options import LlamaOptions
from longbatch.documents.sources import SourceFile

SETTING = DemoSetting(
    engine=LlamaOptions(gguf=Path("model.gguf")),
    context_tokens=10,
    options={},
    write=lambda _folder: None,
    engine_note="The engine was llama.cpp with a[/b].",
    servers="",
)


def shown(environment: dict[str, str]) -> str:
    console = Console(width=200, record=True, quiet=False)
    source = SourceFile(Path("/long[/x].txt"), "long[/x].txt", Path("long[/x].txt"))
    summary = {
        "state": "completed",
        "created_at": "2026-01-01T00:00:00Z",
        "finalized_at": "2026-01-01T00:00:02Z",
        "usage": {"completion_tokens": 5},
        "summary": "Short.",
        "chunks": [1, 2],
        "progress": {"jobs": 3},
        "levels": 2,
    }
    print_outcome(console, [Row(source, summary, 20, None, "")], SETTING, environment)
    return console.export_text()


def test_names_with_square_brackets_are_printed_as_they_are() -> None:
    text = shown({})
    assert "long[/x].txt is longer than the context" in text
    assert "The engine was llama.cpp with a[/b]." in text


@pytest.mark.parametrize("name", ["LONGBATCH_ENGINE__URL", "LONGBATCH_TRITON__URL"])
def test_an_engine_of_the_users_own_is_not_called_a_stand_in(name: str) -> None:
    text = shown({name: "grpc://gpu:8001"})
    assert "The engine was yours, at grpc://gpu:8001." in text
    assert "llama.cpp" not in text
