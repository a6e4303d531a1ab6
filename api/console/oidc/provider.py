"""The provider: what it says of itself, where it signs people in, and the claims of those whom it did."""

import asyncio
import json
import ssl
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote_plus

import httpx2
from authlib.oauth2.rfc6749 import OAuth2Error
from authlib.oauth2.rfc6749.parameters import prepare_grant_uri
from authlib.oauth2.rfc7636 import create_s256_code_challenge
from authlib.oidc.core import CodeIDToken
from authlib.oidc.discovery import get_well_known_url
from joserfc import jwt
from joserfc.errors import JoseError
from joserfc.jwk import KeySet, import_key

from api.console.oidc.pending import PendingSignIn
from jobs.errors import AuthenticationError, UnavailableError
from jobs.settings import OidcSettings
from jobs.settings.sign_in import is_safe_url

_SECONDS: Final = 10
_MAX_BYTES: Final = 2**20
# Of what the provider says of itself; its keys are asked for at every sign-in.
_KEPT_SECONDS: Final = 600
# After a failure nobody asks again for so long: those who waited for the answer would wait one by one.
_AWAY_SECONDS: Final = 3
# Between its clock and ours.
_LEEWAY_SECONDS: Final = 60
_MAX_SUBJECT: Final = 255  # by the standard
# Signed by a key pair: with a shared secret as the key, whoever knows the client's could sign.
_ALGORITHMS: Final = (
    *("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    *("ES256", "ES384", "ES512", "Ed25519", "EdDSA"),
)
_REFUSED: Final = (400, 401, 403)
_ENDPOINTS: Final = ("authorization_endpoint", "token_endpoint", "jwks_uri")


class ProviderError(UnavailableError):
    """The sign-in provider does not answer as it should; try again, or sign in with an API key."""

    code = "sign_in_provider_unavailable"


class RefusedSignInError(AuthenticationError):
    """The provider did not confirm this sign-in; begin again."""

    code = "sign_in_refused"


class Provider:
    """The configured provider, asked by this process alone, never by an address that a browser names."""

    def __init__(self, settings: OidcSettings) -> None:
        """Read the secret.

        Raises:
            ValueError: its file cannot be read, or is empty.
        """
        if settings.issuer is None:
            raise ValueError("oidc.issuer is not set")
        self._issuer = settings.issuer
        self._settings = settings
        self._secret = _read_secret(settings)
        self._certificates = ssl.create_default_context()
        self._metadata: Mapping[str, Any] = {}
        self._read_at = self._failed_at = float("-inf")
        self._reading = asyncio.Lock()

    async def address(self, pending: PendingSignIn) -> str:
        """Return where the browser signs in.

        Raises:
            ProviderError: the provider does not say where.
        """
        metadata = await self._describe()
        url: str = prepare_grant_uri(
            metadata["authorization_endpoint"],
            self._settings.client_id,
            "code",
            redirect_uri=self._settings.redirect_uri,
            scope=self._settings.scopes,
            state=pending.state,
            nonce=pending.nonce,
            code_challenge=create_s256_code_challenge(pending.verifier),
            code_challenge_method="S256",
        )
        return url

    async def claims(
        self, code: str, pending: PendingSignIn, *, issuer: str | None = None
    ) -> Mapping[str, Any]:
        """Exchange the code for an ID token and return its claims, all of them checked.

        Args:
            code: as the provider's answer has it.
            pending: the sign-in that it answers.
            issuer: as that answer names it (RFC 9207); None: it does not.

        Raises:
            RefusedSignInError: the provider refuses the code, or the token is not for this sign-in.
            ProviderError: the provider does not answer, or with something else.
        """
        metadata = await self._describe()
        if issuer is not None and issuer != self._issuer:
            raise RefusedSignInError
        answer = await self._exchange(metadata, code, pending)
        token = answer.get("id_token")
        if not isinstance(token, str):
            raise ProviderError
        keys = await self._fetch(metadata["jwks_uri"])
        return self._checked(token, keys, pending, access_token=answer.get("access_token"))

    def _checked(
        self, token: str, keys: Mapping[str, Any], pending: PendingSignIn, *, access_token: object
    ) -> Mapping[str, Any]:
        """Check signature, issuer, audience, times and nonce of an ID token; return its claims."""
        try:
            decoded = jwt.decode(token, _signing(keys), algorithms=list(_ALGORITHMS))
            claims = CodeIDToken(
                decoded.claims,
                decoded.header,
                options={
                    "iss": {"essential": True, "value": self._issuer},
                    "aud": {"essential": True, "value": self._settings.client_id},
                    "sub": {"essential": True},
                },
                params={
                    "client_id": self._settings.client_id,
                    "nonce": pending.nonce,
                    "access_token": access_token,
                },
            )
            claims.validate(leeway=_LEEWAY_SECONDS)
        except (JoseError, OAuth2Error, ValueError, TypeError, KeyError) as error:
            raise RefusedSignInError from error
        subject = claims.get("sub")
        if not isinstance(subject, str) or not subject.isprintable() or not 0 < len(subject) <= _MAX_SUBJECT:
            raise RefusedSignInError
        return dict(claims)

    async def _exchange(
        self, metadata: Mapping[str, Any], code: str, pending: PendingSignIn
    ) -> Mapping[str, Any]:
        sent = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": self._settings.redirect_uri,
            "code_verifier": pending.verifier,
        }
        methods = metadata.get("token_endpoint_auth_methods_supported") or ["client_secret_basic"]
        if "client_secret_basic" in methods:
            # Each part is quoted first, as the standard wants (RFC 6749, 2.3.1).
            login = httpx2.BasicAuth(quote_plus(self._settings.client_id), quote_plus(self._secret))
            return await self._fetch(metadata["token_endpoint"], data=sent, auth=login)
        login_fields = {"client_id": self._settings.client_id, "client_secret": self._secret}
        return await self._fetch(metadata["token_endpoint"], data=sent | login_fields)

    async def _describe(self) -> Mapping[str, Any]:
        """Return what the provider says of itself, at most ten minutes old; many who wait share a request."""
        async with self._reading:
            if time.monotonic() - self._read_at < _KEPT_SECONDS:
                return self._metadata
            if time.monotonic() - self._failed_at < _AWAY_SECONDS:
                raise ProviderError
            try:
                self._metadata = await self._ask()
            except ProviderError:
                self._failed_at = time.monotonic()
                raise
            self._read_at = time.monotonic()
            return self._metadata

    async def _ask(self) -> Mapping[str, Any]:
        """Ask the provider what it says of itself, and check that it may be believed."""
        found = await self._fetch(get_well_known_url(self._issuer, external=True))
        if found.get("issuer") != self._issuer or not all(map(_is_address, _addresses(found))):
            raise ProviderError
        return found

    async def _fetch(
        self, url: str, *, data: Mapping[str, str] | None = None, auth: httpx2.Auth | None = None
    ) -> Mapping[str, Any]:
        """Ask one of the provider's addresses for a JSON object; no redirect is followed.

        Raises:
            RefusedSignInError: it refuses what `data` holds.
            ProviderError: it does not answer, or with something else.
        """
        try:
            async with (
                asyncio.timeout(_SECONDS),
                httpx2.AsyncClient(verify=self._certificates, trust_env=False, timeout=_SECONDS) as client,
                client.stream(
                    "GET" if data is None else "POST",
                    url,
                    data=data,
                    headers={"Accept": "application/json"},
                    auth=auth,
                ) as response,
            ):
                raw = bytearray()
                async for piece in response.aiter_bytes():
                    raw += piece
                    if len(raw) > _MAX_BYTES:
                        raise ProviderError
            found = json.loads(raw)
        except (httpx2.HTTPError, httpx2.InvalidURL, TimeoutError, OSError, ValueError) as error:
            raise ProviderError from error
        if data is not None and response.status_code in _REFUSED and isinstance(found, dict):
            if found.get("error") == "invalid_grant":
                raise RefusedSignInError
            raise ProviderError
        if not response.is_success or not isinstance(found, dict):
            raise ProviderError
        return found


