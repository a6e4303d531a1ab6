"""The client's side of TLS over bytes that somebody else moves, so that each of them is counted."""

import ssl


class Tls:
    """A handshake, then what is said in both directions.

    Attributes:
        is_open: the handshake is done, and the other side is who it should be.
    """

    def __init__(self, context: ssl.SSLContext, host: str) -> None:
        """Nothing was sent.

        Args:
            context: whom it trusts.
            host: the name, or address, that the certificate must bear.
        """
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._connection = context.wrap_bio(self._incoming, self._outgoing, server_hostname=host)
        self.is_open = False

    def shake_hands(self, received: bytes = b"") -> None:
        """The handshake is as far as these bytes bring it.

        Raises:
            ssl.SSLError: there will be none.
        """
        self._incoming.write(received)
        try:
            self._connection.do_handshake()
        except ssl.SSLWantReadError:
            return
        self.is_open = True

    def say(self, text: bytes) -> None:
        """To the other side; all of it is in `unsent`."""
        self._connection.write(text)

    def hear(self, received: bytes = b"") -> bytes:
        """What the other side says with these bytes.

        Raises:
            ssl.SSLError: they are no TLS.
        """
        self._incoming.write(received)
        heard = []
        try:
            while piece := self._connection.read(65536):
                heard.append(piece)
        except (ssl.SSLWantReadError, ssl.SSLZeroReturnError):
            pass
        return b"".join(heard)

    def unsent(self) -> bytes:
        """What has to go to the other side now."""
        return self._outgoing.read()
