"""A proxy for CONNECT on loopback; hostile ones are conducts of `hostile.servers`."""

import select
import socket
from collections.abc import Mapping

from hostile.servers import Conduct, read_request

ESTABLISHED = b"HTTP/1.1 200 Connection established\r\n\r\n"


def forwarding(routes: Mapping[str, int], asked: list[bytes]) -> Conduct:
    """Connects each authority that is named to its port on loopback; answers 502 for all others.

    For a server that does not read requests itself.

    Args:
        routes: ports by authority, `host:port`.
        asked: gets the whole requests.
    """

    def conduct(client: socket.socket) -> None:
        asked.append(read_request(client))
        port = routes.get(authority_of(asked[-1]))
        if port is None:
            client.sendall(b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\n\r\n")
            return
        with socket.create_connection(("127.0.0.1", port), timeout=20) as receiver:
            client.sendall(ESTABLISHED)
            relay(client, receiver)

    return conduct


def authority_of(request: bytes) -> str:
    method, authority, _ = request.split(b"\r\n", 1)[0].decode().split(" ")
    assert method == "CONNECT"
    return authority


def relay(client: socket.socket, receiver: socket.socket) -> None:
    """Passes bytes on in both directions until one side closes."""
    other = {client: receiver, receiver: client}
    while True:
        readable, _, _ = select.select(list(other), [], [], 20)
        if not readable:
            return
        for each in readable:
            received = each.recv(65536)
            if not received:
                return
            other[each].sendall(received)
