"""Requests in progress: limits their number per tenant, so that no tenant takes all connections."""

from collections import Counter
from collections.abc import Mapping, MutableMapping
from typing import Any, Final
from uuid import UUID

from api.runtime.compute import count_down
from jobs.errors import LimitError

# In the state of a request's scope: the tenant it is counted for.
_COUNTED: Final = "counted_for"
# A request may end at any time, but a tenant at the limit waits for a long poll or a slow upload of its own.
_RETRY_SECONDS: Final = 5


class OpenRequestLimitError(LimitError):
    """You have reached your limit of requests in progress; wait for some to end."""

    code = "open_request_limit_exceeded"
    limited = "connections"


class OpenRequests:
    """The requests of known callers in progress in this process.

    A tenant may have as many as there are free places: half of all places if it is alone, a third beside
    another tenant at its limit. A newcomer thus always finds a place.
    """

    def __init__(self, max_requests: int) -> None:
        self._max_requests = max_requests
        self._num_of: Counter[UUID] = Counter()

    def enter(self, state: MutableMapping[str, Any], tenant_id: UUID) -> None:
        """Count the request for its tenant until it leaves.

        Args:
            state: of the request's scope.
            tenant_id: the caller's tenant.

        Raises:
            OpenRequestLimitError: the tenant has reached its limit.
        """
        num_free, num_own = self._max_requests - self._num_of.total(), self._num_of[tenant_id]
        if num_own >= num_free:
            message = (
                f"You have {num_own} requests in progress, and {num_free} connections of this server are free"
                " for others; wait for some of yours to end."
            )
            raise OpenRequestLimitError(
                message, limit=num_own, remaining=0, retry_after_seconds=_RETRY_SECONDS
            )
        state[_COUNTED] = tenant_id
        self._num_of[tenant_id] += 1

    def leave(self, state: MutableMapping[str, Any]) -> None:
        """Stop counting the request, if it was counted."""
        if (tenant_id := state.pop(_COUNTED, None)) is not None:
            count_down(self._num_of, tenant_id)


def is_counted(state: Mapping[str, Any]) -> bool:
    """Return True while the request with this state is counted for a tenant."""
    return _COUNTED in state
