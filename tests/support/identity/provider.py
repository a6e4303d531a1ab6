"""A small OpenID Connect provider on loopback: discovery, keys, sign-in pages, codes with PKCE, ID tokens."""

import base64
import json
import secrets
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar
from urllib.parse import parse_qs, unquote_plus, urlencode, urlsplit

from authlib.oauth2.rfc7636 import create_s256_code_challenge
from joserfc import jwt
from joserfc.jwk import ECKey, OctKey

CLIENT_ID = "the console"
CLIENT_SECRET = "s3cret: of the client/ü"


@dataclass
class IdentityProvider:
    """What the provider knows, and how it is to misbehave.

    Attributes:
        url: where it listens, its issuer.
        claims: of the one who signs in, over those that every ID token has.
        says: changes of what it says of itself.
        is_down: it answers every request with 503.
        algorithm: of its signatures; none: it signs nothing.
        asks: paths that were asked for.
    """

    url: str = ""
    claims: dict[str, Any] = field(default_factory=dict)
    says: dict[str, Any] = field(default_factory=dict)
    is_down: bool = False
    algorithm: str = "ES256"
    asks: list[str] = field(default_factory=list)
    key: Any = None
    published: Any = None
    _codes: dict[str, dict[str, str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.rotate()

    def behave(self) -> None:
        """Do nothing wrong any more."""
        self.claims, self.says, self.is_down, self.algorithm = {}, {}, False, "ES256"
        self.published = self.key

    def rotate(self) -> None:
        """Sign with a new key, and publish it alone."""
        self.key = ECKey.generate_key("P-256", {"kid": secrets.token_hex(4), "use": "sig"})
        self.published = self.key

    def metadata(self) -> dict[str, Any]:
        return {
            "issuer": self.url,
            "authorization_endpoint": f"{self.url}/authorize?audience=console",
            "token_endpoint": f"{self.url}/token",
            "jwks_uri": f"{self.url}/keys",
            "response_types_supported": ["code"],
            "subject_types_supported": ["public"],
            "id_token_signing_alg_values_supported": ["ES256"],
        } | self.says

    def keys(self) -> dict[str, Any]:
        shared = OctKey.generate_key(256).as_dict(private=False) | {"kid": "a secret"}
        encrypts = ECKey.generate_key("P-256", {"kid": "other", "use": "enc"}).as_dict(private=False)
        strange = {"kty": "AKP", "kid": "of a later standard"}
        return {"keys": [shared, strange, encrypts, self.published.as_dict(private=False)]}

    def approve(self, asked: dict[str, str]) -> str:
        """Sign the browser in at once, and return where it goes then."""
        assert asked["response_type"] == "code"
        assert asked["client_id"] == CLIENT_ID
        assert asked["code_challenge_method"] == "S256"
        assert len(asked["nonce"]) >= 32
        assert "openid" in asked["scope"].split()
        code = secrets.token_urlsafe(16)
        self._codes[code] = asked
        return (
            f"{asked['redirect_uri']}?{urlencode({'code': code, 'state': asked['state'], 'iss': self.url})}"
        )

    def exchange(self, login: str, sent: dict[str, str]) -> tuple[int, dict[str, Any]]:
        """Give an ID token for a code, once, to the client that has the verifier."""
        if login != f"Basic {_basic()}":
            return 401, {"error": "invalid_client"}
        asked = self._codes.pop(sent["code"], None)
        if asked is None or sent["redirect_uri"] != asked["redirect_uri"]:
            return 400, {"error": "invalid_grant"}
        if create_s256_code_challenge(sent["code_verifier"]) != asked["code_challenge"]:
            return 400, {"error": "invalid_grant"}
        return 200, {
            "access_token": "of no use here",
            "token_type": "Bearer",
            "id_token": self.token(asked["nonce"]),
        }

    def token(self, nonce: str) -> str:
        now = int(time.time())
        claims = {
            "iss": self.url,
            "sub": "248289761001",
            "aud": CLIENT_ID,
            "exp": now + 300,
            "iat": now,
            "nonce": nonce,
        } | self.claims
        kept = {name: value for name, value in claims.items() if value is not None}
        if self.algorithm == "none":
            parts = ({"alg": "none"}, kept)
            return ".".join(_encoded(json.dumps(each).encode()) for each in parts) + "."
        if self.algorithm == "HS256":
            secret = OctKey.import_key(CLIENT_SECRET)
            return jwt.encode({"alg": "HS256"}, kept, secret)
        return jwt.encode({"alg": self.algorithm, "kid": self.key.kid}, kept, self.key)


def _encoded(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def _basic() -> str:
    quoted = ":".join(urlencode({"": each}).removeprefix("=") for each in (CLIENT_ID, CLIENT_SECRET))
    assert unquote_plus(quoted.partition(":")[2]) == CLIENT_SECRET
    return base64.b64encode(quoted.encode()).decode()


@contextmanager
def providing(host: str = "127.0.0.1") -> Iterator[IdentityProvider]:
    """A provider that answers as long as the context lasts."""
    provider = IdentityProvider()
    server = ThreadingHTTPServer((host, 0), type("Asked", (_Asked,), {"provider": provider}))
    provider.url = f"http://{host}:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield provider
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Asked(BaseHTTPRequestHandler):
    """A request to the provider."""

    provider: ClassVar[IdentityProvider]

    def do_GET(self) -> None:
        path, query = urlsplit(self.path).path, urlsplit(self.path).query
        self.provider.asks.append(path)
        if self.provider.is_down:
            self._answer(503, {})
        elif path == "/.well-known/openid-configuration":
            self._answer(200, self.provider.metadata())
        elif path == "/keys":
            self._answer(200, self.provider.keys())
        elif path == "/authorize":
            asked = {name: value for name, (value,) in parse_qs(query).items()}
            self._lead(self.provider.approve(asked))
        else:
            self._answer(404, {})

    def do_POST(self) -> None:
        self.provider.asks.append(self.path)
        raw = self.rfile.read(int(self.headers["content-length"])).decode()
        sent = {name: value for name, (value,) in parse_qs(raw).items()}
        if self.provider.is_down:
            self._answer(503, {})
        else:
            self._answer(*self.provider.exchange(self.headers.get("authorization", ""), sent))

    def log_message(self, *_: object) -> None:
        """Print nothing."""

    def _lead(self, address: str) -> None:
        self.send_response(302)
        self.send_header("location", address)
        self.send_header("content-length", "0")
        self.end_headers()

    def _answer(self, status: int, body: dict[str, Any]) -> None:
        raw = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)
