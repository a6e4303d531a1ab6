"""The files of a server's own certificate."""

import ssl
from pathlib import Path

_MISMATCH = "KEY_VALUES_MISMATCH"  # OpenSSL's name for a key of another certificate


def check_files(certificate: Path, key: Path) -> None:
    """Check that a server can present this certificate.

    Args:
        certificate: PEM; the server's own first, then those that lead to its authority.
        key: PEM, unencrypted: a server that starts at boot has nobody who types a password.

    Raises:
        ValueError: a file cannot be read, or the two are no certificate and its key.
    """
    for file in (certificate, key):
        try:
            file.read_bytes()
        except OSError as error:
            raise ValueError(f"{file} cannot be read: {error.strerror}.") from error
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key, password=lambda: "")
    except ssl.SSLError as error:
        if error.reason == _MISMATCH:
            raise ValueError(f"{key} is not the key of {certificate}.") from error
        raise ValueError(
            f"{certificate} and {key} must be PEM files: a certificate and its unencrypted key."
        ) from error
