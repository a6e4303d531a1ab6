"""Settings of work: jobs, files, batches, documents, and the loops that see to them."""

import re
from typing import Final, Literal, Self
from urllib.parse import urlsplit

from pydantic import Field, SecretStr, field_validator, model_validator

from jobs.settings.group import Group


class JobSettings(Group):
    """How jobs live, retry and die."""

    max_attempts: int = Field(default=3, ge=1, le=20)
    retry_backoff_seconds: float = Field(default=2, gt=0, description="doubles with every attempt")
    max_rescues: int = Field(default=2, ge=1, description="a job that lost this many workers is suspect")
    lease_seconds: float = Field(default=60, gt=0)
    renew_seconds: float = Field(default=15, gt=0)
    stop_poll_seconds: float = Field(default=0.5, gt=0)
    claim_poll_seconds: float = Field(
        default=1, gt=0, description="how often a worker polls without a doorbell"
    )
    checkpoint_seconds: float = Field(
        default=5, gt=0, description="a lost worker costs a job at most this much of its output"
    )
    shutdown_grace_seconds: float = Field(
        default=5, ge=0, description="for running jobs to finish by themselves"
    )
    drain_seconds: float = Field(
        default=60, gt=0, description="after this, a successful canary ends a draining reservation"
    )
    retention_days: float = Field(default=30, gt=0, description="prune terminal jobs after this")
    audit_retention_days: float = Field(default=365, gt=0, description="prune the audit log after this")
    idempotency_hours: float = Field(default=24, gt=0)
    max_engine_output_bytes: int = Field(
        default=64 * 2**20,
        ge=1024,
        description="of the tensors that a job gets by `engine_outputs`, together",
    )
    share_equal: bool = Field(default=False, description="equal requests run once, unless they say otherwise")

    @model_validator(mode="after")
    def _lease_outlives_renewals(self) -> Self:
        if self.lease_seconds < 3 * self.renew_seconds:
            raise ValueError("jobs.lease_seconds must be at least three times jobs.renew_seconds")
        return self


class FileSettings(Group):
    """Uploaded files and the results of batches."""

    directory: str | None = Field(
        default=None,
        description="keep their bytes here; API and service workers must share it, inference workers if jobs"
        " pass files to engines. None: in Postgres",
    )
    url: str | None = Field(
        default=None, description="s3://bucket/prefix instead; keys, endpoint from AWS_…; needs the extra s3"
    )
    max_bytes: int = Field(default=200 * 2**20, ge=1024, description="size of one upload; above it: 413")
    retention_days: float = Field(default=30, gt=0, description="lifetime of files that set none")

    @model_validator(mode="after")
    def _one_place(self) -> Self:
        if self.directory is not None and self.url is not None:
            raise ValueError("set one of files.directory and files.url, not both")
        return self


class BatchSettings(Group):
    """OpenAI-compatible batches."""

    max_lines: int = Field(default=50_000, ge=1, le=1_000_000)
    default_max_tokens: int = Field(
        default=4096, ge=1, le=131_072, description="for a line that sets no limit"
    )
    retention_days: float = Field(default=30, gt=0, description="prune finished batches after this")


# Kinds of documents with more to read than characters.
ExtractorFormat = Literal[
    "html",
    "pdf",
    "docx",
    "pptx",
    "xlsx",
    "epub",
    "eml",
    "msg",
    "odt",
    "ods",
    "odp",
    "rtf",
    "xls",
    "png",
    "jpg",
    "tiff",
]


class DocumentSettings(Group):
    """Documents, and the process that extracts the text of each."""

    max_bytes: int = Field(default=100 * 2**20, ge=1024, description="size of one upload; above it: 413")
    max_pages: int = Field(default=5000, ge=1, le=100_000)
    max_characters: int = Field(default=20_000_000, ge=1, le=200_000_000, description="of extracted text")
    extraction_seconds: float = Field(default=120, gt=0, description="wall-clock time for one document")
    extraction_memory_mb: int = Field(
        default=1024, ge=256, description="address space of the process that reads one document"
    )
    ocr_max_pages: int = Field(
        default=200, ge=0, le=100_000, description="pages of one document that OCR reads; 0 switches OCR off"
    )
    ocr_seconds: float = Field(
        default=900,
        gt=0,
        description="for OCR of one document, beyond extraction_seconds",
    )
    ocr_memory_mb: int = Field(
        default=1280, ge=1024, description="private memory of the process while it reads pages by OCR"
    )
    ocr_max_megapixels: float = Field(default=60, gt=0, le=1000, description="of one picture")
    ocr_tesseract: str = Field(
        default="",
        pattern=r"^([A-Za-z0-9_]+(\+[A-Za-z0-9_]+)*)?$",
        max_length=100,
        description="languages of an installed tesseract, as rus+ara, for pages in other scripts",
    )
    extractor_url: str | None = Field(
        default=None,
        pattern=r"^https?://[^/\s@?#]+(/[^\s?#]*)?$",
        description="http(s)://host:port of an external extractor of documents; None: none",
    )
    extractor_kind: Literal["docling", "open-webui"] = Field(
        default="docling",
        description="its contract: docling-serve's, or that of Open WebUI's external document loaders",
    )
    extractor_key_file: str | None = Field(
        default=None, min_length=1, description="file with the key that it wants; None: it wants none"
    )
    extractor_formats: tuple[ExtractorFormat, ...] = Field(
        default=("pdf", "docx", "pptx", "png", "jpg", "tiff"),
        min_length=1,
        description="kinds of documents that it reads; we read the others",
    )
    extractor_seconds: float = Field(
        default=300, gt=0, le=86_400, description="for one document, from the connection to the whole answer"
    )
    extractor_reply_mb: int = Field(default=64, ge=1, le=1024, description="of one answer, which is JSON")
    extractor_concurrency: int = Field(
        default=2, ge=1, le=64, description="documents at once that it reads, per service worker"
    )
    concurrency: int = Field(default=2, ge=1, le=64, description="documents at once, per service worker")
    lease_seconds: float = Field(
        default=30, ge=3, description="then another worker takes over a lost worker's documents"
    )
    retention_days: float = Field(default=30, gt=0, description="prune finished documents after this")


