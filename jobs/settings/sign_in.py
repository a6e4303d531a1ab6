"""Settings of signing in to the console by an OpenID Connect provider."""

from datetime import timedelta
from typing import Final, Literal, Self
from urllib.parse import urlsplit

from pydantic import Field, SecretStr, model_validator

from jobs.loopback import is_loopback
from jobs.settings.group import Group

CALLBACK: Final = "/console/oidc/callback"


class OidcRule(Group):
    """Who is admitted: one whose ID token has this value in this claim."""

    claim: str = Field(
        min_length=1,
        max_length=200,
        description="its name, or its path with dots (realm_access.roles); an `email` must be verified",
    )
    value: str = Field(
        min_length=1,
        max_length=300,
        description="of the claim, or of one of its elements; for `email` also @domain",
    )
    tenant: str = Field(min_length=1, max_length=63, description="name of the tenant that they belong to")
    scopes: tuple[Literal["read", "submit", "operator"], ...] = Field(
        default=("read",), description="what their sessions may do; `read` must be among them"
    )

    @model_validator(mode="after")
    def _may_read(self) -> Self:
        if "read" not in self.scopes:
            raise ValueError("the scopes of a rule need `read`: no page opens without it")
        return self


class OidcSettings(Group):
    """Signing in by an OpenID Connect provider; off unless the issuer is set."""

    issuer: str | None = Field(
        default=None, description="https://…, exactly as the provider's tokens name it. None: off"
    )
    client_id: str = Field(default="", max_length=500)
    client_secret: SecretStr | None = Field(default=None, description="or client_secret_file")
    client_secret_file: str | None = Field(
        default=None, min_length=1, description="its first line is the secret"
    )
    redirect_uri: str = Field(
        default="",
        description=f"this server as browsers reach it, with the path {CALLBACK}; known to the provider",
    )
    scopes: str = Field(
        default="openid email profile",
        pattern=r"^openid( [!#-\[\]-~]+)*$",
        description="asked of the provider; more may be needed for the claims of rules",
    )
    rules: tuple[OidcRule, ...] = Field(
        default=(),
        max_length=200,
        description="a JSON list of claim, value, tenant, scopes; the first that fits admits, or none",
    )
    session_hours: float = Field(default=8, gt=0, le=12, description="then a person signs in again")
    key_sign_in: bool = Field(
        default=True, description="API keys, and links of `longbatch console`, sign in too"
    )

    @property
    def is_on(self) -> bool:
        """Whether people can sign in by a provider."""
        return self.issuer is not None

    @property
    def session_lifetime(self) -> timedelta:
        """How long a person's session lives at most."""
        return timedelta(hours=self.session_hours)

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if self.issuer is None:
            if not self.key_sign_in:
                raise ValueError("oidc.key_sign_in can be off only where oidc.issuer is set")
            return self
        if not self.client_id or not self.rules:
            raise ValueError("oidc.issuer needs oidc.client_id and oidc.rules")
        if (self.client_secret is None) == (self.client_secret_file is None):
            raise ValueError("set one of oidc.client_secret and oidc.client_secret_file")
        for name, url in (("issuer", self.issuer), ("redirect_uri", self.redirect_uri)):
            if not is_safe_url(url):
                raise ValueError(f"oidc.{name} must be an https URL without query and fragment")
        if urlsplit(self.redirect_uri).path != CALLBACK:
            raise ValueError(f"the path of oidc.redirect_uri must be {CALLBACK}")
        return self


def is_safe_url(url: str) -> bool:
    """Return True for a URL of https, or of http on this machine, that names a host and nothing more odd."""
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:
        return False
    if not host or parts.username is not None or parts.query or parts.fragment or not url.isascii():
        return False
    return parts.scheme == "https" or (parts.scheme == "http" and is_loopback(host))
