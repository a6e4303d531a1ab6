"""A read-only inspection of an engine's server: what it offers and what is wrong, in words."""

from collections.abc import Iterator

from jobs.diagnostics import Finding
from jobs.prompts.tokenizer import Tokenizer
from jobs.settings import EngineSide
from worker.engine.client import EngineClient
from worker.engine.http import probe as http
from worker.engine.kinds import is_triton, triton_of
from worker.engine.triton import probe as triton


def inspect(side: EngineSide, tokenizer: Tokenizer, *, num_ours: int | None = None) -> Iterator[Finding]:
    """Inspect the server over connections of its own; see `probe`."""
    client = EngineClient(side.triton, side.engine, end_id=tokenizer.end_id)
    try:
        yield from probe(side, tokenizer, client, num_ours=num_ours)
    finally:
        client.close()


def probe(
    side: EngineSide, tokenizer: Tokenizer, client: EngineClient, *, num_ours: int | None = None
) -> Iterator[Finding]:
    """Inspect the server, most basic findings first, until nothing more can be found out.

    Args:
        side: what to inspect.
        tokenizer: that counts its prompts.
        client: of the server.
        num_ours: requests that Longbatch has there; None: not known here.
    """
    if is_triton(side.engine):
        found = side.model_copy(update={"triton": triton_of(side.triton, side.engine)})
        yield from triton.probe(found, tokenizer, client, num_ours=num_ours)
    else:
        yield from http.probe(side, tokenizer, client, num_ours=num_ours)
