"""Whose job ranks next: tenants share an engine by the tokens they were served, in proportion to weights."""

import heapq
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeVar
from uuid import UUID

T = TypeVar("T")
Tenant = TypeVar("Tenant", str, UUID)  # its name or id; only compared
_LOOKED_AT: Final = 96  # jobs of each tenant, as many as the packing considers


@dataclass(frozen=True, slots=True)
class Account:
    """What a tenant was served.

    Attributes:
        weight: its share relative to the others' weights, above 0.
        served: tokens served, divided by the weight; the lowest is next.
    """

    weight: float = 1.0
    served: float = 0.0


def charge(account: Account, num_tokens: int) -> Account:
    """Add tokens to the account.

    Args:
        account: of the job's tenant.
        num_tokens: prompt and predicted output at the claim; at the end the prediction's error, which may be
            negative. No tenant pays for tokens that are read again.
    """
    return replace(account, served=account.served + num_tokens / account.weight)


def lift(account: Account, active: Iterable[Account]) -> Account:
    """Raise the account of a returning tenant to the least-served active one.

    So idleness earns no credit.
    """
    return replace(account, served=max(account.served, min((each.served for each in active), default=0.0)))


def rank(
    queues: Mapping[Tenant, Sequence[T]],
    accounts: Mapping[Tenant, Account],
    *,
    num_tokens: Callable[[T], int],
    limit: int,
) -> list[T]:
    """Return the first `limit` jobs in the order in which they would be served.

    Each time, the tenant with the least on its account gives its first job and pays for it. So every tenant's
    jobs appear in the window in proportion to its weight, and in their own order.

    Half of the largest charge that a tenant could get next counts with its account. When its turn comes, the
    packing starts its largest job that fits, and that is charged at once: without the half, the tenant with
    larger jobs or a smaller weight would be ahead of its share by half a job on average. So no two accounts
    are ever further apart than half of the largest charge of each.

    Args:
        queues: each tenant's jobs of one lane in its own order: priority, then deadline, then age.
        accounts: of every tenant with a queue.
        num_tokens: what a job will be charged.
        limit: how many to rank.
    """
    heads = [
        (
            accounts[tenant].served + _half_of_largest(queue, num_tokens) / accounts[tenant].weight,
            tenant,
            0,
        )
        for tenant, queue in queues.items()
        if queue
    ]
    heapq.heapify(heads)
    ranked: list[T] = []
    while heads and len(ranked) < limit:
        served, tenant, place = heads[0]
        job = queues[tenant][place]
        ranked.append(job)
        if place + 1 < len(queues[tenant]):
            after = served + num_tokens(job) / accounts[tenant].weight
            heapq.heapreplace(heads, (after, tenant, place + 1))
        else:
            heapq.heappop(heads)
    return ranked


def _half_of_largest(queue: Sequence[T], num_tokens: Callable[[T], int]) -> float:
    return max(map(num_tokens, queue[:_LOOKED_AT])) / 2
