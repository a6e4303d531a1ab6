"""Callbacks: the URL and the secret that a request names for its webhook."""

from dataclasses import dataclass

from jobs import webhooks
from jobs.errors import InvalidRequestError
from jobs.settings import WebhookSettings
from jobs.webhooks import WebhookSecretError
from jobs.webhooks.vault import Vault


@dataclass(frozen=True, slots=True)
class Callback:
    """Where a job or a batch is told, checked.

    Attributes:
        secret: sealed; None: the tenant's default signs.
    """

    url: str | None
    secret: bytes | None


def check_callback(url: str | None, secret: str | None, settings: WebhookSettings) -> Callback:
    """What a request for a job or a batch says about its webhook.

    Raises:
        InvalidRequestError: it cannot be used.
    """
    if url is None:
        if secret is not None:
            raise InvalidRequestError("webhook_secret goes with webhook_url.", param="webhook_secret")
        return Callback(None, None)
    vault = require_vault(settings, param="webhook_url")
    webhooks.check_destination(url, allowed_hosts=settings.allowed_hosts)
    return Callback(
        url, None if secret is None else vault.seal(checked_secret(secret, param="webhook_secret"))
    )


def require_vault(settings: WebhookSettings, *, param: str | None = None) -> Vault:
    """What keeps secrets.

    Raises:
        InvalidRequestError: this server has no webhooks.
    """
    vault = Vault.of(settings)
    if vault is None:
        raise InvalidRequestError(
            "This server signs no webhooks: its LONGBATCH_WEBHOOKS__ENCRYPTION_KEY is not set.", param=param
        )
    return vault


def checked_secret(secret: str, *, param: str) -> str:
    """The secret, which can sign.

    Raises:
        InvalidRequestError: it cannot.
    """
    try:
        webhooks.check_secret(secret)
    except WebhookSecretError as error:
        raise InvalidRequestError(error.message, param=param) from None
    return secret