class MetricsSettings(Group):
    """Where a worker process answers Prometheus; the API does so on its own port."""

    host: str = Field(default="127.0.0.1")
    port: int | None = Field(
        default=None,
        ge=0,
        le=65535,
        description="of GET /metrics; each worker process of a machine needs its own. 0: any free one, named"
        " in the log. None: no metrics",
    )


class TraceSettings(Group):
    """Spans of jobs for a collector of OpenTelemetry (OTLP over HTTP). Without an endpoint there are none."""

    endpoint: str | None = Field(
        default=None,
        pattern=r"^https?://[^/@\s]+(/[^@\s]*)?$",
        description="http(s)://host:port of the collector, or its whole URL; the API and service workers need"
        " it. None: no traces",
    )
    headers: SecretStr | None = Field(
        default=None, description="what the collector wants besides: name=value,name=value"
    )
    ratio: float = Field(
        default=1, ge=0, le=1, description="share of the traces that begin here which are kept"
    )
    follow_callers: bool = Field(
        default=True,
        description="keep the trace of a request whose `traceparent` says so, and no other that has one;"
        " false: the ratio decides",
    )
    max_jobs: int = Field(
        default=100,
        ge=1,
        le=10_000,
        description="jobs of one request, batch or tree in its trace; of more, so many that spread evenly",
    )
    timeout_seconds: float = Field(default=10, gt=0, le=60, description="for one request to the collector")

    @property
    def url(self) -> str | None:
        """Where spans are sent."""
        if self.endpoint is None or urlsplit(self.endpoint).path not in {"", "/"}:
            return self.endpoint
        return f"{self.endpoint.rstrip('/')}/v1/traces"

    @property
    def header_fields(self) -> dict[str, str]:
        """The headers by their names."""
        given = self.headers.get_secret_value() if self.headers else ""
        pairs = (each.partition("=") for each in given.split(",") if each.strip())
        return {name.strip().lower(): value.strip() for name, _, value in pairs}

    @field_validator("headers")
    @classmethod
    def _are_pairs(cls, headers: SecretStr | None) -> SecretStr | None:
        text = headers.get_secret_value() if headers else ""
        if not all(_HEADER.fullmatch(each.strip()) for each in text.split(",") if each.strip()):
            raise ValueError("write headers as name=value,name=value, in printable ASCII")
        return headers


# A name as HTTP has it, and a value without a comma.
_HEADER: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+=[\x20-\x2b\x2d-\x7e]*")


class MaintenanceSettings(Group):
    """The loops of the service worker."""

    prepare_seconds: float = Field(default=0.5, gt=0)
    rescue_seconds: float = Field(default=5, gt=0)
    expire_seconds: float = Field(default=5, gt=0)
    doorbell_seconds: float = Field(default=5, gt=0)
    deliver_seconds: float = Field(default=0.5, gt=0)
    prune_seconds: float = Field(default=300, gt=0)
    document_seconds: float = Field(
        default=1, gt=0, description="how often a worker polls for documents without a doorbell"
    )
    batch_seconds: float = Field(
        default=0.5, gt=0, description="how stale request_counts and result files may be"
    )
    trace_seconds: float = Field(
        default=1, gt=0, description="how often to write the traces of what has ended"
    )
    summary_seconds: float = Field(
        default=0.5, gt=0, description="how often to plan summaries whose documents are ready"
    )
    lease_seconds: float = Field(
        default=30, ge=3, description="then others take over a lost worker's prompts, summaries and batches"
    )
    keep_usage_of_deleted: bool = Field(
        default=False,
        description="add a deleted tenant's usage to that of all deleted ones, without its name",
    )
