"""The client side of TLS over bytes that the caller moves, so that each of them is counted."""

import ssl


class Tls:
    """A TLS session: a handshake, then data in both directions.

    Attributes:
        is_open: the handshake is done and the peer is authenticated.
    """

    def __init__(self, context: ssl.SSLContext, host: str) -> None:
        """Set up without sending anything.

        Args:
            context: holds the trusted authorities.
            host: the name or address that the certificate must be for.
        """
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._connection = context.wrap_bio(self._incoming, self._outgoing, server_hostname=host)
        self.is_open = False

    def shake_hands(self, received: bytes = b"") -> None:
        """Advance the handshake with these bytes.

        Raises:
            ssl.SSLError: it failed.
        """
        self._incoming.write(received)
        try:
            self._connection.do_handshake()
        except ssl.SSLWantReadError:
            return
        self.is_open = True

    def encrypt(self, text: bytes) -> None:
        """Encrypt bytes for the peer; `take_outgoing` returns them."""
        self._connection.write(text)

    def decrypt(self, received: bytes = b"") -> bytes:
        """Decrypt the bytes from the peer.

        Raises:
            ssl.SSLError: they are not valid TLS.
        """
        self._incoming.write(received)
        plain = []
        try:
            while data := self._connection.read(65536):
                plain.append(data)
        except (ssl.SSLWantReadError, ssl.SSLZeroReturnError):
            pass
        return b"".join(plain)

    def take_outgoing(self) -> bytes:
        """Return the bytes to send to the peer now."""
        return self._outgoing.read()
