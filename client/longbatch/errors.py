"""Errors of Longbatch: the base that client and server share, and those that the client raises."""

import copyreg


class LongbatchError(Exception):
    """Longbatch could not complete the request.

    The first line of a subclass's docstring is its default message.

    Attributes:
        code: stable machine-readable name.
        param: the field of the request that is wrong, or None.
        retryable: True if the same call can succeed later without a change.
        details: JSON-serializable facts (limits, counts); never a prompt or a secret.
    """

    code: str = "internal_error"
    retryable: bool = False

    def __init__(
        self,
        message: str | None = None,
        *,
        param: str | None = None,
        details: dict[str, object] | None = None,
    ) -> None:
        self.message = message or (type(self).__doc__ or "").strip().splitlines()[0]
        self.param = param
        self.details = details or {}
        super().__init__(self.message)

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle all attributes, whatever arguments a subclass's constructor takes."""
        return copyreg.__newobj__, (type(self), *self.args), vars(self)  # type: ignore[attr-defined]


class ServerUnreachableError(LongbatchError):
    """No server answers; start one with `longbatch up`, or check the address."""

    code = "server_unreachable"
    retryable = True


class InvalidKeyError(LongbatchError):
    """The API key has characters that no header can carry; check LONGBATCH_API_KEY."""

    code = "invalid_key"


class InvalidUrlError(ServerUnreachableError):
    """The server's URL is not valid: write http://host:port or https://host."""

    code = "invalid_url"
    retryable = False


class ApiError(LongbatchError):
    """The server refused the request.

    Attributes:
        status: HTTP status.
        code: the error's `code` in the server's answer.
        retry_after: seconds to wait before the next try; None if the server gave none.
        is_final: True if the server declared that no repetition will help.
    """

    code = "refused"

    def __init__(
        self,
        message: str,
        *,
        status: int,
        code: str,
        param: str | None = None,
        retry_after: float | None = None,
        is_final: bool = False,
    ) -> None:
        super().__init__(message, param=param)
        self.status = status
        self.code = code
        self.retry_after = retry_after
        self.is_final = is_final


class StoppedError(LongbatchError):
    """The run was stopped before it finished."""

    code = "stopped"


class FileChangedError(LongbatchError):
    """The file changed while it was being read; run again."""

    code = "file_changed"


class NotCompletedError(LongbatchError):
    """The job has no output: it did not complete, or has not ended yet."""

    code = "not_completed"


class WaitTimeoutError(LongbatchError):
    """The job did not end in time; it goes on."""

    code = "wait_timeout"


class SignatureError(LongbatchError):
    """The webhook's signature does not match the secret, or the delivery is too old."""

    code = "invalid_signature"


class SecretMissingError(LongbatchError):
    """No webhook secret: pass it, or set LONGBATCH_WEBHOOK_SECRET."""

    code = "no_webhook_secret"


class InvalidSecretError(LongbatchError):
    """The webhook secret must be whsec_ and the base64 of 24 to 64 bytes."""

    code = "invalid_webhook_secret"
