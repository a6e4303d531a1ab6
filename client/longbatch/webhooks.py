"""Verification of webhook deliveries. Source: the Standard Webhooks specification, symmetric signatures."""

import base64
import hashlib
import hmac
import json
import os
import time
from collections.abc import Mapping
from datetime import datetime
from typing import Final

from longbatch.backports import UTC
from longbatch.errors import InvalidSecretError, SecretMissingError, SignatureError
from longbatch.objects import Event

TOLERANCE_SECONDS: Final = 300.0
SECRET: Final = "LONGBATCH_WEBHOOK_SECRET"  # noqa: S105  # the name of a variable
_PREFIX: Final = "whsec_"
_MIN_KEY_BYTES, _MAX_KEY_BYTES = 24, 64


class Webhooks:
    """Verifies deliveries with a secret that is given once.

    Args:
        secret: `whsec_…`; by default LONGBATCH_WEBHOOK_SECRET.
    """

    def __init__(self, secret: str | None = None) -> None:
        self._secret = secret

    def verify(self, headers: Mapping[str, str], body: bytes | str, *, secret: str | None = None) -> Event:
        """Check the signature and age of a delivery, and return its event.

        Args:
            headers: of the request, by any case of their names.
            body: of the request, exactly as received.
            secret: of the endpoint or the request; by default the client's.

        Raises:
            SignatureError: the delivery is not genuine, or too old.
            SecretMissingError: no secret is known.
        """
        known = secret or self._secret or os.environ.get(SECRET)
        if not known:
            raise SecretMissingError
        return verify(headers, body, secret=known)


def verify(
    headers: Mapping[str, str],
    body: bytes | str,
    *,
    secret: str,
    tolerance_seconds: float = TOLERANCE_SECONDS,
) -> Event:
    """Check the signature and age of a delivery, and return its event.

    Args:
        headers: of the request, by any case of their names.
        body: of the request, exactly as received.
        secret: `whsec_…`, of the endpoint or the request.
        tolerance_seconds: how far the delivery's time may be from this machine's clock.

    Raises:
        SignatureError: the signature does not match, the delivery is too old, or it is not a delivery.
        InvalidSecretError: the secret is not whsec_ and base64 of 24 to 64 bytes.
    """
    given = {name.lower(): value for name, value in headers.items()}
    try:
        event_id, timestamp = given["webhook-id"], given["webhook-timestamp"]
        signatures = given["webhook-signature"].split()
        sent_at = int(timestamp)
    except (KeyError, ValueError) as error:
        raise SignatureError(
            "The request has no webhook-id, webhook-timestamp or webhook-signature."
        ) from error
    content = body.encode(errors="surrogateescape") if isinstance(body, str) else bytes(body)
    expected = "v1," + _signature(secret, event_id, timestamp, content)
    given_ones = [each.encode(errors="surrogateescape") for each in signatures]
    if not any(hmac.compare_digest(expected.encode(), each) for each in given_ones):
        raise SignatureError("The signature does not match this secret and body.")
    if abs(time.time() - sent_at) > tolerance_seconds:
        raise SignatureError(f"The delivery is more than {tolerance_seconds:g} s from this machine's clock.")
    try:
        found = json.loads(content)
        created_at = datetime.fromtimestamp(found["created_at"], UTC)
        return Event(event_id, str(found["type"]), created_at, found["data"])
    except (ValueError, KeyError, TypeError) as error:
        raise SignatureError("The body is not an event.") from error


def _signature(secret: str, event_id: str, timestamp: str, content: bytes) -> str:
    try:
        key = base64.b64decode(secret.strip().removeprefix(_PREFIX), validate=True)
    except ValueError as error:
        raise InvalidSecretError from error
    if not _MIN_KEY_BYTES <= len(key) <= _MAX_KEY_BYTES:  # anybody can sign with an empty one
        raise InvalidSecretError
    signed = f"{event_id}.{timestamp}.".encode(errors="surrogateescape") + content
    return base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()
