"""The certificates that connections to engines trust."""

import functools
import ssl


@functools.cache
def trusted() -> ssl.SSLContext:
    """Trust this machine's certificates and those of SSL_CERT_FILE. Reading them takes long: once."""
    return ssl.create_default_context()
