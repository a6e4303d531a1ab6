"""Where the stack's API listens, and how this machine reaches it."""

import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPSConnection
from ipaddress import IPv6Address, ip_address
from pathlib import Path

from cryptography import x509

from cli.stack import loopback
from cli.stack.errors import StackError
from cli.stack.ports import LOOPBACK
from jobs import tls
from jobs.loopback import is_loopback


@dataclass(frozen=True)
class TlsFiles:
    """The certificate that the API presents, and its key.

    Attributes:
        certificate: PEM; the API's own first, then those that lead to its authority.
        key: PEM, unencrypted.

    Raises:
        StackError: a file cannot be read, or the two are no pair.
    """

    certificate: Path
    key: Path

    def __post_init__(self) -> None:
        try:
            tls.check_files(self.certificate, self.key)
        except ValueError as error:
            raise StackError(str(error)) from error


@dataclass(frozen=True)
class ApiAddress:
    """The address that the API listens on.

    Attributes:
        host: an address of this machine; 0.0.0.0 or :: for all of them.
        tls: None for plain HTTP.
    """

    port: int
    host: str = LOOPBACK
    tls: TlsFiles | None = None

    @property
    def is_local(self) -> bool:
        """True if other machines cannot reach it."""
        return is_loopback(self.host)

    @property
    def url(self) -> str:
        """The URL for clients: with TLS, under a name of the certificate."""
        if self.tls is None:
            return f"http://{_in_url(self._reached)}:{self.port}"
        return f"https://{_in_url(_certified(self.tls.certificate, self._reached))}:{self.port}"

    def ask(
        self, path: str, *, method: str = "GET", headers: Mapping[str, str] | None = None
    ) -> tuple[int | None, str]:
        """Send the API a request, from this machine.

        Returns:
            The status and the body; None and nothing if it does not answer.
        """
        return loopback.exchange(self._connection(), path, method=method, headers=headers)

    @property
    def _reached(self) -> str:
        """The address at which this machine reaches it."""
        address = ip_address(self.host)
        if not address.is_unspecified:
            return self.host
        return "::1" if isinstance(address, IPv6Address) else LOOPBACK

    def _connection(self) -> HTTPConnection:
        if self.tls is None:
            return HTTPConnection(self._reached, self.port, timeout=loopback.TIMEOUT_SECONDS)
        # The request stays on this machine, at a port that the stack holds; few certificates name loopback.
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        return HTTPSConnection(self._reached, self.port, timeout=loopback.TIMEOUT_SECONDS, context=context)


def _certified(certificate: Path, reached: str) -> str:
    """Choose a host that the certificate is valid for; the address itself if it names no usable one."""
    names = _names(x509.load_pem_x509_certificate(certificate.read_bytes()))
    usable = [name for name in names if not name.startswith("*")]
    return reached if reached in usable else next(iter(usable), reached)


def _names(certificate: x509.Certificate) -> list[str]:
    """List the names, then the addresses, that a certificate is valid for."""
    try:
        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return []
    addresses = found.get_values_for_type(x509.IPAddress)
    return [*found.get_values_for_type(x509.DNSName), *map(str, addresses)]


def _in_url(host: str) -> str:
    return f"[{host}]" if ":" in host else host
