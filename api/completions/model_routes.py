"""The models that engines serve, in OpenAI's format."""

from datetime import datetime

from fastapi import APIRouter
from fastapi.responses import JSONResponse

from api.completions.replies import ModelListReply, ModelReply
from api.http.dependencies import ServicesDep, TenantDep
from api.http.openapi import responses
from api.runtime.services import Services
from jobs.engines import registry
from jobs.errors import ModelNotFoundError
from jobs.models import JsonObject

router = APIRouter(tags=["models"])


@router.get(
    "/v1/models",
    summary="List models",
    responses=responses(200, ModelListReply, "Every model that an engine serves, then every adapter", 503),
)
async def list_models(services: ServicesDep, tenant_id: TenantDep) -> JSONResponse:  # noqa: ARG001  # needs a key
    """List what a request may name in `model`: models, then their adapters."""
    return JSONResponse({"object": "list", "data": await _models(services)})


@router.get(
    "/v1/models/{model:path}",  # as Hugging Face names models, with a slash
    summary="Get a model",
    responses=responses(200, ModelReply, "The model", 404, 503),
)
async def get_model(model: str, services: ServicesDep, tenant_id: TenantDep) -> JSONResponse:  # noqa: ARG001  # needs a key
    """Get one of the models that engines serve, or one of their adapters."""
    for each in await _models(services):
        if each["id"] == model:
            return JSONResponse(each)
    raise ModelNotFoundError(param="model")


async def _models(services: Services) -> list[JsonObject]:
    """List the models, then the adapters that the caller may name."""
    served = await services.transact(registry.served_models, always=services.settings.engine.model)
    offer = await services.offer()
    models = [_model(name, since) | _counts(services) for name, since in served.items()]
    return models + [
        _model(name, since)
        | _counts(services)
        | {"parent": name.rpartition(":")[0], "root": name.rpartition(":")[0]}
        for name, since in sorted(offer.named.items())
    ]


def _counts(services: Services) -> JsonObject:
    return {"token_counts": services.tokenizer.counts}


def _model(name: str, since: datetime) -> JsonObject:
    return {"id": name, "object": "model", "created": int(since.timestamp()), "owned_by": "longbatch"}
