"""Callbacks: the webhook URL and secret that a request specifies."""

from dataclasses import dataclass

from jobs import webhooks
from jobs.errors import InvalidRequestError
from jobs.settings import WebhookSettings
from jobs.webhooks import WebhookSecretError
from jobs.webhooks.vault import Vault


@dataclass(frozen=True, slots=True)
class Callback:
    """The validated webhook of a job, batch or summary.

    Attributes:
        url: where its events are delivered; None if the request names no webhook.
        secret: sealed; None: the tenant's default secret signs.
    """

    url: str | None
    secret: bytes | None


def check_callback(url: str | None, secret: str | None, settings: WebhookSettings) -> Callback:
    """Validate the webhook that a request specifies, and seal its secret.

    Raises:
        InvalidRequestError: the webhook cannot be used; `param` names the field.
    """
    if url is None:
        if secret is not None:
            raise InvalidRequestError("webhook_secret requires webhook_url.", param="webhook_secret")
        return Callback(None, None)
    vault = require_vault(settings, param="webhook_url")
    webhooks.check_destination(url, allowed_hosts=settings.allowed_hosts)
    return Callback(
        url, None if secret is None else vault.seal(checked_secret(secret, param="webhook_secret"))
    )


def require_vault(settings: WebhookSettings, *, param: str | None = None) -> Vault:
    """Return the vault that seals webhook secrets.

    Raises:
        InvalidRequestError: webhooks are not configured on this server.
    """
    vault = Vault.of(settings)
    if vault is None:
        raise InvalidRequestError(
            "Webhooks are off on this server: LONGBATCH_WEBHOOKS__ENCRYPTION_KEY is not set.", param=param
        )
    return vault


def checked_secret(secret: str, *, param: str) -> str:
    """Return the secret after checking that it can sign.

    Raises:
        InvalidRequestError: it cannot sign.
    """
    try:
        webhooks.check_secret(secret)
    except WebhookSecretError as error:
        raise InvalidRequestError(error.message, param=param) from None
    return secret
