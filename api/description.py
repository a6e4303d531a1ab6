"""The OpenAPI document: adds bodies that routes read as bytes, and removes the framework's 422."""

from typing import Any, Final

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from api.answers.requests import AnswersEstimateRequest, AnswersRequest
from api.batches.requests import BatchRequest, EstimateRequest
from api.completions.requests import GenerateRequest
from api.documents.schemas import DocumentForm
from api.extractions.requests import ExtractionEstimateRequest, ExtractionRequest
from api.files.requests import UploadForm
from api.http.halts import HaltRequest, ResumeRequest
from api.http.openapi import REF, failure
from api.http.replies import ErrorReply
from api.http.scopes import METRICS, OPEN
from api.jobs.requests import CancelRequest, JobRequest
from api.summaries.requests import SummaryEstimateRequest, SummaryRequest
from api.tenants.admin_schemas import KeyRequest, KeyUpdate, TenantRequest, TenantUpdate
from api.webhooks.schemas import EndpointRequest, EndpointUpdate
from jobs.embeddings.requests import EmbeddingsRequest
from jobs.prompts.openai import ChatRequest, TextRequest
from jobs.responses.requests import ResponseRequest

_SCHEME: Final = "key"
# How authentication, in front of all routes, can end a request.
_AUTH_STATUSES: Final = (401, 403, 429, 503)
_BODIES: Final[tuple[type[BaseModel], ...]] = (
    JobRequest,
    CancelRequest,
    UploadForm,
    DocumentForm,
    BatchRequest,
    EstimateRequest,
    ChatRequest,
    TextRequest,
    ResponseRequest,
    EmbeddingsRequest,
    GenerateRequest,
    EndpointRequest,
    EndpointUpdate,
    HaltRequest,
    ResumeRequest,
    TenantRequest,
    TenantUpdate,
    KeyUpdate,
    KeyRequest,
    SummaryRequest,
    SummaryEstimateRequest,
    AnswersRequest,
    AnswersEstimateRequest,
    ExtractionRequest,
    ExtractionEstimateRequest,
    ErrorReply,
)


def describe(app: FastAPI) -> dict[str, Any]:
    """Describe the application as an OpenAPI document, made once."""
    if app.openapi_schema is None:
        document = get_openapi(
            title=app.title, version=app.version, description=app.description, routes=app.routes
        )
        schemas = document["components"]["schemas"]
        _, definitions = models_json_schema([(model, "validation") for model in _BODIES], ref_template=REF)
        schemas |= definitions["$defs"]
        for unused in ("HTTPValidationError", "ValidationError"):
            schemas.pop(unused, None)
        document["components"]["securitySchemes"] = {_SCHEME: {"type": "http", "scheme": "bearer"}}
        for path, operations in document["paths"].items():
            for operation in operations.values():
                operation["responses"].pop("422", None)
                if path not in OPEN:
                    _add_key(operation)
                if path == METRICS:
                    operation["security"].append({})  # requests from the same host need no key
        app.openapi_schema = document
    return app.openapi_schema


def _add_key(operation: dict[str, Any]) -> None:
    """Document that the operation needs a key, and how authentication can fail."""
    operation["security"] = [{_SCHEME: []}]
    for status in _AUTH_STATUSES:
        operation["responses"].setdefault(str(status), failure(status))
    operation["responses"] = dict(sorted(operation["responses"].items()))
