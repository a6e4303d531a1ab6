"""The models that a server lists at `/v1/models`, as all OpenAI-compatible servers do."""

from dataclasses import dataclass, replace
from typing import Any, Final

from jobs.errors import EngineError, EngineUnavailableError
from jobs.prompts.abilities import LORA
from jobs.settings import EngineSettings
from worker.engine.abilities import Abilities
from worker.engine.http.server import HttpServer

PATH: Final = "/v1/models"


@dataclass(frozen=True, slots=True)
class ModelCard:
    """One model of the list.

    Attributes:
        name: what requests call it.
        owner: the kind of server, as it writes it; empty if it does not.
        context: most tokens of one sequence; None if it does not tell.
        root: the model behind this alias; empty if the server does not list it.
    """

    name: str
    owner: str
    context: int | None
    root: str = ""


async def model_card(server: HttpServer, settings: EngineSettings) -> ModelCard:
    """Read the card of the model that the settings name, or of the only one.

    Raises:
        EngineUnavailableError: the server cannot be reached, or lists no such model yet.
        EngineError: it lists several base models, and the settings name none.
    """
    cards = base_cards(await server.read(PATH))
    wanted = settings.served_model
    if wanted is not None:
        cards = [each for each in cards if each.name == wanted]
    if not cards:
        raise EngineUnavailableError(f"the server has no model {wanted}" if wanted else "it lists no model")
    if len(cards) > 1:
        names = ", ".join(each.name for each in cards)
        raise EngineError(
            f"the server has several models: set LONGBATCH_ENGINE__SERVED_MODEL to one of {names}"
        )
    return cards[0]


def base_cards(found: Any) -> list[ModelCard]:  # noqa: ANN401  # JSON of a foreign server
    """Return the cards of a list's base models; one with a parent is a LoRA adapter."""
    return [_card(each) for each in _listed(found) if not each.get("parent")]


async def adapter_names(server: HttpServer) -> tuple[str, ...]:
    """Read the names of the adapters that the server lists beside its base models."""
    return tuple(str(each["id"]) for each in _listed(await server.read(PATH)) if each.get("parent"))


def held(abilities: Abilities, adapters: tuple[str, ...]) -> Abilities:
    """Return the abilities of a server that was started with these adapters, and takes no others."""
    if not adapters:
        return abilities
    return replace(abilities, lacks=abilities.lacks - {LORA}, adapters=adapters)


def _listed(found: Any) -> list[dict[str, Any]]:  # noqa: ANN401  # JSON of a foreign server
    data = found.get("data") if isinstance(found, dict) else None
    return (
        [each for each in data if isinstance(each, dict) and each.get("id")] if isinstance(data, list) else []
    )


def _card(listed: dict[str, Any]) -> ModelCard:
    context = listed.get("max_model_len")
    if context is None and isinstance(listed.get("meta"), dict):
        context = listed["meta"].get("n_ctx")
    return ModelCard(
        name=str(listed["id"]),
        owner=str(listed.get("owned_by") or ""),
        context=context if isinstance(context, int) and context > 0 else None,
        root=str(listed.get("root") or ""),
    )
