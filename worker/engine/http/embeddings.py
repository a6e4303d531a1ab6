"""Embeddings of servers with OpenAI's `/v1/embeddings`: token ids in, a vector out.

Source: OpenAI's API reference for embeddings; llama.cpp's server of October 2026; vLLM's and SGLang's routes.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from http import HTTPStatus
from typing import Any, Final

from jobs.embeddings import vectors
from jobs.prompts.abilities import EMBEDDINGS
from worker.engine.abilities import Abilities
from worker.engine.deltas import VectorDelta
from worker.engine.http.call import Event, HttpEnd
from worker.engine.http.server import HttpServer
from worker.engine.request import Request

PATH: Final = "/v1/embeddings"
# What a server says that embeds, as soon as it is asked right.
_ASK_RIGHT: Final = frozenset({HTTPStatus.BAD_REQUEST, HTTPStatus.UNPROCESSABLE_ENTITY})
# llama.cpp that computes vectors of tokens alone says so.
_OF_TOKENS: Final = "pooling type"


@dataclass(frozen=True, slots=True)
class Embeddings:
    """The dialect of one request for the vector of its prompt."""

    model_name: str
    request: Request

    path = PATH
    refuses_reliably = True
    reports_own_end = True

    def body(self) -> Mapping[str, Any]:
        """Build the body. As base64 a vector takes a quarter of the bytes."""
        ids = self.request.ids.tolist()
        return {"model": self.model_name, "input": [ids], "encoding_format": "base64"}

    def read(self, event: Mapping[str, Any]) -> list[Event]:
        """Read the vector; some servers write numbers whatever they are asked for."""
        [only] = event["data"]
        given = only["embedding"]
        packed = vectors.pack_base64(given) if isinstance(given, str) else vectors.pack(given)
        return [VectorDelta(packed), HttpEnd()]

    def stop(self) -> None:
        """Return None: only cutting the connection ends the request."""


async def embedding(server: HttpServer, abilities: Abilities) -> Abilities:
    """Add embeddings to the abilities if the server computes them; asked without an input, it computes none.

    A server without them does not know the path, or says that it does not.
    """
    status, said = await server.refusal_of(PATH, {})
    if status not in _ASK_RIGHT or _OF_TOKENS in said.lower():
        return abilities
    return replace(abilities, lacks=abilities.lacks - {EMBEDDINGS})
