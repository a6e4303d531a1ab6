"""The rules of webhooks: how a delivery is signed, where it may go and when it is retried."""

import base64
import random
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import IPv4Address, IPv6Address
from typing import Final, Literal, cast
from urllib.parse import SplitResult, urlsplit

from standardwebhooks import Webhook

from jobs.errors import InvalidRequestError, LongbatchError
from jobs.webhooks.addresses import is_allowed_address

JOB_STARTED: Final = "job.started"
ENDPOINT_DISABLED: Final = "webhook_endpoint.disabled"
ENDPOINT_TEST: Final = "webhook_endpoint.test"  # goes to its own endpoint, whatever the filter
EVENT_TYPES: Final = (
    JOB_STARTED,
    *(f"job.{state}" for state in ("completed", "failed", "cancelled", "expired")),
    *(f"batch.{state}" for state in ("completed", "failed", "cancelled", "expired")),
    *(f"response.{state}" for state in ("completed", "failed", "cancelled", "incomplete")),
    *(f"summary.{state}" for state in ("completed", "failed", "cancelled", "expired")),
    *(f"extractions.{state}" for state in ("completed", "failed", "cancelled", "expired")),
    *(f"answers.{state}" for state in ("completed", "failed", "cancelled", "expired")),
    ENDPOINT_DISABLED,
)
ALL_EVENTS: Final = "*"
ON_REQUEST: Final = frozenset({JOB_STARTED})  # only for filters that name them

MAX_URL_CHARS: Final = 2048
MAX_HOST_CHARS: Final = 253  # RFC 1035
MAX_LABEL_CHARS: Final = 63  # the same

SECRET_PREFIX: Final = "whsec_"  # noqa: S105 how Standard Webhooks marks secrets
# Standard Webhooks: 192 to 512 bits.
MIN_SECRET_BYTES: Final = 24
MAX_SECRET_BYTES: Final = 64

# The schedule that Standard Webhooks recommends: nearly four days before a receiver is given up.
DELIVERY_DELAYS: Final = (
    timedelta(0),
    timedelta(seconds=5),
    timedelta(minutes=5),
    timedelta(minutes=30),
    *(timedelta(hours=hours) for hours in (2, 5, 10, 14, 20, 24)),
)
DELIVERY_JITTER: Final = 0.2  # fraction: receivers that failed together are not retried together

# Names that no public server has: this host, the local network, a cloud's own services.
_PRIVATE_SUFFIXES: Final = (
    ".localhost",
    ".local",
    ".localdomain",
    ".internal",
    ".intranet",
    ".lan",
    ".home.arpa",
)
_DEFAULT_PORTS: Final = {"https": 443, "http": 80}
_URL_CHARACTERS: Final = re.compile(
    r"[!-\[\]-~]+"
)  # printable ASCII but the backslash, which parsers disagree on
_BRACKETED: Final = re.compile(r"\[[0-9a-fA-F:.]+\](:[0-9]*)?")
_HOST: Final = re.compile(r"[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?(\.[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?)*")
_NUMBER: Final = re.compile(r"[0-9]+|0x[0-9a-f]*")


class WebhookUrlError(InvalidRequestError):
    """The webhook URL cannot be used."""

    code = "invalid_webhook_url"


class WebhookSecretError(LongbatchError):
    """A webhook secret must be `whsec_` followed by the base64 of 24 to 64 random bytes."""

    code = "invalid_webhook_secret"


