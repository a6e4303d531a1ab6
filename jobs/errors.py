"""The one tree of errors that callers of the domain can meet."""

from enum import StrEnum
from typing import ClassVar

from longbatch.errors import LongbatchError


class InvalidRequestError(LongbatchError):
    """A field of the request is invalid; correct it and send the request again."""

    code = "invalid_value"


class MalformedJsonError(InvalidRequestError):
    """The request body is not valid JSON."""

    code = "invalid_json"


class MissingFieldError(InvalidRequestError):
    """A required field is missing."""

    code = "missing_field"


class UnknownFieldError(InvalidRequestError):
    """The request has a field that this server does not recognize."""

    code = "unknown_field"


class UnsupportedParameterError(InvalidRequestError):
    """The request has a parameter that this server does not support."""

    code = "unsupported_parameter"


class ModelNotFoundError(LongbatchError):
    """No model with this name is served here; GET /v1/models lists the models that are."""

    code = "model_not_found"


class AdapterForbiddenError(LongbatchError):
    """The API key's tenant may not use this adapter."""

    code = "adapter_not_allowed"


class AdapterRemovedError(LongbatchError):
    """The adapter that the job asks for was removed."""

    code = "adapter_removed"


class AdapterUnreadableError(LongbatchError):
    """The adapter's files cannot be read, or break a rule."""

    code = "adapter_unreadable"


class ContextLengthExceededError(InvalidRequestError):
    """The prompt and max_tokens together exceed the model's context length."""

    code = "context_length_exceeded"


class PromptTooLongError(ContextLengthExceededError):
    """The prompt has more tokens than any engine here accepts.

    Attributes:
        at_least: lower bound of the prompt's tokens; counting stopped there.
        limit: the limit that it exceeds, in tokens.
    """

    def __init__(self, *, at_least: int, limit: int) -> None:
        super().__init__(
            f"The prompt has at least {at_least:,} tokens; at most {limit:,} fit.",
            details={"prompt_tokens_at_least": at_least, "limit": limit},
        )
        self.at_least = at_least
        self.limit = limit


class RequestCancelledError(LongbatchError):
    """The request was cancelled before it completed."""

    code = "request_cancelled"


class RequestExpiredError(LongbatchError):
    """No engine had room for the request in time; try again."""

    code = "request_expired"
    retryable = True


class RequestFailedError(LongbatchError):
    """The engine failed to answer the request."""

    code = "engine_error"


class ConflictError(LongbatchError):
    """The object's current state does not allow this; retrying will not help."""

    code = "conflict"


class IdempotencyConflictError(LongbatchError):
    """The Idempotency-Key was already used with another request body."""

    code = "idempotency_conflict"


class AlreadyDeliveredError(IdempotencyConflictError):
    """What this Idempotency-Key made is gone: your tenant keeps nothing that was delivered."""

    code = "already_delivered"


class AuthenticationError(LongbatchError):
    """The API key is missing or wrong; send `Authorization: Bearer lb_…`."""

    code = "invalid_api_key"


class ForbiddenError(LongbatchError):
    """The API key does not have permission for this."""

    code = "insufficient_scope"


class AlreadyExistsError(LongbatchError):
    """The name is already in use."""

    code = "already_exists"


class KeyNotUsableError(LongbatchError):
    """The key has expired or was revoked; create a new one with `longbatch keys create`."""

    code = "key_not_usable"


class NotFoundError(LongbatchError):
    """No object with this id exists."""

    code = "not_found"


class JobNotFinishedError(LongbatchError):
    """The job has not reached a terminal state yet; poll it, or wait with ?wait=."""

    code = "job_not_finished"
    retryable = True


class DocumentNotReadyError(LongbatchError):
    """The document's text is not ready yet; try again."""

    code = "document_not_ready"
    retryable = True


class TooLargeError(LongbatchError):
    """The request body is larger than this server accepts."""

    code = "request_too_large"


class LimitOf(StrEnum):
    """Whose limit was reached."""

    KEY = "key"
    TENANT = "tenant"


