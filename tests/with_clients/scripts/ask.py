"""Let one client make its calls and print what it finds, a line of JSON each.

`python ask.py client_openai plain streamed` runs these calls of `client_openai.CALLS`. The last line names
every address other than loopback that the process wanted to reach.
"""

import importlib
import ipaddress
import json
import sys
from collections.abc import Iterator

ELSEWHERE: set[str] = set()
_LOCAL = {"localhost", "", "None"}


def _is_loopback(host: object) -> bool:
    try:
        return ipaddress.ip_address(str(host)).is_loopback
    except ValueError:
        return str(host) in _LOCAL


def _watch(event: str, found: tuple[object, ...]) -> None:
    """Note where a socket goes; names are looked up before."""
    if event == "socket.getaddrinfo" and not _is_loopback(found[0]):
        ELSEWHERE.add(str(found[0]))
    elif event == "socket.connect":
        address = found[1]
        if isinstance(address, tuple) and not _is_loopback(address[0]):
            ELSEWHERE.add(str(address[0]))


def _causes(error: BaseException) -> Iterator[BaseException]:
    seen: list[BaseException] = []
    following: list[BaseException | None] = [error]
    while following:
        each = following.pop()
        if each is not None and each not in seen:
            seen.append(each)
            yield each
            following += [each.__cause__, each.__context__]


def _told(error: BaseException) -> str:
    """What an error and its causes say, as a caller would find it in a log."""
    return "\n".join(f"{type(each).__name__}: {each}" for each in _causes(error))


def main() -> None:
    """Make the calls, each by itself."""
    sys.addaudithook(_watch)
    client, *names = sys.argv[1:]
    calls = importlib.import_module(client).CALLS
    for name in names:
        try:
            line = {"call": name, "found": calls[name]()}
        except Exception as error:  # noqa: BLE001  # whatever a client raises is what is looked at
            line = {"call": name, "error": _told(error)}
        print(json.dumps(line), flush=True)  # noqa: T201
    print(json.dumps({"elsewhere": sorted(ELSEWHERE)}), flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
