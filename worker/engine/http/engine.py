"""An engine over HTTP: one class for every kind, which a frozen description tells apart."""

from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final, TypeVar

from jobs.diagnostics import Finding
from jobs.engines.capacity import Capacity
from jobs.errors import EngineError, EngineUnavailableError
from jobs.prompts.abilities import DIMENSIONS, EMBEDDINGS
from jobs.settings import EngineSettings
from worker.engine.abilities import Abilities
from worker.engine.engine import ServedModel
from worker.engine.gauges import Gauges
from worker.engine.http.call import Dialect, HttpCall
from worker.engine.http.capacity import ReportedSizes, capacity_of
from worker.engine.http.embeddings import Embeddings
from worker.engine.http.models import PATH, ModelCard, model_card
from worker.engine.http.server import HttpServer
from worker.engine.request import Request
from worker.engine.storable import storable

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Encoding:
    """How a server encodes a text at `/tokenize`.

    Attributes:
        text_field: the field of the text.
        options: what keeps the server from adding tokens.
    """

    text_field: str
    options: Mapping[str, bool]


async def _no_gauges(_server: HttpServer, _overrides: EngineSettings) -> None:
    """Return None: the server shows none."""


async def _declared(_server: HttpServer, abilities: Abilities) -> Abilities:
    """Return the kind's abilities: the server tells of none that differs."""
    return abilities


async def _no_notes(_server: HttpServer, _settings: EngineSettings) -> list[Finding]:
    """Return none: no option of the server is known to cost users something."""
    return []


async def _shown(_server: HttpServer, _overrides: EngineSettings, gauges: Gauges) -> ReportedSizes:
    """Take everything from the gauges."""
    return ReportedSizes(
        slots=gauges.max_requests,
        blocks=gauges.max_blocks,
        tokens_per_block=gauges.tokens_per_block,
        blocks_per_sequence=gauges.blocks_per_sequence or 0,
        counts_waiting=gauges.waiting_requests is not None and gauges.num_ranks == 1,
    )


@dataclass(frozen=True, slots=True)
class HttpKind:
    """What is particular to one kind of HTTP engine.

    Attributes:
        name: what `LONGBATCH_ENGINE__KIND` calls it.
        owner: what it writes as the owner of its models; empty if that does not tell the kind.
        words: what its abilities mean, in words.
        abilities: what it can do.
        dialect: makes the dialect of a request to the model of this name.
        hint: where an operator finds the capacity that it does not report.
        constant_hint: how an operator finds the blocks that every sequence takes besides those of its text,
            where these are blocks of the pool and the server does not report them; empty: they are not.
        ready_path: answers with success once the server can serve.
        card: reads the model's name and context length.
        gauges: reads its gauges; None if it shows none.
        sizes: reads its capacity, given its gauges; a context of 0 means that of the card.
        encoding: how it encodes a text; None if it does not show it.
        able: corrects the kind's abilities by what the server tells of itself.
        notes: reports options of the server that cost users something, for an inspection.
    """

    name: str
    owner: str
    words: str
    abilities: Abilities
    dialect: Callable[[str, Request], Dialect]
    hint: str
    constant_hint: str = ""
    ready_path: str = "/health"
    card: Callable[[HttpServer, EngineSettings], Awaitable[ModelCard]] = field(default=model_card)
    gauges: Callable[[HttpServer, EngineSettings], Awaitable[Gauges | None]] = field(default=_no_gauges)
    sizes: Callable[[HttpServer, EngineSettings, Gauges], Awaitable[ReportedSizes]] = field(default=_shown)
    encoding: Encoding | None = None
    able: Callable[[HttpServer, Abilities], Awaitable[Abilities]] = field(default=_declared)
    notes: Callable[[HttpServer, EngineSettings], Coroutine[None, None, list[Finding]]] = field(
        default=_no_notes
    )


class HttpEngine:
    """An `EngineServer` over HTTP, of the kind that the settings name or its server tells.

    Connections live as long as a read.
    """

    def __init__(
        self, server: HttpServer, settings: EngineSettings, *, kinds: Mapping[str, HttpKind]
    ) -> None:
        """Args: settings: the kind, and overrides of what the server reports. kinds: all kinds, by name."""
        self._server = server
        self._settings = settings
        self._kinds: Final = kinds
        self._kind = kinds.get(settings.kind)

    async def is_ready(self) -> bool:
        """Return True if the server can serve; until its kind is known, if it lists its models."""
        return await self._server.is_answering(self._kind.ready_path if self._kind else PATH)

    async def model(self) -> ServedModel:
        """Find the kind and read the model's name. Another kind may serve the URL since the last time."""
        if self._settings.kind == "auto":
            self._kind = await self._told_kind()
        kind = self._known()
        card = await _understood(kind.card(self._server, self._settings))
        return ServedModel(
            kind=kind.name,
            name=card.name,
            root=card.root,
            abilities=await _understood(self._abilities(kind)),
            prepare=partial(HttpCall, self._server, dialect=partial(_dialect_of, kind, card.name)),
        )

    async def gauges(self) -> Gauges | None:
        """Read the engine's gauges. Returns None if there are none."""
        if self._kind is None:
            return None
        try:
            return await _understood(self._kind.gauges(self._server, self._settings))
        except EngineUnavailableError:
            return None

    async def capacity(self, gauges: Gauges) -> Capacity:
        """Combine the settings with what the server reports."""
        kind = self._known()
        sizes = await _understood(kind.sizes(self._server, self._settings, gauges))
        if not sizes.context:
            card = await _understood(kind.card(self._server, self._settings))
            sizes = replace(sizes, context=card.context or 0)
        return capacity_of(self._settings, sizes, hint=kind.hint)

    async def close(self) -> None:
        """Do nothing: connections live as long as a read."""

    async def _told_kind(self) -> HttpKind:
        owner = (await model_card(self._server, self._settings)).owner
        for kind in self._kinds.values():
            if kind.owner and kind.owner == owner:
                return kind
        raise EngineError(
            f"the server does not tell its kind (its model is owned by {owner!r}): set"
            " LONGBATCH_ENGINE__KIND to openai, and the capacity"
        )

    async def _abilities(self, kind: HttpKind) -> Abilities:
        """Read what the server can do; that its vectors may be shortened only the settings tell."""
        found = await kind.able(self._server, kind.abilities)
        is_shortened = self._settings.shortens_vectors and EMBEDDINGS in found.takes
        return replace(found, lacks=found.lacks - {DIMENSIONS}) if is_shortened else found

    def _known(self) -> HttpKind:
        if self._kind is None:
            raise EngineError("the kind of the engine is not known before its model is read")
        return self._kind


def _dialect_of(kind: HttpKind, name: str, request: Request) -> Dialect:
    return Embeddings(name, request) if request.is_embedding else kind.dialect(name, request)


async def _understood(reading: Awaitable[T]) -> T:
    """Wait for what a server tells of itself.

    Raises:
        EngineUnavailableError: it is not of the kind's form, or the server cannot be reached.
    """
    try:
        return await reading
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        said = storable(f"{type(error).__name__}: {error}")
        raise EngineUnavailableError("the server's answer cannot be read", said=said) from error
