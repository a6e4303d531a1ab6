"""The stand-in of SGLang sends what SGLang's own server was recorded to send."""

import pytest

from stand_in_engine import standing_in
from standing_in import sglang


@pytest.fixture(scope="module")
def sent() -> dict[str, object]:
    with standing_in("sglang") as server:
        return sglang.sent_by(server.url)


@pytest.mark.parametrize("name", sglang.names())
def test_the_stand_in_sends_what_was_recorded(name: str, sent: dict[str, object]) -> None:
    assert sent[name] == sglang.recorded()[name]