def _signing(keys: Mapping[str, Any]) -> KeySet:
    """Read the keys that sign: none that encrypts, no secret, and none of a kind that nothing here knows.

    Raises:
        ProviderError: these are no keys.
    """
    listed = keys.get("keys")
    if not isinstance(listed, list):
        raise ProviderError
    found = []
    for each in listed:
        if isinstance(each, dict) and each.get("use", "sig") == "sig" and each.get("kty") != "oct":
            with suppress(JoseError, ValueError, TypeError, KeyError):
                found.append(import_key(each))
    return KeySet(found)


def _addresses(metadata: Mapping[str, Any]) -> list[object]:
    return [metadata.get(each) for each in _ENDPOINTS]


def _is_address(found: object) -> bool:
    """Return True for an address that may be asked; those of providers may have a query."""
    return isinstance(found, str) and is_safe_url(found.partition("?")[0])


def _read_secret(settings: OidcSettings) -> str:
    if settings.client_secret is not None:
        return settings.client_secret.get_secret_value()
    try:
        lines = Path(settings.client_secret_file or "").read_text().splitlines()
    except OSError as error:
        raise ValueError(f"oidc.client_secret_file cannot be read: {error}") from error
    if not lines or not lines[0].strip():
        raise ValueError("the first line of oidc.client_secret_file holds no secret")
    return lines[0].strip()