class LimitError(LongbatchError):
    """You have reached one of your limits; try again later.

    Attributes:
        limited: what is limited, in OpenAI's words: requests, tokens, jobs or bytes.
        limit: the limit itself, in units of `limited`.
        remaining: what is left of it for smaller requests.
        retry_after_seconds: how long to wait before trying again.
        of: whose limit, where a key may have one of its own; None otherwise.
    """

    code = "rate_limit_exceeded"
    retryable = True
    limited: ClassVar[str] = "requests"

    def __init__(
        self,
        message: str,
        *,
        limit: int,
        remaining: int,
        retry_after_seconds: int = 10,
        of: LimitOf | None = None,
    ) -> None:
        super().__init__(message)
        self.limit = limit
        self.remaining = max(0, remaining)
        self.retry_after_seconds = retry_after_seconds
        self.of = of


class RequestRateError(LimitError):
    """Too many requests in the last minute."""


class TokenQuotaError(LimitError):
    """Your unfinished jobs already hold as many tokens as your limit allows."""

    code = "token_limit_exceeded"
    limited = "tokens"


class OverTokenQuotaError(TokenQuotaError):
    """The request alone needs more tokens than your limit allows for all unfinished jobs."""

    retryable = False


class JobQuotaError(LimitError):
    """You already have as many unfinished jobs as your limit allows."""

    code = "job_limit_exceeded"
    limited = "jobs"


class OverJobQuotaError(JobQuotaError):
    """The request alone creates more unfinished jobs than your limit allows."""

    retryable = False


class StorageQuotaError(LimitError):
    """You already keep as many bytes here as your limit allows; delete jobs, files or documents."""

    code = "storage_limit_exceeded"
    limited = "bytes"


class OverStorageQuotaError(StorageQuotaError):
    """The request alone stores more bytes than your limit allows."""

    retryable = False


class CountingInterruptedError(LongbatchError):
    """The process that counts the tokens stopped before it finished; try again."""

    code = "unavailable"
    retryable = True


class PromptUncountableError(LongbatchError):
    """The prompt's tokens cannot be counted within the memory and time limits."""

    code = "prompt_uncountable"


class DestinationLimitError(LimitError):
    """Your webhooks already use as many destinations as your limit allows."""

    code = "destination_limit_exceeded"
    limited = "destinations"


class UnavailableError(LongbatchError):
    """A service that this request needs is temporarily unavailable; try again."""

    code = "unavailable"
    retryable = True


class StorageFullError(UnavailableError):
    """The server has no room on its disk at the moment; try again."""

    code = "storage_full"


class InvalidOutputError(LongbatchError):
    """The answer does not have the form that was asked for."""

    code = "invalid_output"
    retryable = True


class ShownInvalidOutputError(InvalidOutputError):
    """The answer does not have the form that was asked for, and its caller may have read it already."""

    retryable = False


class EngineError(LongbatchError):
    """The engine ended the request with an error.

    Attributes:
        said: the server's own words, for the log alone: they may name hosts and addresses. A tenant reads
            `message`, which quotes them only if they concern its request.
    """

    code = "engine_error"

    def __init__(self, message: str | None = None, *, said: str = "") -> None:
        super().__init__(message)
        self.said = said


class EngineUnableError(EngineError):
    """The engine cannot do what the request asks for."""

    code = "unsupported_parameter"


class RetryableEngineError(EngineError):
    """The engine failed while it ran the job; another attempt may succeed."""

    code = "engine_error"
    retryable = True


class EngineUnavailableError(EngineError):
    """The engine cannot be reached; this does not spend an attempt."""

    code = "engine_unavailable"
    retryable = True


class EngineBusyError(EngineUnavailableError):
    """The engine takes no requests for now, or never this one; evidence of other jobs tells which."""


class EngineMisconfiguredError(EngineUnavailableError):
    """The engine refuses requests until an operator changes something; this does not spend an attempt."""


class EngineForbidsError(EngineMisconfiguredError):
    """The engine forbids this prompt, or every one; evidence of other jobs tells which."""


class EngineLostError(RetryableEngineError):
    """The engine was lost while it ran the job."""

    code = "engine_lost"


class StreamTimeoutError(RetryableEngineError):
    """The stream missed one of its deadlines."""

    code = "stream_timeout"