@dataclass(frozen=True, slots=True)
class ParsedUrl:
    """A valid webhook URL; deliveries use these fields and never parse the text again.

    Attributes:
        scheme: `http` only for allowed hosts.
        host: lower case, without brackets and final dot.
        port: 443 unless the host is allowed.
        target: path and query.
        is_allowed_host: the operator allows this host to be private, on plain http and on any port.
    """

    scheme: Literal["http", "https"]
    host: str
    port: int
    target: str
    is_allowed_host: bool

    @property
    def authority(self) -> str:
        """The value of the Host header."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _DEFAULT_PORTS[self.scheme] else f"{host}:{self.port}"


def check_url(url: str, *, allowed_hosts: Collection[str]) -> ParsedUrl:
    """Parse a URL that webhooks may be sent to.

    Names are not resolved: the delivery does that.

    Args:
        url: as the caller gave it.
        allowed_hosts: hosts that may be private, on plain http and on any port.

    Raises:
        WebhookUrlError: its message names the rule that the URL breaks.
    """
    if len(url) > MAX_URL_CHARS:
        raise _refused(f"The URL has more than {MAX_URL_CHARS} characters.")
    if not _URL_CHARACTERS.fullmatch(url):
        raise _refused("The URL contains a space, a backslash, a control character or a non-ASCII character.")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise _refused("The URL cannot be parsed.") from error
    if "@" in parts.netloc:
        raise _refused("The URL contains a user name or a password.")
    if "#" in url:
        raise _refused("The URL has a fragment.")
    host = _host(parts)
    is_allowed = host in {allowed.lower().strip("[]") for allowed in allowed_hosts}
    scheme = _scheme(parts.scheme, host, is_allowed_host=is_allowed)
    port = _DEFAULT_PORTS[scheme] if port is None else port
    if not port or (port != 443 and not is_allowed):
        raise _refused(f"The URL's port must be 443; {_how_to_allow(host)}")
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return ParsedUrl(scheme=scheme, host=host, port=port, target=target, is_allowed_host=is_allowed)


def check_destination(url: str, *, allowed_hosts: Collection[str], param: str = "webhook_url") -> None:
    """Check that a URL may be stored as a webhook's.

    What its name resolves to is checked before each delivery.

    Raises:
        WebhookUrlError: it breaks a rule, or visibly names a private address.
    """
    try:
        parsed = check_url(url, allowed_hosts=allowed_hosts)
        if not parsed.is_allowed_host and is_private_host(parsed.host):
            raise _refused(f"The URL names a private address; {_how_to_allow(parsed.host)}")
    except WebhookUrlError as error:
        raise WebhookUrlError(error.message, param=param) from None


def is_private_host(host: str) -> bool:
    """Return True if the host is visibly private: an address that is not public, or a local name."""
    try:
        return not is_allowed_address(host)
    except ValueError:
        return "." not in host or host.endswith(_PRIVATE_SUFFIXES)


def _host(parts: SplitResult) -> str:
    host = (parts.hostname or "").removesuffix(".")
    is_valid = _is_address(parts.netloc, host) if "[" in parts.netloc else _is_name(host)
    if not is_valid:
        raise _refused("The URL has no valid host.")
    return host


def _is_name(host: str) -> bool:
    labels = host.split(".")
    if len(host) > MAX_HOST_CHARS or not _HOST.fullmatch(host) or max(map(len, labels)) > MAX_LABEL_CHARS:
        return False
    # Some resolvers read what ends in a number as an address: 127.1, 0x7f.1, 2130706433. Source: WHATWG URL.
    return not _NUMBER.fullmatch(labels[-1]) or _is_ipv4(host)


def _is_ipv4(host: str) -> bool:
    try:
        IPv4Address(host)
    except ValueError:
        return False
    return True


def _is_address(netloc: str, host: str) -> bool:
    try:
        IPv6Address(host)
    except ValueError:
        return False
    return _BRACKETED.fullmatch(netloc) is not None


def _scheme(scheme: str, host: str, *, is_allowed_host: bool) -> Literal["http", "https"]:
    if scheme == "https" or (scheme == "http" and is_allowed_host):
        return cast("Literal['http', 'https']", scheme)
    how = f"; {_how_to_allow(host)}" if scheme == "http" else "."
    raise _refused(f"The URL must begin with https://{how}")


def _how_to_allow(host: str) -> str:
    """Name the setting that permits a host, with a value that permits this one."""
    return f"the operator can allow this host with LONGBATCH_WEBHOOKS__ALLOWED_HOSTS='[\"{host}\"]'."


def _refused(reason: str) -> WebhookUrlError:
    return WebhookUrlError(reason, param="webhook_url")


def check_secret(secret: str) -> None:
    """Check that the secret can sign.

    Raises:
        WebhookSecretError: it cannot.
    """
    _signer(secret)


def _signer(secret: str) -> Webhook:
    encoded = secret.removeprefix(SECRET_PREFIX)
    try:
        key = base64.b64decode(encoded + "=" * (-len(encoded) % 4), validate=True)
    except ValueError as error:
        raise WebhookSecretError from error
    if encoded == secret or not MIN_SECRET_BYTES <= len(key) <= MAX_SECRET_BYTES:
        raise WebhookSecretError
    return Webhook(key)


def signature_headers(
    body: bytes, *, event_id: str, secrets: Sequence[str], now: datetime
) -> Mapping[str, str]:
    """Build the three headers that Standard Webhooks receivers verify.

    Args:
        body: UTF-8, exactly as it will be sent.
        event_id: the same on every attempt, so that the receiver can detect duplicates.
        secrets: the current one, and while it is being replaced also the old one; one signature each.
        now: aware; receivers refuse signatures more than five minutes old.

    Raises:
        WebhookSecretError: a secret cannot sign.
    """
    # sign() replaces the time zone instead of converting it: pass it nothing but UTC.
    moment = now.astimezone(UTC)
    signatures = [_signer(secret).sign(event_id, moment, body.decode()) for secret in secrets]
    return {
        "webhook-id": event_id,
        "webhook-timestamp": str(int(moment.timestamp())),
        "webhook-signature": " ".join(signatures),
    }


def next_delivery_at(attempt: int, now: datetime, rng: random.Random) -> datetime | None:
    """Return when to deliver an event after `attempt` attempts; None: give it up."""
    if attempt >= len(DELIVERY_DELAYS):
        return None
    return now + DELIVERY_DELAYS[attempt] * rng.uniform(1 - DELIVERY_JITTER, 1 + DELIVERY_JITTER)
