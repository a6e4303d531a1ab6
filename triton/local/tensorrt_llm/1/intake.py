"""The intake of Triton's requests: submit to the engine, stop another request, or refuse."""

from collections.abc import Callable

from .scheduler import Capacity
from .speech import Ask
from .wire import BadRequestError, PbRequest, ResponseStream, is_stop, read_ask


def take(
    request: PbRequest,
    stream: ResponseStream,
    capacity: Capacity,
    *,
    begin: Callable[[Ask], None],
    stop: Callable[[str], None],
) -> None:
    """Submit the request to the engine, or carry out or refuse it and end its stream.

    Args:
        request: a generation or a stop request.
        stream: its responses.
        capacity: the engine's capacity.
        begin: starts the request; raises BadRequestError to refuse it.
        stop: ends the requests with an id.
    """
    try:
        if is_stop(request):
            _stop(request.request_id(), stop)
            stream.finish()
            return
        ask = read_ask(request)
        _check_length(ask, capacity)
        begin(ask)
    except BadRequestError as error:
        stream.refuse(str(error))


def _stop(request_id: str, stop: Callable[[str], None]) -> None:
    if not request_id:
        raise BadRequestError("Cannot send a stop request without a request_id")
    stop(request_id)


def _check_length(ask: Ask, capacity: Capacity) -> None:
    limit = capacity.longest_sequence - 1
    if len(ask.ids) > limit:
        raise BadRequestError(f"Prompt length ({len(ask.ids)}) exceeds maximum input length ({limit}).")
