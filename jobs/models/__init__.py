"""The tables. Importing this package registers all of them."""

from jobs.database.base import Base, JsonObject
from jobs.models.adapter import Address, LoraAdapter
from jobs.models.attempt import Attempt
from jobs.models.audit import AuditEntry
from jobs.models.batch import Batch
from jobs.models.console import ConsoleSession, ConsoleSignInCode
from jobs.models.document import Document, DocumentText
from jobs.models.engine import AccountShard, Engine, Reservation, TenantAccount
from jobs.models.file import File, FilePart
from jobs.models.job import FIT_CLASS, NEED_BOUNDS, NEED_CLASSES, NUM_SIZE_CLASSES, SIZE_BOUNDS, Job
from jobs.models.output import Checkpoint, Result
from jobs.models.prompt import PromptText
from jobs.models.response import StoredResponse
from jobs.models.stray_part import Installation, StrayPart
from jobs.models.summary import DocumentFinding, Summary, SummaryDocument, SummaryNode
from jobs.models.tenant import (
    DEFAULT_TENANT,
    ApiKey,
    IdempotencyKey,
    QuotaAllowance,
    StoredNote,
    StoredTotal,
    Tenant,
    TenantLimit,
    UsageDay,
    UsageEntry,
)
from jobs.models.tensors import EngineOutput, JobTensors
from jobs.models.turn import TenantTurn
from jobs.models.webhook import WebhookEndpoint, WebhookEvent, WebhookSecret
from jobs.models.webhook_delivery import WebhookBreaker, WebhookDelivery, WebhookDestination, WebhookDispatch
from jobs.models.worker import Worker
